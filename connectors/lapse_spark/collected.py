"""Timestamps that Spark has collected. They have no zone, and are in this machine's zone, not the session's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from lapse.core.days import DAY_MS, LATEST_MS

LAST_MS: Final = LATEST_MS - DAY_MS
"""The end of 30 December 9999, UTC, ms since the epoch: the latest timestamp of a DataFrame of lapse's.

Python's datetime ends a day later, and collected timestamps are in local time."""


def in_utc(at: datetime) -> datetime:
    """Convert a collected timestamp, or one with a zone, to UTC."""
    return at.astimezone(UTC)
