"""String functions: NULL for anything that is not a string, and for results that would be too long (X1)."""

from __future__ import annotations

from typing import Any

from lapse.core.expression.limits import MAX_STRING
from lapse.core.expression.operations import NUMBERS

_INTEGER_BITS = 4_096
"""Integers longer than this have no text: making it would be slow."""


def upper(value: Any) -> str | None:
    """Upper case."""
    return value.upper() if type(value) is str and len(value) <= MAX_STRING else None


def lower(value: Any) -> str | None:
    """Lower case."""
    return value.lower() if type(value) is str and len(value) <= MAX_STRING else None


def length(value: Any) -> int | None:
    """Number of code points."""
    return len(value) if type(value) is str else None


def _count(value: Any) -> int | None:
    """A number as a count of characters, its fraction cut; None if it is none."""
    if type(value) not in NUMBERS or value != value:
        return None
    return int(max(-MAX_STRING, min(MAX_STRING, value)))


def substr(value: Any, start: Any, count: Any = MAX_STRING) -> str | None:
    """Characters from a position: the first is 1, the last -1; 0 counts as 1, as in Spark."""
    first, number = _count(start), _count(count)
    if type(value) is not str or first is None or number is None:
        return None
    begin = first - 1 if first > 0 else len(value) + first if first < 0 else 0
    return value[max(0, begin) : max(0, begin + number)]


def left(value: Any, count: Any) -> str | None:
    """The first characters."""
    number = _count(count)
    return None if type(value) is not str or number is None else value[: max(0, number)]


def right(value: Any, count: Any) -> str | None:
    """The last characters."""
    number = _count(count)
    return None if type(value) is not str or number is None else value[max(0, len(value) - max(0, number)) :]


def text(value: Any) -> str | None:
    """A value as text."""
    if type(value) is str:
        return value
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is int:
        return str(value) if value.bit_length() <= _INTEGER_BITS else None
    if type(value) is float:
        if value != value:
            return "NaN"
        return repr(value) if value - value == 0 else "Infinity" if value > 0 else "-Infinity"
    return None


def concat(*values: Any) -> str | None:
    """All arguments as text."""
    texts = [text(value) for value in values]
    present = [one for one in texts if one is not None]
    if len(present) < len(texts) or sum(map(len, present)) > MAX_STRING:
        return None
    return "".join(present)


def replace(value: Any, old: Any, new: Any) -> str | None:
    """Every occurrence replaced."""
    if type(value) is not str or type(old) is not str or type(new) is not str:
        return None
    if not old:
        return value
    if len(value) + value.count(old) * (len(new) - len(old)) > MAX_STRING:
        return None
    return value.replace(old, new)


def trim(value: Any) -> str | None:
    """Without white space at both ends."""
    return value.strip() if type(value) is str else None


def ltrim(value: Any) -> str | None:
    """Without white space at the start."""
    return value.lstrip() if type(value) is str else None


def rtrim(value: Any) -> str | None:
    """Without white space at the end."""
    return value.rstrip() if type(value) is str else None


def instr(value: Any, part: Any) -> int | None:
    """Position from 1, or 0."""
    return value.find(part) + 1 if type(value) is str and type(part) is str else None


def instr_i(value: Any, part: Any) -> int | None:
    """Position from 1, or 0, ignoring case."""
    return value.lower().find(part.lower()) + 1 if type(value) is str and type(part) is str else None


def strequal_i(left_value: Any, right_value: Any) -> bool | None:
    """Equality that ignores case; not a string means not equal, as for `=`."""
    if left_value is None or right_value is None:
        return None
    both = type(left_value) is str and type(right_value) is str
    return both and left_value.lower() == right_value.lower()
