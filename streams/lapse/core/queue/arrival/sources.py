"""The sources of a shard, by number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.arrival.source import Source
from lapse.core.queue.segments.segment import Segment
from lapse.core.queue.step import Messages

_BLOCK: Final = 128
"""How many consecutive offsets are made at once for columns of one."""


class Sources:
    """Sources in the order in which they were first seen. A number is never reused."""

    def __init__(self) -> None:
        self._sources: list[Source] = []
        self._numbers: dict[tuple[str, int], int] = {}

    def __len__(self) -> int:
        return len(self._sources)

    def __iter__(self) -> Iterator[Source]:
        return iter(self._sources)

    def __getitem__(self, number: int) -> Source:
        return self._sources[number]

    def add(self, source: Source) -> int:
        """Add a source and return its number."""
        number = len(self._sources)
        self._sources.append(source)
        self._numbers[source.topic, source.partition] = number
        return number

    def number(self, topic: str, partition: int) -> int:
        """Return the number of a source, adding the source if it is new."""
        number = self._numbers.get((topic, partition))
        return self.add(Source(topic, partition)) if number is None else number

    def find(self, topic: str, partition: int) -> int | None:
        """Return the number of a source; None if no message of it was ever seen."""
        return self._numbers.get((topic, partition))

    def replace(self, number: int) -> None:
        """Add a new source for one whose topic was deleted and created again (C42). A second call does nothing."""
        old = self._sources[number]
        if self._numbers[old.topic, old.partition] == number:
            self.add(Source(old.topic, old.partition))

    def numbers_of_topic(self, topic: str) -> list[int]:
        """Return the numbers of a topic's current sources."""
        return [number for (name, _), number in self._numbers.items() if name == topic]

    def current(self) -> Iterator[Source]:
        """Return the current source of each partition, leaving out those of deleted and re-created topics (C42)."""
        return (self._sources[number] for number in self._numbers.values())

    def rewindable(self) -> list[Source]:
        """Return the sources that a rewind brings back: those that are read, and partitions that newer shards read now.

        Only this shard knows what became of their messages up to its read position (C62, C81).
        """
        topics = {one.topic for one in self.current() if one.is_read}
        return [one for one in self.current() if one.is_read or (one.next_offset and one.topic in topics)]

    def by_source(self, segment: Segment, slots: NDArray[np.intp]) -> Iterator[tuple[int, Messages]]:
        """Yield the messages at ascending slots, in runs of one source, each with the source's number."""
        if len(slots) == 1:
            yield self.find_single(segment, int(slots[0]))
            return
        at = 0
        while at < len(slots):
            run = segment.run_at(int(slots[at]))
            behind = run.slot + run.count
            stop = len(slots) if slots[-1] < behind else int(np.searchsorted(slots, behind))
            part = slots[at:stop]
            source = self._sources[run.source]
            yield (
                run.source,
                Messages(
                    source.topic,
                    source.partition,
                    (part + (run.offset - run.slot)).astype(np.int64, copy=False),
                    None if segment.deadline_ms is None else segment.deadline_ms[part],
                    segment.deliveries[part],
                    None if segment.cancels is None else segment.cancels[part],
                ),
            )
            at = stop

    def find_single(self, segment: Segment, slot: int) -> tuple[int, Messages]:
        """Return the message at a slot, with the source's number. Nobody may change its columns.

        Most steps of a slow queue concern one message, and to make a column of one number takes longer than all else
        here. So these are parts of shared ones. Deadlines never change, so theirs needs no copy.
        """
        begin, number, offset, _ = segment.runs[-1]
        if slot < begin:
            begin, number, offset, _ = segment.run_at(slot)
        source = self._sources[number]
        deadline_ms, cancels = segment.deadline_ms, segment.cancels
        block, at = divmod(offset + slot - begin, _BLOCK)
        return number, Messages(
            source.topic,
            source.partition,
            _block_of_offsets(block)[at : at + 1],
            None if deadline_ms is None else deadline_ms[slot : slot + 1],
            _column_of_count(segment.deliveries.item(slot)),
            None if cancels is None else _column_of_count(cancels.item(slot)),
        )

    def messages(self, segment: Segment, slots: NDArray[np.intp]) -> Iterable[Messages]:
        """Return the messages at ascending slots, in runs of one source."""
        if len(slots) == 1:
            return (self.find_single(segment, int(slots[0]))[1],)
        return (messages for _, messages in self.by_source(segment, slots))

    def drop(self, segment: Segment) -> None:
        """Forget the places of a dropped segment's messages."""
        for number in {run.source for run in segment.runs}:
            self._sources[number].drop(segment, number)


@lru_cache(maxsize=256)
def _block_of_offsets(number: int) -> NDArray[np.int64]:
    """Return the consecutive offsets of a block, read-only."""
    offsets = np.arange(_BLOCK, dtype=np.int64) + number * _BLOCK
    offsets.flags.writeable = False
    return offsets


@lru_cache(maxsize=256)
def _column_of_count(count: int) -> NDArray[np.uint32]:
    """Return a read-only column of one count of deliveries or cancels."""
    column = np.array([count], np.uint32)
    column.flags.writeable = False
    return column
