"""Ticks: records of a commands topic that only make a shard check its timers."""

from __future__ import annotations

from typing import Final

TICK_KEY: Final = b"\x00tick"
"""The record key that identifies a tick, whose value is empty."""
