"""The scheduled messages of a shard, packed as in the journal, since there may be very many (C60)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import ItemsView, Iterable, Iterator
from typing import Final

from lapse.core.portions import Portions, clear_in_portions
from lapse.core.queue.schedule.scheduled import Scheduled
from lapse.core.queue.schedule.scheduled_record import is_plain, pack, unpack

_BLOCK: Final = 4_096
"""How many consecutive offsets of a source form a block."""

_SLACK: Final = 64


class _Block:
    """Ascending offsets of one block. Offsets of gone messages may be among them."""

    __slots__ = ("count", "offsets")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.count = 0


class ScheduledMessages:
    """The scheduled messages of a shard by (source, offset), with sorted offsets for range queries.

    Offsets are sorted within blocks, so adding or removing a message moves the offsets of one block only (C60).
    Messages are stored as bytes, because Python's garbage collector would traverse a million objects at once.
    """

    def __init__(self) -> None:
        self._by_source_offset: dict[tuple[int, int], bytes] = {}
        self._blocks: dict[int, dict[int, _Block]] = {}
        self._counts: dict[int, int] = {}
        self.in_transfer = 0
        """How many are in a transfer from here."""
        self.unconfirmed = 0
        """How many were put here by a transfer and are not confirmed."""
        self.held = 0
        """How many wait for room below the target depth."""

    def __len__(self) -> int:
        return len(self._by_source_offset)

    def __contains__(self, source_offset: object) -> bool:
        return source_offset in self._by_source_offset

    def __getitem__(self, source_offset: tuple[int, int]) -> Scheduled:
        return unpack(self._by_source_offset[source_offset])

    def get(self, source: int, offset: int) -> Scheduled | None:
        """Return a scheduled message; None if there is none."""
        packed = self._by_source_offset.get((source, offset))
        return None if packed is None else unpack(packed)

    def source_offsets(self) -> list[tuple[int, int]]:
        """Return source and offset of each message."""
        return list(self._by_source_offset)

    def items(self) -> Iterator[tuple[tuple[int, int], Scheduled]]:
        """Yield each message with its source and offset."""
        return ((source_offset, unpack(packed)) for source_offset, packed in self._by_source_offset.items())

    def packed(self) -> ItemsView[tuple[int, int], bytes]:
        """Return all messages by source and offset, packed as in the journal."""
        return self._by_source_offset.items()

    def add(self, source: int, offset: int, scheduled: Scheduled) -> None:
        """Add or replace a message."""
        self.add_packed(source, offset, pack(scheduled))

    def add_packed(self, source: int, offset: int, packed: bytes) -> None:
        """Add or replace a message, packed as in the journal."""
        known = self._by_source_offset.get((source, offset))
        self._by_source_offset[source, offset] = packed
        self._count_packed(packed, 1)
        if known is not None:
            self._count_packed(known, -1)
            return
        self._counts[source] = self._counts.get(source, 0) + 1
        block = self._blocks.setdefault(source, {}).setdefault(offset // _BLOCK, _Block())
        block.count += 1
        at = bisect_left(block.offsets, offset)
        if at == len(block.offsets) or block.offsets[at] != offset:
            block.offsets.insert(at, offset)

    def discard(self, source: int, offset: int) -> None:
        """Remove a message, if it is there."""
        known = self._by_source_offset.pop((source, offset), None)
        if known is None:
            return
        self._count_packed(known, -1)
        self._counts[source] -= 1
        blocks, number = self._blocks[source], offset // _BLOCK
        block = blocks[number]
        block.count -= 1
        # Gone offsets stay in the list until they are the majority, because removing each would move the rest.
        if not block.count:
            del blocks[number]
        elif len(block.offsets) > 2 * block.count + _SLACK:
            block.offsets = [one for one in block.offsets if (source, one) in self._by_source_offset]

    def count(self, source: int) -> int:
        """Return how many messages of a source are scheduled."""
        return self._counts.get(source, 0)

    def release_memory(self) -> Portions[None]:
        """Release the memory of all messages, in portions. The object is not used afterwards."""
        self._blocks.clear()
        yield from clear_in_portions(self._by_source_offset)

    def _count_packed(self, packed: bytes, by: int) -> None:
        if is_plain(packed):
            return
        scheduled = unpack(packed)
        self.held += by * scheduled.held
        if scheduled.transfer:
            if scheduled.in_transfer:
                self.in_transfer += by
            else:
                self.unconfirmed += by

    def between(self, source: int, first: int, last: int) -> Iterator[int]:
        """Yield a source's scheduled offsets within a range, both ends included, ascending."""
        blocks = self._blocks.get(source, {})
        within = range(first // _BLOCK, last // _BLOCK + 1)
        wanted: Iterable[int] = within
        if len(within) > len(blocks):
            wanted = sorted(number for number in blocks if number in within)
        for number in wanted:
            if number in blocks:
                offsets = blocks[number].offsets
                for offset in offsets[bisect_left(offsets, first) : bisect_right(offsets, last)]:
                    if (source, offset) in self._by_source_offset:
                        yield offset
