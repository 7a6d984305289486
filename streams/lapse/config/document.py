"""Document: reads `lapse.toml` into a checked `Config`, with errors that name line and key (X7)."""

from __future__ import annotations

import re
import reprlib
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from lapse.config import expiry_function, tls_files
from lapse.config.root import Config

_TABLE: Final = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY: Final = re.compile(r"""\s*(?:"([^"]+)"|'([^']+)'|([A-Za-z0-9_.-]+))\s*=""")
_PLACE: Final = re.compile(r"(.*) \(at line (\d+), column (\d+)\)", re.DOTALL)

_EXPECTED: Final = {
    "enum": "{expected}",
    "literal_error": "{expected}",
    "tuple_type": "a list",
    "string_type": "a text in quotes",
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "dict_type": "a table",
    "model_type": "a table",
    "string_too_short": "a text that is not empty",
    "string_pattern_mismatch": "a text that matches {pattern}",
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "{le} or less",
}
"""By pydantic's name of a fault: the expected value. Errors also show the given value, except secrets (X5)."""


_SHORT: Final = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 3, 100, 100
"""Shortens values of the file in errors, since they may be very long or deeply nested."""

_LONGEST_FAULT: Final = 1_000
_MOST_FAULTS: Final = 50
"""The greatest number of faults that are reported."""

_DEEPEST: Final = 8
"""The greatest depth of keys that is considered, since a hostile key may have thousands of dots."""


class ConfigError(Exception):
    """A configuration is invalid. The text names file, line and key of every fault."""


_MOST_PARTS: Final = 64
"""The greatest number of parts of a dotted key. Parsing takes time that grows with the square of it."""

_PART: Final = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_DOTTED: Final = re.compile(
    rf"""\"{{3}}(?:[^\\]|\\.)*?\"{{3}}|'{{3}}.*?'{{3}}|\#[^\n]*+|(?P<key>{_PART}(?:[ \t]*+\.[ \t]*+{_PART})*+)""",
    re.ASCII | re.DOTALL,
)
"""Long texts, comments, and what may be a key."""

_LONG_NUMBER: Final = re.compile(r"\d[\d_]{4000}|0[xob][\da-fA-F_]{1000}")
_MOST_BITS: Final = 4_000
"""Python cannot print a number of much more bits, so no error could quote it."""


def load(path: Path) -> Config:
    """Read and check a configuration file.

    Raises:
        ConfigError: the file is missing, is not TOML, or has invalid content.
    """
    text = read_text(path, "write one (docs/configuration.md shows how) or pass --config")
    config = loads(text, str(path), path.absolute().parent)
    faults = [*_check_files(config, text, path), *_check_functions(config, text, path)]
    if faults:
        raise ConfigError("\n".join(map(_shorten, faults)))
    return config


def _check_files(config: Config, text: str, path: Path) -> list[str]:
    """Return the faults of the files that `[security]` names (X5, X7)."""
    lines = Lines(text)
    return [
        f"{path}:{lines.line_of(['security', key])}: security.{key}: {fault}"
        for key, fault in tls_files.faults(config.security)
    ]


def _check_functions(config: Config, text: str, path: Path) -> list[str]:
    """Import the functions that `on_expire` names, also from modules beside the configuration file (L15).

    Returns:
        The faults of functions that cannot be imported.
    """
    beside = str(path.absolute().parent)
    if beside not in sys.path:
        sys.path.append(beside)
    faults: list[str] = []
    lines = Lines(text)
    for kind, entities in (("queue", config.queue), ("sow", config.sow)):
        for name, entity in entities.items():
            if entity.on_expire is not None:
                try:
                    expiry_function.resolve(entity.on_expire)
                except ValueError as error:
                    line = lines.line_of([kind, name, "on_expire"])
                    faults.append(f"{path}:{line}: {kind}.{name}.on_expire: {error}")
    return faults


def loads(text: str, name: str = "lapse.toml", beside: Path | None = None) -> Config:
    """Read and check a configuration.

    Args:
        text: the configuration.
        name: its name in errors.
        beside: directory of the files that it names; None = the current directory.

    Raises:
        ConfigError: the text is not TOML, or has invalid content.
    """
    tree = parse_toml(text, name)
    try:
        return Config.model_validate(tree, context={"beside": beside or Path()})
    except ValidationError as error:
        found, lines = error.errors(include_url=False), Lines(text)
        faults = [_shorten(_describe(fault, lines, name)) for fault in found[:_MOST_FAULTS]]
        if len(found) > _MOST_FAULTS:
            faults.append(f"{name}: and {len(found) - _MOST_FAULTS:,} faults more; correct these first")
        raise ConfigError("\n".join(faults)) from error


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigError: it is missing, cannot be read, or is not TOML.
    """
    return parse_toml(read_text(path, "write it, or name another one"), str(path))


def read_text(path: Path, if_missing: str) -> str:
    """Read a file.

    Args:
        path: the file.
        if_missing: what to do if there is none.

    Raises:
        ConfigError: it is missing, cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text("utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file; {if_missing}") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8, from byte {error.start} on"
        raise ConfigError(f"{path}: cannot be read: {reason}") from error


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """Parse TOML.

    Args:
        text: the text.
        name: its name in errors.

    Raises:
        ConfigError: it is not TOML, or nothing that lapse reads is like that.
    """
    if (line := _line_of_deep_key(text)) is not None:
        raise ConfigError(
            f"{name}:{line}: a key has more than {_MOST_PARTS} parts; lapse needs no more than five. A name with dots "
            "is written in quotes"
        )
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_describe_syntax(error, name)) from error
    except RecursionError as error:
        raise ConfigError(
            f"{name}: tables or lists are nested too deep; lapse needs no more than five levels"
        ) from error
    except ValueError as error:  # Python refuses decimal numbers of thousands of digits
        raise _long_number(text, name) from error
    if _has_long_number(tree):
        raise _long_number(text, name)
    return tree


def _line_of_deep_key(text: str) -> int | None:
    """Return the line of the first key with too many parts; None if there is none."""
    if all(line.count(".") < _MOST_PARTS for line in text.split("\n")):
        return None
    for match in _DOTTED.finditer(text):
        key = match["key"]
        if key is not None and key.count(".") >= _MOST_PARTS and len(re.findall(_PART, key)) > _MOST_PARTS:
            return text.count("\n", 0, match.start()) + 1
    return None


def _has_long_number(tree: object) -> bool:
    """Return whether a value is a hexadecimal, octal or binary number that cannot be printed."""
    left = [tree]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
        elif isinstance(value, int) and value.bit_length() > _MOST_BITS:
            return True
    return False


def _long_number(text: str, name: str) -> ConfigError:
    long = _LONG_NUMBER.search(text)
    place = name if long is None else f"{name}:{text.count(chr(10), 0, long.start()) + 1}"
    return ConfigError(f"{place}: a number is too long; none that lapse takes has more than 19 digits")


def _shorten(fault: str) -> str:
    """Return the text of a fault, shortened, because it may quote long values of the file."""
    if len(fault) <= _LONGEST_FAULT:
        return fault
    return f"{fault[: _LONGEST_FAULT // 2]} … {fault[-_LONGEST_FAULT // 2 :]}"


def _describe_syntax(error: tomllib.TOMLDecodeError, name: str) -> str:
    match = _PLACE.fullmatch(str(error))
    return f"{name}:{match[2]}: column {match[3]}: {match[1]}" if match else f"{name}: {error}"


def _describe(fault: Any, lines: Lines, name: str) -> str:
    path, message = describe_fault(fault)
    line = lines.line_of(path)
    where = f"{name}:{line}" if line else name
    return f"{where}: {'.'.join(path)}: {message}"


def describe_fault(fault: Any, table: Sequence[str] = (), model: type[BaseModel] = Config) -> tuple[list[str], str]:
    """Return a fault of pydantic in terms of the file.

    Args:
        fault: an error of a `ValidationError`.
        table: path of the table that was checked separately, from the top of the file.
        model: what the whole file is checked against.

    Returns:
        The path of the fault from the top of the file, and what is wrong.
    """
    kind, context = fault["type"], fault.get("ctx", {})
    known = context["place"] if kind == "placed" else (*table, *fault["loc"])
    path = [str(part) for part in known if part != "[key]"]
    if kind == "misfit":
        path.append(context["key"])
    message: str = fault["msg"].removeprefix("Value error, ")
    if kind == "extra_forbidden":
        value = None if table else fault.get("input")
        suggested = _suggestion(path, value) if model is Config else _known(path[-1], _keys_of_table(path[:-1], model))
        message = f"unknown key{suggested}"
    elif kind == "missing":
        message = "has to be given"
    elif kind in _EXPECTED:
        message = f"expected {_EXPECTED[kind].format(**context)}"
        if not path[0].endswith("security"):
            message += f", not {_SHORT.repr(fault['input'])}"
    return path, message


_COMPARED_CHARACTERS: Final = 60
"""How many characters of a name are compared, since the time grows with the product of the lengths."""


def _suggestion(path: list[str], value: object) -> str:
    """Return what to write instead of an unknown key with this value."""
    if len(path) == 1 and not isinstance(value, Mapping) and path[0] in _keys_beside(["lapse", ""]):
        return "; write it below [lapse]"
    found = _known(path[-1], _keys_beside(path))
    if "did you mean" not in found and isinstance(value, Mapping) and (named := _named_table(path)):
        return f"; if the name has a dot, quote it: [{named}]"
    return found


def _known(key: str, known: set[str]) -> str:
    """Return which key may be meant, or else all that are known."""
    from difflib import get_close_matches  # only for faults

    close = get_close_matches(key[:_COMPARED_CHARACTERS], sorted(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known here: {', '.join(sorted(known))}"


def _named_table(path: list[str]) -> str:
    """Return how a table is written whose name has the dots of this path; empty if it has no name of its own."""
    head = 3 if path[0] == "users" and path[2:3] == ["entitlements"] else 1
    if len(path) < head + 2 or path[0] not in _NAMED:
        return ""
    return f'{".".join(path[:head])}."{".".join(path[head:])}"'


_NAMED: Final = frozenset({"queue", "sow", "topic", "users"})
"""Tables that have tables with names."""


def _keys_beside(path: list[str]) -> set[str]:
    from lapse.config.entity_config import QueueConfig, SowConfig
    from lapse.config.retry import RetryConfig
    from lapse.config.topic import TopicConfig
    from lapse.config.user import EntitlementConfig, UserConfig

    if len(path) == 1:
        return set(Config.model_fields)
    if path[0] == "queue" and path[2:3] == ["retry"] and len(path) > 3:
        return set(RetryConfig.model_fields)
    user = EntitlementConfig if path[2:3] == ["entitlements"] and len(path) > 4 else UserConfig
    entities: dict[str, type[BaseModel]] = {
        "queue": QueueConfig,
        "sow": SowConfig,
        "topic": TopicConfig,
        "users": user,
    }
    model = entities.get(path[0])
    if model is None:
        section = Config.model_fields[path[0]].annotation
        model = section if isinstance(section, type) and issubclass(section, BaseModel) else Config
    return set(model.model_fields)


def _keys_of_table(path: list[str], model: type[BaseModel]) -> set[str]:
    """Return the keys of a table, as the file has them; `path` leads to it."""
    for key in path:
        field = next(one for name, one in model.model_fields.items() if key == (one.alias or name))
        kinds = (field.annotation, *get_args(field.annotation))
        model = next(one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel))
    return {field.alias or name for name, field in model.model_fields.items()}


class Lines:
    """The line of each key and table of a file, found in one pass.

    Args:
        text: the text of the file.
    """

    def __init__(self, text: str) -> None:
        self._first: dict[tuple[str, ...], int] = {}
        table: list[str] = []
        for number, line in enumerate(text.splitlines(), 1):
            if match := _TABLE.match(line):
                table = _split(match[1])
                here = table
            elif match := _KEY.match(line):
                here = [*table, *([match[1] or match[2]] if match[1] or match[2] else _split(match[3]))]
            else:
                continue
            for depth in range(1, min(len(here), _DEEPEST) + 1):
                self._first.setdefault(tuple(here[:depth]), number)

    def line_of(self, path: Sequence[str]) -> int:
        """Return the line of a key, or of the nearest table that contains it; 0 if neither is found."""
        for depth in range(min(len(path), _DEEPEST), 0, -1):
            if number := self._first.get(tuple(path[:depth])):
                return number
        return 0


def _split(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in re.findall(r'"[^"]*"|\'[^\']*\'|[^.]+', dotted)]
