"""Numeric functions. Each is NaN for a value that is not a number, and NULL for NULL (X1)."""

from __future__ import annotations

import math
import re
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

from lapse.core.expression.operations import NUMBERS

_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_PRECISE: Final = Context(prec=50)
_LONGEST: Final = 400
_WHOLE: Final = 2.0**53
"""Floats of at least this magnitude have no fraction."""


def _non_number_result(value: Any) -> float | None:
    """Return the result of a numeric function for a value that is not a number."""
    return None if value is None else math.nan


def number(value: Any) -> int | float | None:
    """Return a decimal text, number or boolean as a number."""
    if type(value) is bool:
        return int(value)
    if type(value) in NUMBERS:
        result: int | float = value
        return result
    digits = value.strip() if type(value) is str and len(value) <= _LONGEST else ""
    if not _DECIMAL.fullmatch(digits):
        return _non_number_result(value)
    return int(digits) if _INTEGER.fullmatch(digits) else float(digits)


def absolute(value: Any) -> int | float | None:
    """Return the absolute value."""
    if type(value) not in NUMBERS:
        return _non_number_result(value)
    result: int | float = abs(value)
    return result


def sign(value: Any) -> int | float | None:
    """Return -1, 0 or 1."""
    if type(value) not in NUMBERS or value != value:
        return _non_number_result(value)
    return int(value > 0) - int(value < 0)


def _finite(value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _special_result(value: Any) -> float | None:
    """Return infinities and NaN unchanged, and NaN or NULL for other values."""
    return value if isinstance(value, float) else _non_number_result(value)


def floor(value: Any) -> int | float | None:
    """Return the greatest integer not above the value."""
    return math.floor(value) if _finite(value) else _special_result(value)


def ceiling(value: Any) -> int | float | None:
    """Return the least integer not below the value."""
    return math.ceil(value) if _finite(value) else _special_result(value)


def truncate(value: Any) -> int | float | None:
    """Return the value without its fraction."""
    return math.trunc(value) if _finite(value) else _special_result(value)


def square_root(value: Any) -> float | None:
    """Return the square root; NaN below 0."""
    if type(value) not in NUMBERS:
        return _non_number_result(value)
    try:
        return math.sqrt(value) if value >= 0 else math.nan
    except OverflowError:
        return math.inf


def round_half_up(value: Any, digits: Any = 0) -> int | float | None:
    """Return the value rounded in decimal, halves away from zero; an integer unless `digits` is positive."""
    if value is None or digits is None:
        return None
    if type(value) not in NUMBERS or type(digits) is not int or not -15 <= digits <= 15:
        return math.nan
    if not _finite(value):
        return _special_result(value)
    if type(value) is float:
        if digits > 0:
            return value if abs(value) >= _WHOLE else float(_quantized(value, digits))
        value = (
            int(_quantized(value, 0)) if digits == 0 and abs(value) < _WHOLE else _round_to_power_of_ten(value, digits)
        )
        return int(value)
    return int(_round_to_power_of_ten(value, digits))


def _quantized(value: float, digits: int) -> Decimal:
    """Return the shortest decimal representation of a float, rounded."""
    return Decimal(repr(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP, _PRECISE)


def _round_to_power_of_ten(value: int | float, digits: int) -> int:
    """Return a number rounded to a power of ten."""
    if digits >= 0:
        return int(value)
    unit = int(10**-digits)
    rounded = (abs(int(value)) + unit // 2) // unit * unit
    return rounded if value >= 0 else -rounded


def least(*values: Any) -> int | float | None:
    """Return the least argument; NULL if one is NULL, NaN if one is not a number."""
    return _extreme(values, min)


def greatest(*values: Any) -> int | float | None:
    """Return the greatest argument; NULL if one is NULL, NaN if one is not a number."""
    return _extreme(values, max)


def _extreme(values: tuple[Any, ...], choose: Any) -> int | float | None:
    if None in values:
        return None
    if any(type(value) not in NUMBERS or value != value for value in values):
        return math.nan
    result: int | float = choose(values)
    return result
