"""Durations as people write them, such as `"45s"`, `"500ms"`, `"5m"`, `"2h"` and `"1d"`."""

from __future__ import annotations

import re
from typing import Final

_FORM: Final = re.compile(r"([0-9]{1,15})\s*(ms|s|m|h|d)\Z")
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

LONGEST_MS: Final = 3_650_000 * 86_400_000
"""Ten thousand years. Any record's timestamp plus this duration still fits into 64 bits."""


def is_duration(value: object) -> bool:
    """Return whether a value is a number with a unit."""
    return isinstance(value, str) and _FORM.match(value.strip()) is not None


def duration_ms(value: object) -> int:
    """Parse a duration. Return it in ms.

    Raises:
        ValueError: the value is not a number with a unit, or too long.
    """
    if isinstance(value, str) and (match := _FORM.match(value.strip())):
        period_ms = int(match[1]) * _UNIT_MS[match[2]]
        if period_ms > LONGEST_MS:
            raise ValueError(f"{value!r} is longer than 3650000d, the longest duration")
        return period_ms
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError(f'{value} has no unit; write "{value}ms" or "{value}s"')
    raise ValueError(f'expected a duration such as "500ms", "45s", "5m", "2h" or "1d", not {value!r}')


def period_ms(value: object) -> int:
    """Parse a duration of at least 1 ms. Return it in ms.

    Raises:
        ValueError: the value is not a duration, too long, or zero.
    """
    period = duration_ms(value)
    if not period:
        raise ValueError(f"{value!r}: has to be longer than 0")
    return period


def in_words(period: int) -> str:
    """Return a duration in ms as text, in the largest unit without a fraction: `90000` is `90s`."""
    unit, length = next(one for one in reversed(_UNIT_MS.items()) if period % one[1] == 0)
    return f"{period // length}{unit}"
