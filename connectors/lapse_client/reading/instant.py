"""Instants as readable texts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_LATEST_MS: Final = 253_402_300_799_999
"""The end of the year 9999, ms since the epoch: the last instant that ISO 8601 can express."""

_MOST_DIGITS: Final = 19


def instant_ms(text: str) -> int:
    """Parse an instant, ISO 8601 (UTC by default) or ms since the epoch, and return ms since the epoch.

    An instant before 1970 becomes 0, because Kafka allows no negative ones.

    Raises:
        ValueError: the text is neither, or is later than the year 9999.
    """
    if text.isascii() and text.isdigit():
        if len(text) > _MOST_DIGITS or int(text) > _LATEST_MS:
            raise ValueError(f"{text[:_MOST_DIGITS]}… is later than the year 9999")
        return int(text)
    read = datetime.fromisoformat(text)
    return max(0, int((read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp() * 1000))


def shown(at_ms: int | None) -> str:
    """Format an instant, ms since the epoch, for a table whose heading says UTC; empty for None.

    The text is `2026-01-31 12:00:00`, with `.250` added if it has milliseconds. `instant_ms` reads it back.
    """
    if at_ms is None:
        return ""
    try:
        found = datetime.fromtimestamp(at_ms / 1000, UTC).replace(tzinfo=None)
    except (ValueError, OverflowError, OSError):
        return f"epoch + {at_ms} ms"  # beyond the range of `datetime`
    return found.isoformat(" ", timespec="milliseconds").removesuffix(".000")
