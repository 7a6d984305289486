"""Named settlement: settles very many bookmarks in parts, so that other work of the shard can go on (C60)."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.error_code import ErrorCode
from lapse.core.queue.segments.segment import SIZE
from lapse.core.queue.settlement.alike_bookmarks import parse_alike
from lapse.core.queue.settlement.alike_claims import AlikeClaims, joined
from lapse.core.queue.settlement.settlement import Claim, Outcome, claims_of
from lapse.core.queue.state import QueueState
from lapse.core.shard.refused import CommandRefused
from lapse.protocol.bookmark import parse_ranges
from lapse.protocol.command import Command

READ_AT_ONCE: Final = 2_000
"""How many bookmarks are parsed at a time."""

WORK_AT_ONCE: Final = 2_000
"""How much work is done at a time. A bookmark counts as 1, and each segment as `SEGMENT_WORK`."""

SEGMENT_WORK: Final = 20
"""The cost of starting with another segment, in bookmarks."""

_FIRST, _LAST = itemgetter(2), itemgetter(3)

MOST_REPEATED: Final = 1_000_000
"""A command may name at most twice as many messages as the shard may hold, plus this number (X7)."""


class NamedSettlement:
    """The bookmarks of one command, and their outcomes so far.

    Bookmarks are settled by source and offset, so that those of a segment are settled together. If two overlap, they
    are settled in the order of the command instead, so that the first of the two counts (C16). Outcomes are returned in
    the order of the command.

    Args:
        command: the command.
        state: the shard's state.

    Attributes:
        outcomes: the outcomes so far.
        began: whether settling has begun.
        overlaps: whether two bookmarks may name the same message, set once all are parsed.
    """

    def __init__(self, command: Command, state: QueueState) -> None:
        self.outcomes: list[Outcome] = []
        self.began = False
        self.overlaps = False
        self._command = command
        self._state = state
        self._there = len(state.segments) * SIZE + len(state.scheduled)
        self._named: Sequence[Claim] = []
        self._looks = 0
        self._fault: CommandRefused | None = None
        self._order: NDArray[np.intp] | None = None
        """The claims' indexes in the command, in the order of settling; None if that is the command's."""
        self._claims: Sequence[Claim] | None = None
        self._work: tuple[NDArray[np.int64], NDArray[np.bool_]] | None = None
        self._at = 0
        self._part: Sequence[Claim] = []
        self._numbers: list[NDArray[np.intp]] = []
        """For each part, the index in the command of each outcome's bookmark."""

    @property
    def is_small(self) -> bool:
        """Whether the command can be settled at once."""
        return len(self._command.bookmarks) * SEGMENT_WORK <= WORK_AT_ONCE

    @property
    def is_read(self) -> bool:
        """Whether all bookmarks are parsed, or one is invalid."""
        return self._fault is not None or len(self._named) == len(self._command.bookmarks)

    @property
    def is_last(self) -> bool:
        """Whether the rest can be settled at once, or a bookmark is invalid."""
        return self._fault is not None or (self.is_read and self._part_end() == len(self._ordered()))

    def read_part(self) -> None:
        """Parse the next `READ_AT_ONCE` bookmarks. `claims` raises a fault that is found."""
        self._read(READ_AT_ONCE)

    def _read(self, most: int) -> None:
        command, begin = self._command, len(self._named)
        try:
            texts = command.bookmarks[begin : begin + most]
            alike = parse_alike(texts)
            claims: Sequence[Claim] = claims_of(parse_ranges(texts)) if alike is None else alike
        except ValueError as error:
            self._fault = CommandRefused(f"{command.command}: {error}")
            return
        if alike is not None:
            spans = int(alike.lasts.sum() - alike.firsts.sum())
        else:
            spans = sum(map(_LAST, claims)) - sum(map(_FIRST, claims))
        self._named = joined(self._named, claims)
        if spans >= self._there:
            self._looks += sum(min(claim.last - claim.first + 1, self._there) for claim in claims)
        else:
            self._looks += spans + len(claims)
        if len(self._named) > 1 and self._looks > 2 * self._there + MOST_REPEATED:
            self._fault = CommandRefused(
                f"{command.command}: the {len(command.bookmarks)} bookmarks name {self._looks} messages or more, of "
                f"{self._there} that may be there. Name each message once",
                ErrorCode.TOO_COSTLY,
            )

    def claims(self) -> Sequence[Claim]:
        """Return the claims in the order of the command, parsing the rest of the bookmarks.

        Raises:
            CommandRefused: a bookmark is invalid, or the command names the same messages too often.
        """
        if not self.is_read:
            self._read(len(self._command.bookmarks))
        if self._fault is not None:
            raise self._fault
        return self._named

    def take_part(self) -> Sequence[Claim]:
        """Return the claims of the next part."""
        at, self._at, self.began = self._at, self._part_end(), True
        self._part = self._ordered()[at : self._at]
        return self._part

    def take_rest(self) -> Sequence[Claim]:
        """Return all remaining claims."""
        claims = self._ordered()
        at, self._at = self._at, len(claims)
        self._part = claims[at:]
        return self._part

    def add_outcomes(self, outcomes: list[Outcome]) -> None:
        """Add the outcomes of the claims returned last."""
        if self._order is not None and outcomes:
            self._numbers.append(_numbers_of(outcomes, self._part, self._order[self._at - len(self._part) : self._at]))
        self.outcomes += outcomes

    def outcomes_as_named(self) -> list[Outcome]:
        """Return all outcomes in the order of the command."""
        if self._order is None or not self.outcomes:
            return self.outcomes
        # The outcomes of one claim are ascending already, and the sort is stable.
        in_order = np.argsort(np.concatenate(self._numbers), kind="stable")
        return [self.outcomes[index] for index in in_order.tolist()]

    def _ordered(self) -> Sequence[Claim]:
        if self._claims is None:
            claims = self.claims()
            if len(claims) > 1:
                self._order, self.overlaps = _ascending(claims)
            if self._order is not None:
                order = self._order
                claims = (
                    claims.take(order) if isinstance(claims, AlikeClaims) else [claims[at] for at in order.tolist()]
                )
            self._claims = claims
        return self._claims

    def _part_end(self) -> int:
        """Return the end index of the next part, which holds at least one claim."""
        claims, at = self._ordered(), self._at
        if at == len(claims):
            return at
        if self._work is None:
            self._work = _work_of(claims, len(self._state.segments))
        work, goes_on = self._work
        # The first claim of a part begins a segment, even if the part before ended in it.
        before = int(work[at - 1]) - (SEGMENT_WORK if goes_on[at] else 0) if at else 0
        return max(int(np.searchsorted(work, before + WORK_AT_ONCE, "right")), at + 1)


def _work_of(claims: Sequence[Claim], segments: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the work on each claim with all before it, and whether it begins in the segment of the one before.

    `segments` is the number of segments, which one claim cannot exceed.
    """
    sources, firsts, lasts = _places(claims)
    begins, ends = firsts // SIZE, lasts // SIZE
    goes_on = np.zeros(len(claims), bool)
    goes_on[1:] = (sources[1:] == sources[:-1]) & (begins[1:] == ends[:-1])
    begun = np.minimum(ends - begins, segments) + ~goes_on
    return np.cumsum(1 + SEGMENT_WORK * begun), goes_on


def _places(claims: Sequence[Claim | Outcome]) -> tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.int64]]:
    """Return columns of source, first and last offset. Sources are numbered by topic and partition."""
    if isinstance(claims, AlikeClaims):
        return np.zeros(len(claims), np.intp), claims.firsts, claims.lasts
    topics, partitions, firsts, lasts = (list(map(itemgetter(field), claims)) for field in range(4))
    if topics.count(topics[0]) == len(topics) and partitions.count(partitions[0]) == len(partitions):
        numbers = np.zeros(len(claims), np.intp)
    else:
        names = list(zip(topics, partitions, strict=True))
        sources = {name: number for number, name in enumerate(sorted(set(names)))}
        numbers = np.array([sources[name] for name in names])
    return numbers, np.array(firsts, np.int64), np.array(lasts, np.int64)


def _ascending(claims: Sequence[Claim]) -> tuple[NDArray[np.intp] | None, bool]:
    """Return the order of claims by source and offset, and whether two overlap.

    The order is None if the claims are sorted already, or two overlap.
    """
    sources, firsts, lasts = _places(claims)
    if not sources.any() and bool((lasts[:-1] < firsts[1:]).all()):  # true for most commands
        return None, False
    order = np.lexsort((firsts, sources))
    sources, firsts, lasts = sources[order], firsts[order], lasts[order]
    if ((sources[1:] == sources[:-1]) & (lasts[:-1] >= firsts[1:])).any():
        return None, True
    return (None if (np.diff(order) > 0).all() else order), False


def _numbers_of(outcomes: list[Outcome], claims: Sequence[Claim], order: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return, for each outcome, its claim's index in the command; `order` has these of the ascending claims."""
    sources, firsts, _ = _places([*claims, *outcomes])  # numbered together
    of, at = sources[len(claims) :], firsts[len(claims) :]
    sources, firsts = sources[: len(claims)], firsts[: len(claims)]
    numbers = np.zeros(len(outcomes), np.intp)
    for source in np.unique(of).tolist():
        members = np.flatnonzero(of == source)
        begin, end = np.searchsorted(sources, (source, source + 1)).tolist()
        numbers[members] = order[begin + np.searchsorted(firsts[begin:end], at[members], "right") - 1]
    return numbers
