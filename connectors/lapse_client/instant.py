"""Instants as people read and write them."""

from __future__ import annotations

from datetime import UTC, datetime


def instant_ms(text: str) -> int:
    """Read an instant, ISO 8601 (UTC unless it says otherwise) or ms since the epoch, as ms since the epoch.

    Raises:
        ValueError: it is neither.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    read = datetime.fromisoformat(text)
    return int((read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp() * 1000)


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
