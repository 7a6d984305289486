"""Settlements: collected per shard, joined into ranges (Q8), and their results (C16)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from lapse.protocol.answer import Answer
from lapse.protocol.bookmark import BookmarkRange, runs

SETTLED: Final = "settled"
ALREADY_SETTLED: Final = "already_settled"

NOT_SENT: Final = "not_sent"
"""The client's own result: the subscriber was closed, or Kafka did not take the command."""

MOST_RANGES: Final = 5_000
"""Ranges in one command; more go into a second one, so that no command exceeds Kafka's record size."""


class SettlementResult(NamedTuple):
    """What became of messages that a settlement named.

    Attributes:
        messages: which ones.
        result: `settled`, `already_settled`, `not_leased`, `not_holder`, `stale`, `time_limit`, `scheduled`,
            `unknown`, `transferring`; or `not_sent`: the client was closed, or Kafka did not take the command.
    """

    messages: BookmarkRange
    result: str

    @property
    def settled(self) -> bool:
        """Whether the settlement took effect."""
        return self.result == SETTLED


class SettlementBatch:
    """Messages of one shard that are to be settled alike; not thread-safe.

    Offsets are kept per partition and token, so that joining thousands of them costs one sort.
    """

    __slots__ = ("_offsets", "size")

    def __init__(self) -> None:
        self.size = 0
        self._offsets: dict[tuple[bytes, bytes], list[int]] = {}

    def add(self, source: bytes, token: bytes, offset: int) -> None:
        """Add a message.

        Args:
            source: its partition, `topic:partition`.
            token: which delivery it is, `count` or `count@epoch`; empty for none.
            offset: its own.
        """
        key = (source, token)
        offsets = self._offsets.get(key)
        if offsets is None:
            offsets = self._offsets[key] = []
        offsets.append(offset)
        self.size += 1

    def extend(self, source: bytes, token: bytes, offsets: list[int]) -> None:
        """Add messages of one partition and one token; the list becomes the batch's."""
        known = self._offsets.setdefault((source, token), offsets)
        if known is not offsets:
            known += offsets
        self.size += len(offsets)

    def take(self) -> list[str]:
        """Empty the batch and return what it held as `topic:partition:first[-last][#delivery_count[@epoch]]`."""
        ranges: list[str] = []
        for (partition, delivery), offsets in self._offsets.items():
            token = f"#{delivery.decode()}" if delivery else ""
            prefix = partition.decode()
            for first, last in runs(offsets):
                ranges.append(f"{prefix}:{first}{token}" if first == last else f"{prefix}:{first}-{last}{token}")
        self._offsets.clear()
        self.size = 0
        return ranges


def chunks(ranges: list[str]) -> Iterator[tuple[str, ...]]:
    """Split what one settlement names into as many commands as it needs."""
    for start in range(0, len(ranges), MOST_RANGES):
        yield tuple(ranges[start : start + MOST_RANGES])


def results(answer: Answer) -> list[SettlementResult]:
    """What an answer says of each message."""
    return [SettlementResult(BookmarkRange.parse(item.bookmarks), item.result) for item in answer.settlements]


def asked_twice(answer: Answer) -> Answer:
    """The answer to a settlement that was sent again: it was itself what settled the messages before (C55)."""
    if answer.command == "renew":
        return answer
    settlements = tuple(
        replace(one, result=SETTLED) if one.result == ALREADY_SETTLED else one for one in answer.settlements
    )
    return replace(answer, settlements=settlements)
