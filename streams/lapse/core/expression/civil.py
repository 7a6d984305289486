"""Civil time: converts RFC 3339 texts and UTC fields to and from milliseconds since the epoch (X1)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from lapse.core.days import DAY_MS, LATEST_MS, date_of, days_since_1970, time_of_day_ms, utc_offset_ms

_RFC_3339: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?([Zz]|[+-][0-9]{2}:?[0-9]{2})?)?"
)
EARLIEST_MS: Final = -62_135_596_800_000  # 0001-01-01


class Civil(NamedTuple):
    """An instant as fields, in UTC; `weekday` is 1 for Monday to 7 for Sunday (ISO 8601)."""

    year: int
    month: int
    day: int
    hour: int
    minute: int
    second: int
    millisecond: int
    weekday: int


def parse_instant(text: str) -> int | None:
    """Return the milliseconds since the epoch of an RFC 3339 text, or None.

    A date alone means its midnight, and a time without a zone is UTC. Digits beyond the millisecond are truncated.
    """
    match = _RFC_3339.fullmatch(text) if len(text) <= 40 else None
    if match is None:
        return None
    year, month, day = int(match[1]), int(match[2]), int(match[3])
    hour, minute, second = int(match[4] or 0), int(match[5] or 0), int(match[6] or 0)
    days, of_day_ms = days_since_1970(year, month, day), time_of_day_ms(hour, minute, second, match[7] or "")
    offset_ms: int | None = 0
    if match[8] and match[8] not in "Zz":
        digits = match[8].replace(":", "")
        offset_ms = utc_offset_ms(digits[0], int(digits[1:3]), int(digits[3:5]))
    if year < 1 or days is None or of_day_ms is None or offset_ms is None:
        return None
    instant = days * DAY_MS + of_day_ms - offset_ms
    return instant if EARLIEST_MS <= instant <= LATEST_MS else None


def civil_of(instant_ms: int) -> Civil | None:
    """Return the fields of an instant; None outside the years 1 to 9999."""
    if not EARLIEST_MS <= instant_ms <= LATEST_MS:
        return None
    days, milliseconds = divmod(instant_ms, DAY_MS)
    year, month, day = date_of(days)
    seconds, millisecond = divmod(milliseconds, 1000)
    return Civil(
        year,
        month,
        day,
        seconds // 3600,
        seconds // 60 % 60,
        seconds % 60,
        millisecond,
        (days + 3) % 7 + 1,
    )


def format_instant(instant_ms: int) -> str | None:
    """Return an instant as RFC 3339 text, such as `2026-01-01T00:00:00.000Z`; None outside the years 1 to 9999."""
    civil = civil_of(instant_ms)
    if civil is None:
        return None
    date = f"{civil.year:04d}-{civil.month:02d}-{civil.day:02d}"
    return f"{date}T{civil.hour:02d}:{civil.minute:02d}:{civil.second:02d}.{civil.millisecond:03d}Z"
