"""Transfers: hand-overs of messages to another deployment, in two stages (Q17).

A shard that hands messages over remembers a transfer as long as it holds some for it, or has confirmed some of which
the destination may not know yet. What is confirmed is the one place where it is decided which record of the destination
takes the message's place: however often a transfer is begun again, the destination counts that record only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from lapse.core.queue.change import Change


class HandOver(NamedTuple):
    """Messages that take the place of others, one by one.

    Attributes:
        topic: underlying topic here.
        partition: its partition.
        first: offset of the first message here.
        count: how many.
        to_topic: topic at the destination.
        to_partition: its partition.
        to_first: offset of the first record there.
    """

    topic: str
    partition: int
    first: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks it
    to_topic: str
    to_partition: int
    to_first: int

    def part(self, first: int, last: int) -> HandOver:
        """Some of them, by their offsets here, both ends included."""
        return self._replace(first=first, count=last - first + 1, to_first=self.to_first + first - self.first)


@dataclass(slots=True)
class Transfer:
    """One transfer at the shard that hands over.

    Attributes:
        id: its name on the wire.
        number: its short name in the columns of segments.
        target: where the messages go, for people.
        confirmed: what left for the destination, which may not know of it yet.
    """

    id: str
    number: int
    target: str
    confirmed: list[HandOver] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """What the journal keeps of it."""
        return asdict(self)


class Transfers:
    """The transfers of a shard."""

    def __init__(self) -> None:
        self._by_id: dict[str, Transfer] = {}
        self._by_number: dict[int, Transfer] = {}

    def __iter__(self) -> Iterator[Transfer]:
        return iter(self._by_id.values())

    def get(self, transfer_id: str) -> Transfer | None:
        """The transfer of that id; None if nothing is under way for it."""
        return self._by_id.get(transfer_id)

    def name(self, number: int) -> str:
        """The id behind a number in a column; empty if it is over."""
        found = self._by_number.get(number)
        return "" if found is None else found.id

    @property
    def next_number(self) -> int:
        """A number that no transfer has."""
        return max(self._by_number, default=-1) + 1

    def apply(self, change: Change) -> None:
        """Carry out a change: know a transfer as it is now, or forget it."""
        if change.facts:
            self.add(change.facts)
        else:
            gone = self._by_number.pop(change.holder, None)
            if gone is not None:
                del self._by_id[gone.id]

    def add(self, facts: dict[str, Any]) -> None:
        """Know a transfer as it is now."""
        confirmed = [HandOver(*one) for one in facts["confirmed"]]
        transfer = Transfer(facts["id"], facts["number"], facts["target"], confirmed)
        self._by_id[transfer.id] = self._by_number[transfer.number] = transfer
