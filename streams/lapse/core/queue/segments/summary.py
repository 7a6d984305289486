"""Segment summary: the part of a segment that stays in memory while its columns are spilled (Q16)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lapse.core.queue.segments.segment import NOBODY, Segment, State


class Outline(Protocol):
    """The interface that a segment and its summary share."""

    @property
    def used(self) -> int:
        """How many places are used."""

    @property
    def occupied(self) -> int:
        """How many messages are there."""

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
        """Return how many places are in a state."""

    def may_be_held_by(self, number: int) -> bool:
        """Return whether a subscription or transfer, given its number, may hold any of the messages."""


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """The summary of a spilled segment.

    Attributes:
        used: see `Outline`.
        occupied: see `Outline`.
        available: see `Outline`.
        min_deadline_ms: see `Outline`.
        min_until_ms: see `Outline`.
        most_deliveries: see `Outline`.
        most_cancels: see `Outline`.
        counts: number of places by state.
        holders: numbers of the subscriptions and transfers that hold messages.
    """

    used: int
    occupied: int
    available: int
    min_deadline_ms: int
    min_until_ms: int
    most_deliveries: int
    most_cancels: int
    counts: tuple[int, ...]
    holders: frozenset[int]

    @classmethod
    def from_segment(cls, segment: Segment) -> SegmentSummary:
        """Return the summary of a segment."""
        holders: frozenset[int] = frozenset()
        if segment.holder is not None:
            holders = frozenset(np.unique(segment.holder[: segment.used]).tolist()) - {NOBODY}
        return cls(
            segment.used,
            segment.occupied,
            segment.available,
            segment.min_deadline_ms,
            segment.min_until_ms,
            segment.most_deliveries,
            segment.most_cancels,
            tuple(np.bincount(segment.state[: segment.used], minlength=len(State)).tolist()),
            holders,
        )

    def count(self, state: State) -> int:
        """Return how many places are in a state."""
        return self.counts[state]

    def may_be_held_by(self, number: int) -> bool:
        """Return whether a subscription or transfer, given its number, may hold any of the messages."""
        return number in self.holders
