"""Durations as people write them: `"45s"`, `"500ms"`, `"5m"`, `"2h"`, `"1d"`."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import BeforeValidator

_FORM: Final = re.compile(r"([0-9]{1,15})\s*(ms|s|m|h|d)\Z")
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

LONGEST_MS: Final = 3_650_000 * 86_400_000
"""Ten thousand years. An instant so far from any record's timestamp is still within 64 bits."""


def is_duration(value: object) -> bool:
    """Whether it is a number with a unit."""
    return isinstance(value, str) and _FORM.match(value.strip()) is not None


def duration_ms(value: object) -> int:
    """Read a duration; the result is in ms.

    Raises:
        ValueError: not a number with a unit, or too long.
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
    """Read a duration of 1 ms or more.

    Raises:
        ValueError: no duration, too long, or zero.
    """
    period = duration_ms(value)
    if not period:
        raise ValueError(f"{value!r}: has to be longer than 0")
    return period


def in_words(period: int) -> str:
    """A duration in ms as it would be written, in the longest unit that fits: `90000` is `90s`."""
    unit, length = next(one for one in reversed(_UNIT_MS.items()) if period % one[1] == 0)
    return f"{period // length}{unit}"


DurationMs = Annotated[int, BeforeValidator(duration_ms)]
"""A field that is written as a duration and read in ms."""

PeriodMs = Annotated[int, BeforeValidator(period_ms)]
"""The same where 0 would make no sense."""
