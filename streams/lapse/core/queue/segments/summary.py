"""Summaries: the part of a segment that stays in memory while its columns are in a spill store (Q16)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lapse.core.queue.segments.segment import NOBODY, Segment, State


class Outline(Protocol):
    """What can be asked of a segment wherever it is: of the segment itself, or of its summary."""

    @property
    def used(self) -> int:
        """How many places are taken."""

    @property
    def held(self) -> int:
        """How many of them are not empty."""

    @property
    def available(self) -> int:
        """How many messages are available."""

    @property
    def min_deadline_ms(self) -> int:
        """No unleased message expires before this instant."""

    @property
    def min_until_ms(self) -> int:
        """No lease or delay ends before this instant."""

    @property
    def most_deliveries(self) -> int:
        """The greatest delivery count."""

    @property
    def most_cancels(self) -> int:
        """The greatest cancel count."""

    def count(self, state: State) -> int:
        """How many places are in a state."""

    def may_be_held_by(self, number: int) -> bool:
        """Whether a subscription may hold any of the messages."""


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """What stands on the outside of a segment that was put away.

    Attributes:
        used: see `Outline`.
        held: see `Outline`.
        available: see `Outline`.
        min_deadline_ms: see `Outline`.
        min_until_ms: see `Outline`.
        most_deliveries: see `Outline`.
        most_cancels: see `Outline`.
        counts: places by state.
        holders: numbers of the subscriptions that hold something.
    """

    used: int
    held: int
    available: int
    min_deadline_ms: int
    min_until_ms: int
    most_deliveries: int
    most_cancels: int
    counts: tuple[int, ...]
    holders: frozenset[int]

    @classmethod
    def of(cls, segment: Segment) -> SegmentSummary:
        """Write a segment's summary."""
        holders: frozenset[int] = frozenset()
        if segment.holder is not None:
            holders = frozenset(np.unique(segment.holder[: segment.used]).tolist()) - {NOBODY}
        return cls(
            segment.used,
            segment.held,
            segment.available,
            segment.min_deadline_ms,
            segment.min_until_ms,
            segment.most_deliveries,
            segment.most_cancels,
            tuple(np.bincount(segment.state[: segment.used], minlength=len(State)).tolist()),
            holders,
        )

    def count(self, state: State) -> int:
        """How many places are in a state."""
        return self.counts[state]

    def may_be_held_by(self, number: int) -> bool:
        """Whether a subscription may hold any of the messages."""
        return number in self.holders
