"""Transfers: a shard's memory of messages handed over to another deployment, in two stages (Q17).

The source shard remembers a transfer while it holds messages for it, or has confirmed messages that the destination
may not know of yet. The confirmation alone decides which record at the destination replaces a message. So only this
record counts, however often a transfer is repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from lapse.core.queue.change import Change


class HandOver(NamedTuple):
    """Consecutive messages, and the records that replace them one by one at the destination.

    Attributes:
        topic: the underlying topic here.
        partition: the topic's partition here.
        first: offset of the first message here.
        count: number of messages.
        to_topic: topic at the destination.
        to_partition: that topic's partition.
        to_first: offset of the first record there.
    """

    topic: str
    partition: int
    first: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed here
    to_topic: str
    to_partition: int
    to_first: int

    def part(self, first: int, last: int) -> HandOver:
        """Return the hand-over of some of the messages, by their offsets here, both ends included."""
        return self._replace(first=first, count=last - first + 1, to_first=self.to_first + first - self.first)


@dataclass(slots=True)
class Transfer:
    """A transfer, at the shard that hands messages over.

    Attributes:
        id: its name on the wire.
        number: its number in the columns of segments.
        target: the destination, for people.
        confirmed: messages that have left, of which the destination may not know yet.
    """

    id: str
    number: int
    target: str
    confirmed: list[HandOver] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """Return the values that the journal holds."""
        return asdict(self)


class Transfers:
    """The transfers of a shard."""

    def __init__(self) -> None:
        self._by_id: dict[str, Transfer] = {}
        self._by_number: dict[int, Transfer] = {}

    def __iter__(self) -> Iterator[Transfer]:
        return iter(self._by_id.values())

    def get(self, transfer_id: str) -> Transfer | None:
        """Return the transfer with an id; None if it is not in progress."""
        return self._by_id.get(transfer_id)

    def name(self, number: int) -> str:
        """Return the id of the transfer with a number; empty if it is over."""
        found = self._by_number.get(number)
        return "" if found is None else found.id

    @property
    def next_number(self) -> int:
        """The number for the next transfer."""
        return max(self._by_number, default=-1) + 1

    def apply(self, change: Change) -> None:
        """Carry out a change: set or forget a transfer."""
        if change.facts:
            self.add(change.facts)
        else:
            gone = self._by_number.pop(change.holder, None)
            if gone is not None:
                del self._by_id[gone.id]

    def add(self, facts: dict[str, Any]) -> None:
        """Set a transfer from its journaled values."""
        confirmed = [HandOver(*one) for one in facts["confirmed"]]
        transfer = Transfer(facts["id"], facts["number"], facts["target"], confirmed)
        self._by_id[transfer.id] = self._by_number[transfer.number] = transfer
