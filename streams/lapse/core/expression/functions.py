"""Functions: the library of pure functions on values, which never raise (X1).

A string function of a value that is not a string is NULL. A numeric function of a value that is not a number is NaN.
Any function of NULL is NULL, unless its summary says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from lapse.core.days import LATEST_MS
from lapse.core.expression import numbers, strings
from lapse.core.expression.civil import EARLIEST_MS, Civil, civil_of, format_instant, parse_instant
from lapse.core.expression.message import Scalar
from lapse.core.expression.operations import NUMBERS, equal


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the library.

    Attributes:
        name: its canonical, upper-case name.
        result: the kind of its result: `boolean`, `number`, `string` or `any`; NULL is always possible.
        least: the least number of arguments.
        most: the greatest number of arguments; None = `MAX_ARGUMENTS`.
        implementation: the Python function that computes it.
        parameters: its parameters as the documentation shows them.
        summary: a description of its result.
    """

    name: str
    result: str
    least: int
    most: int | None
    implementation: Callable[..., Scalar]
    parameters: str
    summary: str


def coalesce(*values: Any) -> Any:
    """Return the first argument that is not NULL."""
    for value in values:
        if value is not None:
            return value
    return None


def null_if(value: Any, other: Any) -> Any:
    """Return NULL if both arguments are equal, else the first."""
    return None if equal(value, other) is True else value


def array_length(value: Any) -> int | None:
    """Return the number of elements of an array; NULL for other values."""
    return len(value) if type(value) is list else None


def array_contains(array: Any, value: Any) -> bool | None:
    """Return whether an array has an element equal to a value; NULL if it has none, but has a null element."""
    if type(array) is not list or value is None:
        return None
    unknown = False
    for element in array:
        result = equal(element, value)
        if result:
            return True
        unknown |= result is None
    return None if unknown else False


def parse_instant_value(value: Any) -> int | None:
    """Return the instant, ms since the epoch, of an RFC 3339 text or of a number; None outside the years 1 to 9999."""
    if type(value) is str:
        return parse_instant(value)
    if type(value) in NUMBERS and abs(value) < 1e15:
        instant = int(value // 1)
        return instant if EARLIEST_MS <= instant <= LATEST_MS else None
    return None


def _civil_part(select: Callable[[Civil], int]) -> Callable[[Any], int | None]:
    def field(value: Any) -> int | None:
        instant = parse_instant_value(value)
        civil = None if instant is None else civil_of(instant)
        return None if civil is None else select(civil)

    return field


def rfc3339(value: Any) -> str | None:
    """Return an instant as RFC 3339 text in UTC."""
    instant = parse_instant_value(value)
    return None if instant is None else format_instant(instant)


_LIBRARY: Final = (
    Function("UPPER", "string", 1, 1, strings.upper, "s", "upper case"),
    Function("LOWER", "string", 1, 1, strings.lower, "s", "lower case"),
    Function("LENGTH", "number", 1, 1, strings.length, "s", "number of characters (code points)"),
    Function("SUBSTR", "string", 2, 3, strings.substr, "s, start[, n]",
             "n characters (default: all) from position start; the first is 1, -1 is the last"),
    Function("LEFT", "string", 2, 2, strings.left, "s, n", "the first n characters"),
    Function("RIGHT", "string", 2, 2, strings.right, "s, n", "the last n characters"),
    Function("CONCAT", "string", 1, None, strings.concat, "x, …", "all arguments as text, one after the other"),
    Function("REPLACE", "string", 3, 3, strings.replace, "s, from, to",
             "s with every occurrence of from replaced; s itself if from is empty"),
    Function("TRIM", "string", 1, 1, strings.trim, "s", "s without white space at both ends"),
    Function("LTRIM", "string", 1, 1, strings.ltrim, "s", "s without white space at its start"),
    Function("RTRIM", "string", 1, 1, strings.rtrim, "s", "s without white space at its end"),
    Function("INSTR", "number", 2, 2, strings.instr, "s, t", "position of t in s from 1; 0 if it does not occur"),
    Function("INSTR_I", "number", 2, 2, strings.instr_i, "s, t", "the same, ignoring case"),
    Function("STREQUAL_I", "boolean", 2, 2, strings.strequal_i, "s, t", "whether s and t are equal, ignoring case"),
    Function("TEXT", "string", 1, 1, strings.text, "x", "a number, boolean or string as text"),
    Function("NUMBER", "number", 1, 1, numbers.number, "x",
             "a decimal text as number, NaN if it is none; TRUE is 1, FALSE 0"),
    Function("ABS", "number", 1, 1, numbers.absolute, "n", "absolute value"),
    Function("SIGN", "number", 1, 1, numbers.sign, "n", "-1, 0 or 1"),
    Function("ROUND", "number", 1, 2, numbers.round_half_up, "n[, digits]",
             "rounded to digits decimals (default 0, -15 to 15), halves away from zero"),
    Function("FLOOR", "number", 1, 1, numbers.floor, "n", "greatest integer not above n"),
    Function("CEILING", "number", 1, 1, numbers.ceiling, "n", "least integer not below n"),
    Function("TRUNC", "number", 1, 1, numbers.truncate, "n", "n without its fraction"),
    Function("SQRT", "number", 1, 1, numbers.square_root, "n", "square root; NaN below 0"),
    Function("MIN", "number", 1, None, numbers.least, "n, …", "the least argument"),
    Function("MAX", "number", 1, None, numbers.greatest, "n, …", "the greatest argument"),
    Function("UNIX_TIMESTAMP_MS", "number", 1, 1, parse_instant_value, "t", "milliseconds since 1970-01-01T00:00:00Z"),
    Function("RFC3339", "string", 1, 1, rfc3339, "t", "the instant as text: 2026-01-01T00:00:00.000Z"),
    Function("YEAR", "number", 1, 1, _civil_part(lambda c: c.year), "t", "year"),
    Function("MONTH", "number", 1, 1, _civil_part(lambda c: c.month), "t", "month, 1 to 12"),
    Function("DAY", "number", 1, 1, _civil_part(lambda c: c.day), "t", "day of the month, 1 to 31"),
    Function("HOUR", "number", 1, 1, _civil_part(lambda c: c.hour), "t", "hour, 0 to 23"),
    Function("MINUTE", "number", 1, 1, _civil_part(lambda c: c.minute), "t", "minute, 0 to 59"),
    Function("SECOND", "number", 1, 1, _civil_part(lambda c: c.second), "t", "second, 0 to 59"),
    Function("MILLISECOND", "number", 1, 1, _civil_part(lambda c: c.millisecond), "t", "millisecond, 0 to 999"),
    Function(
        "WEEKDAY", "number", 1, 1, _civil_part(lambda c: c.weekday), "t", "day of the week, Monday is 1, Sunday 7"
    ),
    Function("COALESCE", "any", 1, None, coalesce, "x, …", "the first argument that is not NULL"),
    Function("NULLIF", "any", 2, 2, null_if, "x, y", "NULL if x = y, else x"),
    Function("ARRAY_LENGTH", "number", 1, 1, array_length, "a", "number of elements; NULL if a is not an array"),
    Function("ARRAY_CONTAINS", "boolean", 2, 2, array_contains, "a, x", "whether an element of a equals x"),
)  # fmt: skip

FUNCTIONS: Final[dict[str, Function]] = {function.name: function for function in _LIBRARY}
"""The library by canonical name."""

ALIASES: Final = {"CEIL": "CEILING", "LEAST": "MIN", "GREATEST": "MAX", "SUBSTRING": "SUBSTR", "LEN": "LENGTH"}
"""Canonical names by other names of functions."""

ATTRIBUTES: Final = {"HEADER": 1, "KEY": 0, "TOPIC": 0, "PARTITION": 0, "OFFSET": 0, "TIMESTAMP_MS": 0}
"""The attributes of messages, which are written like functions, with their number of arguments."""
