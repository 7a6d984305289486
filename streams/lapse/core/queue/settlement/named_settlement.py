"""A settlement by very many bookmarks, some at a time, so that others have their turn between (C60)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.error_code import ErrorCode
from lapse.core.queue.segments.segment import SIZE
from lapse.core.queue.settlement.settlement import Claim, Outcome
from lapse.core.queue.state import QueueState
from lapse.core.shard.refused import CommandRefused
from lapse.protocol.bookmark import BookmarkRange
from lapse.protocol.command import Command

READ_AT_ONCE: Final = 2_000
"""How many bookmarks are read at a time."""

WORK_AT_ONCE: Final = 1_000
"""How much is settled at a time: a bookmark counts as one, and each segment that messages stand in as more."""

SEGMENT_WORK: Final = 20
"""The cost of beginning with another segment, in bookmarks of one segment."""

MOST_REPEATED: Final = 1_000_000
"""The most messages that a command may name more than twice, or that may not be there (X7)."""


_FEW: Final = 1_000
"""Up to this number messages are examined one by one: most commands name messages in their order."""


class NamedSettlement:
    """What one command names by bookmarks, and what has become of that so far.

    Bookmarks in any order are settled in the order of their places, so that those of a segment are settled together,
    unless two of them overlap: then the first of the two counts (C16). Outcomes are told in the order of the command.

    Args:
        command: the command.
        state: the shard's.

    Attributes:
        outcomes: what has become of the messages so far.
        began: whether it is under way.
        overlaps: whether two bookmarks may name the same message, known once all are read.
    """

    def __init__(self, command: Command, state: QueueState) -> None:
        self.outcomes: list[Outcome] = []
        self.began = False
        self.overlaps = False
        self._command = command
        self._state = state
        self._there = len(state.segments) * SIZE + len(state.scheduled)
        self._named: list[Claim] = []
        self._looks = 0
        self._fault: CommandRefused | None = None
        self._order: NDArray[np.intp] | None = None
        """Where the claims stood in the command, if they are settled in another order."""
        self._claims: list[Claim] | None = None
        self._at = 0
        self._part: list[Claim] = []
        self._numbers: list[NDArray[np.intp]] = []
        """Of the outcomes of each part, which of the command's bookmarks each belongs to."""

    @property
    def is_small(self) -> bool:
        """Whether it is done at once."""
        return len(self._command.bookmarks) * SEGMENT_WORK <= WORK_AT_ONCE

    @property
    def is_read(self) -> bool:
        """Whether all bookmarks are read, or one cannot be."""
        return self._fault is not None or len(self._named) == len(self._command.bookmarks)

    @property
    def is_last(self) -> bool:
        """Whether all that is left can be settled at once, or nothing can be."""
        return self._fault is not None or (self.is_read and self._part_end() == len(self._ordered()))

    def read_some(self) -> None:
        """Read the next bookmarks, a bounded number; a fault is kept for `claims`."""
        self._read(READ_AT_ONCE)

    def _read(self, most: int) -> None:
        command, begin = self._command, len(self._named)
        try:
            some = [BookmarkRange.parse(text) for text in command.bookmarks[begin : begin + most]]
        except ValueError as error:
            self._fault = CommandRefused(f"{command.command}: {error}")
            return
        claims = [Claim(one.topic, one.partition, one.first, one.last, one.delivery_count, one.epoch) for one in some]
        self._named += claims
        self._looks += sum(min(claim.last - claim.first + 1, self._there) for claim in claims)
        if len(self._named) > 1 and self._looks > 2 * self._there + MOST_REPEATED:
            self._fault = CommandRefused(
                f"{command.command}: the {len(command.bookmarks)} bookmarks name {self._looks} messages or more, of "
                f"{self._there} that may be there. Name each message once",
                ErrorCode.TOO_COSTLY,
            )

    def claims(self) -> list[Claim]:
        """What the command names, in its order; what is not read yet is read now.

        Raises:
            CommandRefused: it names nothing that can be read, or the same messages over and over.
        """
        if not self.is_read:
            self._read(len(self._command.bookmarks))
        if self._fault is not None:
            raise self._fault
        return self._named

    def take(self) -> list[Claim]:
        """Return the claims that are settled next."""
        at, self._at, self.began = self._at, self._part_end(), True
        self._part = self._ordered()[at : self._at]
        return self._part

    def rest(self) -> list[Claim]:
        """Return the claims that are left."""
        claims = self._ordered()
        at, self._at = self._at, len(claims)
        self._part = claims[at:]
        return self._part

    def settled(self, outcomes: list[Outcome]) -> None:
        """Take in the outcomes of the claims that were returned last."""
        if self._order is not None and outcomes:
            self._numbers.append(_numbers_of(outcomes, self._part, self._order[self._at - len(self._part) : self._at]))
        self.outcomes += outcomes

    def as_named(self) -> list[Outcome]:
        """What has become of all, in the order of the command."""
        if self._order is None:
            return self.outcomes
        # The outcomes of one claim are ascending already, and the sort is stable.
        in_order = np.argsort(np.concatenate(self._numbers), kind="stable")
        return [self.outcomes[index] for index in in_order.tolist()]

    def _ordered(self) -> list[Claim]:
        if self._claims is None:
            claims = self.claims()
            if len(claims) > 1:
                self._order, self.overlaps = _ascending(claims)
            self._claims = claims if self._order is None else [claims[at] for at in self._order.tolist()]
        return self._claims

    def _part_end(self) -> int:
        """Where the part ends that begins now: with at least one claim."""
        claims, work, last = self._ordered(), 0, ("", 0, -1)
        segments = len(self._state.segments)
        for at in range(self._at, len(claims)):
            topic, partition, first, end = claims[at][:4]
            begun = min(end // SIZE - first // SIZE, segments) + (last != (topic, partition, first // SIZE))
            work += 1 + SEGMENT_WORK * begun
            if work > WORK_AT_ONCE and at > self._at:
                return at
            last = topic, partition, end // SIZE
        return len(claims)


def _places(claims: Sequence[Claim | Outcome]) -> tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.int64]]:
    """Source, first and last offset of each; sources are numbered by topic and partition."""
    sources = {name: number for number, name in enumerate(sorted({claim[:2] for claim in claims}))}
    numbers = np.array([sources[claim[:2]] for claim in claims], np.intp)
    return (
        numbers,
        np.array([claim[2] for claim in claims], np.int64),
        np.array([claim[3] for claim in claims], np.int64),
    )


def _ascending(claims: list[Claim]) -> tuple[NDArray[np.intp] | None, bool]:
    """The order of claims by source and offset, None if they have it already or two overlap; and whether two do."""
    if len(claims) < _FEW and all(one[:2] == other[:2] and one.last < other.first for one, other in pairwise(claims)):
        return None, False
    sources, firsts, lasts = _places(claims)
    order = np.lexsort((firsts, sources))
    sources, firsts, lasts = sources[order], firsts[order], lasts[order]
    if ((sources[1:] == sources[:-1]) & (lasts[:-1] >= firsts[1:])).any():
        return None, True
    return (None if (np.diff(order) > 0).all() else order), False


def _numbers_of(outcomes: list[Outcome], claims: list[Claim], order: NDArray[np.intp]) -> NDArray[np.intp]:
    """Which of some ascending claims each outcome belongs to, by where it stood in the command."""
    sources, firsts, _ = _places([*claims, *outcomes])  # numbered together
    of, at = sources[len(claims) :], firsts[len(claims) :]
    sources, firsts = sources[: len(claims)], firsts[: len(claims)]
    numbers = np.zeros(len(outcomes), np.intp)
    for source in np.unique(of).tolist():
        some = np.flatnonzero(of == source)
        begin, end = np.searchsorted(sources, (source, source + 1)).tolist()
        numbers[some] = order[begin + np.searchsorted(firsts[begin:end], at[some], "right") - 1]
    return numbers
