"""Operations: three-valued logic, comparison and arithmetic on any values, which never raise (X1).

Generated functions inline the common cases, and call these for the rest. The values are those of the language (None,
bool, int, float, str). All other values are opaque: not NULL, equal to nothing, and without order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from lapse.core.expression.message import Message

NUMBERS: Final = frozenset((int, float))
"""Types of numbers."""

NUMERIC: Final = frozenset((int, float, bool))
"""Types that compare as numbers: TRUE is 1, FALSE is 0."""

SCALARS: Final = frozenset((int, float, bool, str))
"""Types of all values except NULL and opaque ones."""


def truth(value: Any) -> bool | None:
    """Return the truth of a value: a boolean itself, or whether a number is not 0; None (unknown) for all others."""
    if value is True or value is False:
        return bool(value)
    if type(value) in NUMBERS and value == value:
        return bool(value)
    return None


def comparable(left: Any, right: Any) -> bool:
    """Return whether two values that are not NULL have an order, because both are numeric or both are strings."""
    kind = type(left)
    return type(right) in NUMERIC if kind in NUMERIC else kind is str and type(right) is str


def equal(left: Any, right: Any) -> bool | None:
    """`=`."""
    return None if left is None or right is None else comparable(left, right) and bool(left == right)


def unequal(left: Any, right: Any) -> bool | None:
    """`!=`, which is true for incomparable values, and for NaN."""
    return None if left is None or right is None else not (comparable(left, right) and left == right)


def less(left: Any, right: Any) -> bool | None:
    """`<`."""
    return None if left is None or right is None else comparable(left, right) and bool(left < right)


def less_or_equal(left: Any, right: Any) -> bool | None:
    """`<=`."""
    return None if left is None or right is None else comparable(left, right) and bool(left <= right)


def greater(left: Any, right: Any) -> bool | None:
    """`>`."""
    return None if left is None or right is None else comparable(left, right) and bool(left > right)


def greater_or_equal(left: Any, right: Any) -> bool | None:
    """`>=`."""
    return None if left is None or right is None else comparable(left, right) and bool(left >= right)


COMPARISONS: Final[dict[str, Callable[[Any, Any], bool | None]]] = {
    "=": equal,
    "!=": unequal,
    "<": less,
    "<=": less_or_equal,
    ">": greater,
    ">=": greater_or_equal,
}
"""The comparison operators by their text."""


def between(value: Any, low: Any, high: Any) -> bool | None:
    """`value >= low AND value <= high`."""
    above, below = greater_or_equal(value, low), less_or_equal(value, high)
    if above is False or below is False:
        return False
    return None if above is None or below is None else True


def is_in(value: Any, items: tuple[Any, ...]) -> bool | None:
    """`value = items[0] OR value = items[1] OR …`."""
    results = [equal(value, item) for item in items]
    return True if True in results else None if None in results else False


def _float(value: int | float) -> float:
    """Return a number as a float. Integers beyond the range become infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _arithmetic(left: Any, right: Any, apply: Callable[[Any, Any], Any]) -> int | float | None:
    if left is None or right is None:
        return None
    if type(left) not in NUMBERS or type(right) not in NUMBERS:
        return math.nan
    try:
        result: int | float = apply(left, right)
    except OverflowError:
        result = apply(_float(left), _float(right))
    return result


def add(left: Any, right: Any) -> int | float | None:
    """`+`."""
    return _arithmetic(left, right, lambda a, b: a + b)


def subtract(left: Any, right: Any) -> int | float | None:
    """`-`."""
    return _arithmetic(left, right, lambda a, b: a - b)


def multiply(left: Any, right: Any) -> int | float | None:
    """`*`."""
    return _arithmetic(left, right, lambda a, b: a * b)


def divide(left: Any, right: Any) -> int | float | None:
    """`/`, which always returns a float. Division by zero is NaN."""
    return _arithmetic(left, right, lambda a, b: a / b if b else math.nan)


def remainder(left: Any, right: Any) -> int | float | None:
    """`%`, with the sign of the dividend, as in SQL; NaN for a zero divisor or an infinite dividend."""
    return _arithmetic(left, right, _remainder)


def _remainder(left: int | float, right: int | float) -> int | float:
    if not right:
        return math.nan
    if type(left) is int and type(right) is int:
        result = abs(left) % abs(right)
        return -result if left < 0 else result
    dividend = _float(left)
    return math.nan if math.isinf(dividend) else math.fmod(dividend, _float(right))


def negative(value: Any) -> int | float | None:
    """Unary minus."""
    if type(value) in NUMBERS:
        result: int | float = -value
        return result
    return None if value is None else math.nan


ARITHMETIC: Final[dict[str, Callable[[Any, Any], int | float | None]]] = {
    "+": add,
    "-": subtract,
    "*": multiply,
    "/": divide,
    "%": remainder,
}
"""The arithmetic operators by their text."""


def like(value: Any, search: Callable[[str], object], longest: int) -> bool | None:
    """`LIKE` by regular expression; NULL for a text longer than `longest`."""
    if type(value) is not str:
        return None if value is None else False
    return None if len(value) > longest else search(value) is not None


def is_nan(value: Any) -> bool:
    """`IS NAN`."""
    return type(value) is float and value != value


def scalar(value: Any) -> Any:
    """Return a result for callers, in which an opaque value becomes NULL."""
    return value if value is None or type(value) in SCALARS else None


def resolve(value: Any, steps: tuple[str | int, ...]) -> Any:
    """Return the value at a path; None if there is none."""
    for step in steps:
        if isinstance(step, str):
            value = value.get(step) if type(value) is dict else None
        else:
            value = value[step] if type(value) is list and len(value) > step else None
    return value


def header(message: Message | None, name: str) -> str | None:
    """Return a header's text; NULL if it is absent, null or not UTF-8."""
    return None if message is None else _utf8(message.headers.get(name))


def key(message: Message | None) -> str | None:
    """Return the record key's text; NULL if it is absent or not UTF-8."""
    return None if message is None else _utf8(message.key)


def _utf8(data: bytes | None) -> str | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
