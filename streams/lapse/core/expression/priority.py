"""The order that a priority expression's value stands for (X1)."""

from __future__ import annotations

import math
from typing import Any, Final

_GREATEST: Final = 2**64 - 1


def priority_of(value: Any) -> int | None:
    """A value as unsigned 64-bit priority, its fraction cut; None, the lowest of all, for what is not one.

    Only numbers are priorities: not booleans, not numeric texts, nor numbers outside 0 to 2^64 - 1.
    """
    if type(value) is float:
        if not math.isfinite(value):
            return None
        value = int(value)
    return value if type(value) is int and 0 <= value <= _GREATEST else None
