"""Days: dates of the proleptic Gregorian calendar as day numbers, and back; times of day (X1, L3)."""

from __future__ import annotations

from typing import Final

DAY_MS: Final = 86_400_000

LAST_DAY: Final = 2_932_896
"""The last day of the year 9999, in days since 1970. Later days have no four-digit year."""

LATEST_MS: Final = (LAST_DAY + 1) * DAY_MS - 1
"""The end of the year 9999, ms since the epoch: the last instant that RFC 3339 can express."""

_MONTH_DAYS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_ERA_DAYS: Final = 146_097
"""Days in 400 years, after which the calendar repeats."""


def days_since_1970(year: int, month: int, day: int) -> int | None:
    """Return the number of days from 1970-01-01 to a date; None if the date does not exist."""
    if not 1 <= month <= 12 or not 1 <= day <= _MONTH_DAYS[month - 1] + (month == 2 and _is_leap(year)):
        return None
    # The year is taken to begin in March, so that a leap day is its last day.
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * _ERA_DAYS + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


def date_of(days: int) -> tuple[int, int, int]:
    """Return year, month and day of the date that is a number of days after 1970-01-01."""
    era, day_of_era = divmod(days + 719_468, _ERA_DAYS)
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    from_march = (5 * day_of_year + 2) // 153
    month = from_march + 3 if from_march < 10 else from_march - 9
    return era * 400 + year_of_era + (month <= 2), month, day_of_year - (153 * from_march + 2) // 5 + 1


def time_of_day_ms(hour: int, minute: int, second: int, fraction: str = "") -> int | None:
    """Return a time of day, ms since midnight; None if there is no such time. A leap second is one after 59.

    Args:
        hour: the hour.
        minute: the minute.
        second: the second.
        fraction: digits of the fraction of the second, which are cut to the millisecond.
    """
    if hour > 23 or minute > 59 or second > 60:
        return None
    return ((hour * 60 + minute) * 60 + second) * 1_000 + int(fraction[:3].ljust(3, "0"))


def utc_offset_ms(sign: str, hours: int, minutes: int) -> int | None:
    """Return how much a zone is ahead of UTC, ms; None if there is no such offset. `sign` is `+` or `-`."""
    if hours > 23 or minutes > 59:
        return None
    return (hours * 60 + minutes) * 60_000 * (-1 if sign == "-" else 1)


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
