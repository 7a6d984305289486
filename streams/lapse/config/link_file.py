"""Link file: reads a file like `transfer.toml` or `replicate.toml` into a checked link (X7)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from lapse.config import tls_files
from lapse.config.document import ConfigError, Lines, describe_fault, parse_toml, read_text
from lapse.config.root import SecurityConfig

M = TypeVar("M", bound=BaseModel)


def read_link(
    model: type[M], path: Path | None, stated: Mapping[str, object], command: str, missing: Mapping[str, str]
) -> M:
    """Read and check what describes two deployments.

    Args:
        model: the link.
        path: the file; None = there is none.
        stated: values of the command line, by key of the file, which override it.
        command: the place of faults in `stated`, such as `lapse transfer`.
        missing: by required key, how it can be given.

    Raises:
        ConfigError: the file is missing, is not TOML, or has invalid content. The text has file, line and key of every
            fault.
    """
    text = "" if path is None else read_text(path, "write it, or name another one")
    tree = {} if path is None else parse_toml(text, str(path))
    lines = Lines(text)

    def placed(key: list[str], fault: str) -> str:
        line = lines.line_of(key)
        where = command if path is None or key[0] in stated else f"{path}:{line}" if line else str(path)
        return f"{where}: {'.'.join(key)}: {fault}"

    try:
        link = model.model_validate({**tree, **stated})
    except ValidationError as error:
        found = (_described(fault, model, missing) for fault in error.errors(include_url=False))
        raise ConfigError("\n".join(dict.fromkeys(placed(*one) for one in found))) from error
    if faults := [placed(*one) for one in _faults_of_files(link) if one[0][0] in tree]:
        raise ConfigError("\n".join(faults))
    return link


def _described(fault: Any, model: type[BaseModel], missing: Mapping[str, str]) -> tuple[list[str], str]:
    key, text = describe_fault(fault, model=model)
    if fault["type"] == "placed":  # such a fault names its place in lapse.toml
        key = [str(fault["loc"][0]), *key[1:]]
    how = missing.get(key[0]) if fault["type"] == "missing" else None
    return key, f"{text}: {how}" if how else text


def _faults_of_files(link: BaseModel) -> Iterator[tuple[list[str], str]]:
    for key in type(link).model_fields:
        if isinstance(security := getattr(link, key), SecurityConfig):
            yield from (([key, one], fault) for one, fault in tls_files.faults(security))
