"""String functions. Each is NULL for a value that is not a string, and for a result that is too long (X1)."""

from __future__ import annotations

from typing import Any

from lapse.core.expression.limits import MAX_STRING
from lapse.core.expression.operations import NUMBERS

_INTEGER_BITS = 4_096
"""Integers with more bits have no text, because conversion would be slow."""


def upper(value: Any) -> str | None:
    """Return the text in upper case."""
    return value.upper() if type(value) is str and len(value) <= MAX_STRING else None


def lower(value: Any) -> str | None:
    """Return the text in lower case."""
    return value.lower() if type(value) is str and len(value) <= MAX_STRING else None


def length(value: Any) -> int | None:
    """Return the number of code points."""
    return len(value) if type(value) is str else None


def _count(value: Any) -> int | None:
    """Return a number as a count of characters, without its fraction; None if it is not a number."""
    if type(value) not in NUMBERS or value != value:
        return None
    return int(max(-MAX_STRING, min(MAX_STRING, value)))


def substr(value: Any, start: Any, count: Any = MAX_STRING) -> str | None:
    """Return characters from a position: the first is 1, the last is -1, and 0 counts as 1, as in Spark."""
    first, number = _count(start), _count(count)
    if type(value) is not str or first is None or number is None:
        return None
    begin = first - 1 if first > 0 else len(value) + first if first < 0 else 0
    return value[max(0, begin) : max(0, begin + number)]


def left(value: Any, count: Any) -> str | None:
    """Return the first characters."""
    number = _count(count)
    return None if type(value) is not str or number is None else value[: max(0, number)]


def right(value: Any, count: Any) -> str | None:
    """Return the last characters."""
    number = _count(count)
    return None if type(value) is not str or number is None else value[max(0, len(value) - max(0, number)) :]


def text(value: Any) -> str | None:
    """Return a value as text."""
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
    """Return all arguments as text, concatenated."""
    texts = [text(value) for value in values]
    present = [one for one in texts if one is not None]
    if len(present) < len(texts) or sum(map(len, present)) > MAX_STRING:
        return None
    return "".join(present)


def replace(value: Any, old: Any, new: Any) -> str | None:
    """Return the text with every occurrence of `old` replaced."""
    if type(value) is not str or type(old) is not str or type(new) is not str:
        return None
    if not old:
        return value
    if len(value) + value.count(old) * (len(new) - len(old)) > MAX_STRING:
        return None
    return value.replace(old, new)


def trim(value: Any) -> str | None:
    """Return the text without white space at both ends."""
    return value.strip() if type(value) is str else None


def ltrim(value: Any) -> str | None:
    """Return the text without white space at its start."""
    return value.lstrip() if type(value) is str else None


def rtrim(value: Any) -> str | None:
    """Return the text without white space at its end."""
    return value.rstrip() if type(value) is str else None


def instr(value: Any, part: Any) -> int | None:
    """Return the position, from 1, of a part; 0 if it does not occur."""
    return value.find(part) + 1 if type(value) is str and type(part) is str else None


def instr_i(value: Any, part: Any) -> int | None:
    """Return the position, from 1, of a part, ignoring case; 0 if it does not occur."""
    return value.lower().find(part.lower()) + 1 if type(value) is str and type(part) is str else None


def strequal_i(left_value: Any, right_value: Any) -> bool | None:
    """Return whether texts are equal, ignoring case. A value that is not a string is unequal, as for `=`."""
    if left_value is None or right_value is None:
        return None
    both = type(left_value) is str and type(right_value) is str
    return both and left_value.lower() == right_value.lower()
