"""Durations as people write them: `"45s"`, `"500ms"`, `"5m"`, `"2h"`, `"1d"`."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import BeforeValidator

_FORM: Final = re.compile(r"(\d{1,15})\s*(ms|s|m|h|d)\Z")
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(value: object) -> int:
    """Read a duration; the result is in ms.

    Raises:
        ValueError: not a number with a unit.
    """
    if isinstance(value, str) and (match := _FORM.match(value.strip())):
        return int(match[1]) * _UNIT_MS[match[2]]
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError(f'{value} has no unit; write "{value}ms" or "{value}s"')
    raise ValueError('expected a duration such as "500ms", "45s", "5m", "2h" or "1d"')


DurationMs = Annotated[int, BeforeValidator(duration_ms)]
"""A field that is written as a duration and read in ms."""
