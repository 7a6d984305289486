"""Instants as people read and write them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_LATEST_MS: Final = 253_402_300_799_999
"""The end of the year 9999, ms since the epoch: the last instant that ISO 8601 can say."""

_MOST_DIGITS: Final = 19


def instant_ms(text: str) -> int:
    """Read an instant, ISO 8601 (UTC unless it says otherwise) or ms since the epoch, as ms since the epoch.

    What is before 1970 is before everything, as 0 is: Kafka takes no negative instant.

    Raises:
        ValueError: it is neither, or later than the year 9999.
    """
    if text.isascii() and text.isdigit():
        if len(text) > _MOST_DIGITS or int(text) > _LATEST_MS:
            raise ValueError(f"{text[:_MOST_DIGITS]}… is later than the year 9999")
        return int(text)
    read = datetime.fromisoformat(text)
    return max(0, int((read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp() * 1000))


def shown(at_ms: int | None) -> str:
    """Write an instant, ms since the epoch, for a table whose heading says UTC; empty for None.

    It is as short as it can be without a loss: `2026-01-31 12:00:00`, with `.250` behind it where it has ms. The
    options that take an instant read it back.
    """
    if at_ms is None:
        return ""
    try:
        found = datetime.fromtimestamp(at_ms / 1000, UTC).replace(tzinfo=None)
    except (ValueError, OverflowError, OSError):
        return f"epoch + {at_ms} ms"  # beyond the calendar's years
    return found.isoformat(" ", timespec="milliseconds").removesuffix(".000")
