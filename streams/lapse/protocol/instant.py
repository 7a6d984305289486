"""Instants as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from lapse.core.days import LATEST_MS

_MOST_DIGITS: Final = 19

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

MILLISECOND: Final = timedelta(milliseconds=1)

_SECONDS: Final = range(10**8, 10**11)
"""Numbers that are instants from 1973 on as seconds, and from before that as milliseconds."""


def instant_ms(text: str) -> int:
    """Parse an instant, ISO 8601 (UTC by default) or ms since the epoch, and return ms since the epoch.

    Fractions are cut to the millisecond. An instant before 1970 becomes 0, because Kafka allows no negative ones.

    Raises:
        ValueError: the text is neither, is later than the year 9999, or looks like seconds.
    """
    if text.isascii() and text.isdigit():
        if len(text) > _MOST_DIGITS or int(text) > LATEST_MS:
            raise ValueError(f"{text[:_MOST_DIGITS]}… is later than the year 9999")
        check_unit(int(text))
        return int(text)
    read = datetime.fromisoformat(text)
    # Whole numbers: as a float, one instant in 160 would be a millisecond early.
    at_ms = ((read if read.tzinfo else read.replace(tzinfo=UTC)) - EPOCH) // MILLISECOND
    if at_ms > LATEST_MS:
        raise ValueError(f"{text} is later than the year 9999")
    return max(0, at_ms)


def check_unit(at_ms: int) -> None:
    """Check that an instant that somebody wrote is in ms since the epoch, not in seconds.

    Raises:
        ValueError: as ms it is before 1973, and as seconds it is not.
    """
    if at_ms in _SECONDS:
        raise ValueError(f"{at_ms} looks like seconds since the epoch; as ms that is {at_ms}000")
