"""Reading `lapse.toml`: from text to a checked `Config`, with errors that name line and key (X7)."""

from __future__ import annotations

import difflib
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from lapse.config import expiry_function
from lapse.config.root import Config

_TABLE: Final = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY: Final = re.compile(r"""\s*(?:"([^"]+)"|'([^']+)'|([A-Za-z0-9_.-]+))\s*=""")


class ConfigError(Exception):
    """A configuration that cannot be used; the text names file, line and key of every fault."""


def load(path: Path) -> Config:
    """Read and check a configuration file.

    Raises:
        ConfigError: the file is missing, is no TOML, or says something that lapse does not understand.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: no such file; write one (docs/configuration.md shows how) or pass --config"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    config = loads(text, str(path), path.absolute().parent)
    _check_functions(config, text, path)
    return config


def _check_functions(config: Config, text: str, path: Path) -> None:
    """Import what `on_expire` names; modules beside the configuration file are found (L15).

    Raises:
        ConfigError: one cannot be imported.
    """
    beside = str(path.absolute().parent)
    if beside not in sys.path:
        sys.path.append(beside)
    faults: list[str] = []
    for kind, entities in (("queue", config.queue), ("sow", config.sow)):
        for name, entity in entities.items():
            if entity.on_expire is not None:
                try:
                    expiry_function.resolve(entity.on_expire)
                except ValueError as error:
                    line = line_of(text, [kind, name, "on_expire"])
                    faults.append(f"{path}:{line}: {kind}.{name}.on_expire: {error}")
    if faults:
        raise ConfigError("\n".join(faults))


def loads(text: str, name: str = "lapse.toml", beside: Path | None = None) -> Config:
    """Read and check a configuration.

    Args:
        text: the configuration.
        name: what errors call it.
        beside: where the files are that it names; the current directory when left out.

    Raises:
        ConfigError: the text is no TOML, or says something that lapse does not understand.
    """
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: {error}") from error
    try:
        return Config.model_validate(tree, context={"beside": beside or Path()})
    except ValidationError as error:
        faults = [_describe(fault, text, name) for fault in error.errors()]
        raise ConfigError("\n".join(faults)) from error


def _describe(fault: Any, text: str, name: str) -> str:
    path = [str(part) for part in fault["loc"]]
    key = ".".join(path) or "lapse"
    line = line_of(text, path)
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        message = f"unknown key{_suggestion(path)}"
    elif fault["type"] == "missing":
        message = "is required"
    where = f"{name}:{line}" if line else name
    return f"{where}: {key}: {message}"


def _suggestion(path: list[str]) -> str:
    known = sorted(_keys_beside(path))
    close = difflib.get_close_matches(path[-1], known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known here: {', '.join(known)}"


def _keys_beside(path: list[str]) -> set[str]:
    from lapse.config.entity import QueueConfig, SowConfig

    if len(path) == 1:
        return set(Config.model_fields)
    entities: dict[str, type[BaseModel]] = {"queue": QueueConfig, "sow": SowConfig}
    model = entities.get(path[0])
    if model is None:
        section = Config.model_fields[path[0]].annotation
        model = section if isinstance(section, type) and issubclass(section, BaseModel) else Config
    return set(model.model_fields)


def line_of(text: str, path: list[str]) -> int:
    """The line on which a key stands, or that of the nearest table that holds it; 0 if neither is found."""
    table: list[str] = []
    best, best_depth = 0, 0
    for number, line in enumerate(text.splitlines(), 1):
        if match := _TABLE.match(line):
            table = _split(match[1])
            here = table
        elif match := _KEY.match(line):
            here = [*table, *([match[1] or match[2]] if match[1] or match[2] else _split(match[3]))]
        else:
            continue
        depth = len(here)
        if depth > best_depth and here == path[:depth]:
            best, best_depth = number, depth
    return best


def _split(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in re.findall(r'"[^"]*"|\'[^\']*\'|[^.]+', dotted)]
