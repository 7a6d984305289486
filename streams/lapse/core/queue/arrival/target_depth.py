"""Target depth: how many more messages may become active, and how far a transfer may exceed it (Q13)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from lapse.core.queue.decision import Decisions
from lapse.core.queue.inquiry.inquiry import Inquiry
from lapse.core.queue.settlement.settlement import Claim, Outcome, Result

UNLIMITED: Final = 1 << 62
"""How many messages may become active if there is no target depth."""


class TargetDepth:
    """Computes how many messages a shard has room for.

    Args:
        decisions: the shard's decisions.
        inquiry: counts the shard's messages.

    Attributes:
        bounded: whether the queue has a target depth.
    """

    def __init__(self, decisions: Decisions, inquiry: Inquiry) -> None:
        self._state = decisions.state
        self._target = decisions.settings.target_depth
        self.bounded = self._target is not None
        self._inquiry = inquiry
        self._wanted: dict[tuple[str, int], int] = {}

    def room(self) -> int:
        """Return how many more messages may become active."""
        return UNLIMITED if self._target is None else max(0, self._target - self._inquiry.depth()["depth"])

    def room_for(self, topic: str, partition: int) -> int:
        """Return how many more messages of a source may become active.

        This is the room, or the number of messages up to the one that a transfer wants if that is greater.
        """
        wanted = self._wanted.get((topic, partition))
        if wanted is None:
            return self.room()
        number = self._state.sources.find(topic, partition)
        way = 0 if number is None else wanted + 1 - self._state.sources[number].next_offset
        if way <= 0:
            del self._wanted[topic, partition]
        return max(self.room(), way)

    @property
    def has_early_transfer(self) -> bool:
        """Whether a transfer wants a message that is not active yet."""
        return any(self.room_for(*source) > self.room() for source in list(self._wanted))

    def activate_up_to(self, claims: Iterable[Claim], most: int) -> None:
        """Let messages become active up to those that a transfer names, at most `most` at a time.

        The end of the log must be known, so that nothing beyond it is awaited. The request is not journaled, because a
        transfer asks again after a crash.
        """
        for claim in claims:
            number = self._state.sources.find(claim.topic, claim.partition)
            if number is None or self._target is None:
                continue
            source = self._state.sources[number]
            first = max(claim.first, source.next_offset)
            last = min(claim.last, source.end_offset - 1, first + most - 1)
            if last >= first:
                self._wanted[claim.topic, claim.partition] = last

    def with_advancing(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """Yield outcomes with ADVANCING instead of UNKNOWN for messages that will become active soon (C85)."""
        for one in outcomes:
            number = self._state.sources.find(one.topic, one.partition)
            unread = number is not None and one.first >= self._state.sources[number].next_offset
            wanted = self._wanted.get((one.topic, one.partition), -1)
            if one.result is not Result.UNKNOWN or not unread or wanted < one.first:
                yield one
                continue
            yield one._replace(last=min(one.last, wanted), result=Result.ADVANCING)
            if wanted < one.last:
                yield one._replace(first=wanted + 1)
