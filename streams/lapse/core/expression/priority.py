"""Priority: the rank that the value of a priority expression means (X1)."""

from __future__ import annotations

import math
from typing import Any, Final

_GREATEST: Final = 2**64 - 1


def priority_of(value: Any) -> int | None:
    """Return a value as unsigned 64-bit priority without its fraction; None, the lowest, if it is not a priority.

    Only numbers from 0 to 2^64 - 1 are priorities, neither booleans nor numeric texts.
    """
    if type(value) is float:
        if not math.isfinite(value):
            return None
        value = int(value)
    return value if type(value) is int and 0 <= value <= _GREATEST else None
