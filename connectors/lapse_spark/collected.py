"""What Spark has collected: its timestamps come without a zone, in that of this machine, whatever the session's is."""

from __future__ import annotations

from datetime import UTC, datetime


def in_utc(at: datetime) -> datetime:
    """An instant in UTC, of a collected timestamp, or of one that has a zone already."""
    return at.astimezone(UTC)
