"""Modes of a queue: the settings that are one of a few words. Reading `lapse.toml` needs no other part of a shard."""

from __future__ import annotations

from enum import StrEnum


class Semantics(StrEnum):
    """Whether a crash may repeat a delivery or lose it (Q4 to Q6)."""

    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"


class Fairness(StrEnum):
    """Which subscription gets the next message (Q7)."""

    FAST = "fast"
    ROUND_ROBIN = "round-robin"
    PROPORTIONAL = "proportional"


class Leasing(StrEnum):
    """Who may settle a leased message: only its holder, or anyone (Q8)."""

    STRICT = "strict"
    SUBLET = "sublet"
