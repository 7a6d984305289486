"""Ticks: records of a commands topic that make a shard look at its timers, and change nothing."""

from __future__ import annotations

from typing import Final

TICK_KEY: Final = b"\x00tick"
"""The key by which a shard knows a tick; the value is empty."""
