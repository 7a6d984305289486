"""Causes of retries, and the longest wait. Reading `lapse.toml` needs nothing else of retries (Q24)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from lapse.core.days import DAY_MS

LONGEST_MS: Final = DAY_MS
"""The longest wait unless the queue configures another: a day."""


class Cause(StrEnum):
    """Why a message returned: its consumer cancelled it, its lease ended, or its consumer missed heartbeats."""

    CANCEL = "cancel"
    LEASE = "lease"
    LOST = "lost"
