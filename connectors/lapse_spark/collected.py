"""Timestamps that Spark has collected. They have no zone, and are in this machine's zone, not the session's."""

from __future__ import annotations

from datetime import UTC, datetime


def in_utc(at: datetime) -> datetime:
    """Convert a collected timestamp, or one with a zone, to UTC."""
    return at.astimezone(UTC)
