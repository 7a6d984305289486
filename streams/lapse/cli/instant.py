"""Instants as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


def shown(at_ms: int | None) -> str:
    """Write an instant, ms since the epoch, as ISO 8601 in UTC; empty for None."""
    if at_ms is None:
        return ""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"  # beyond the calendar's years
