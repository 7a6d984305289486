"""Settlements, collected per shard and joined into ranges (Q8), and their results (C16)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from lapse.protocol.answer import Answer
from lapse.protocol.bookmark import BookmarkRange, runs

SETTLED: Final = "settled"
ALREADY_SETTLED: Final = "already_settled"

STALE: Final = "stale"
"""The result for an older delivery, or for a message by the name that it had before a rewind (C61)."""

NOT_SENT: Final = "not_sent"
"""The client's own result: the subscriber was closed, or Kafka did not accept the command."""

MOST_RANGES: Final = 5_000
"""The most ranges in one command. Further ranges go into another one."""

_MOST_CHARACTERS: Final = 500_000
"""The most characters of the ranges in one command, so that none exceeds Kafka's record size. Names may be long."""


class SettlementResult(NamedTuple):
    """The result of a settlement for some messages.

    Attributes:
        messages: the messages.
        result: `settled`, `already_settled`, `not_leased`, `not_holder`, `stale`, `time_limit`, `scheduled`,
            `transferring`, `unknown`; or `not_sent`: the client was closed, or Kafka did not accept the command.
    """

    messages: BookmarkRange
    result: str

    @property
    def settled(self) -> bool:
        """Whether the settlement took effect."""
        return self.result == SETTLED


class SettlementBatch:
    """Messages of one shard for one settlement command; not thread-safe.

    Offsets are kept per partition and token, so that joining thousands of them costs one sort.
    """

    __slots__ = ("_offsets", "size")

    def __init__(self) -> None:
        self.size = 0
        self._offsets: dict[tuple[bytes, bytes], list[int]] = {}

    def add(self, source: bytes, token: bytes, offset: int) -> None:
        """Add a message.

        Args:
            source: its underlying partition, `topic:partition`.
            token: its fencing token, `count` or `count@epoch`; empty for none.
            offset: its offset.
        """
        key = (source, token)
        offsets = self._offsets.get(key)
        if offsets is None:
            offsets = self._offsets[key] = []
        offsets.append(offset)
        self.size += 1

    def extend(self, source: bytes, token: bytes, offsets: list[int]) -> None:
        """Add messages of one partition and one token. The batch keeps and changes the list `offsets`."""
        known = self._offsets.setdefault((source, token), offsets)
        if known is not offsets:
            known += offsets
        self.size += len(offsets)

    def take(self) -> list[str]:
        """Empty the batch, and return its ranges as `topic:partition:first[-last][#delivery_count[@epoch]]`."""
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
    """Split the ranges of a settlement into parts for one command each."""
    longest = max(map(len, ranges), default=1)
    size = min(MOST_RANGES, _MOST_CHARACTERS // longest)
    for start in range(0, len(ranges), size):
        yield tuple(ranges[start : start + size])


def results(answer: Answer) -> list[SettlementResult]:
    """Return the results of an answer."""
    return [SettlementResult(BookmarkRange.parse(item.bookmarks), item.result) for item in answer.settlements]


def correct_repeated(answer: Answer) -> Answer:
    """Correct the answer to a repeated settlement: messages settled already were settled by its first copy (C55)."""
    if answer.command == "renew":
        return answer
    settlements = tuple(
        replace(one, result=SETTLED) if one.result == ALREADY_SETTLED else one for one in answer.settlements
    )
    return replace(answer, settlements=settlements)
