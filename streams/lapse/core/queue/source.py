"""Sources: the partitions of underlying topics that a shard reads, and where their messages stand in it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import NamedTuple

from lapse.core.queue.segment import SIZE, Segment


class Standing(NamedTuple):
    """Messages of one source with consecutive offsets that stand at consecutive places; ordered by offset."""

    offset: int
    place: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks a standing


class Piece(NamedTuple):
    """A stretch of offsets, and where it stands; `place` is -1 where the shard holds no such message."""

    first: int
    last: int
    place: int


class Source:
    """One partition of an underlying topic, as a shard knows it.

    Attributes:
        topic: the underlying topic.
        partition: its partition.
        next_offset: what is read next; everything below was seen.
        end_offset: where the log is known to end; 0 = not known.
        begin_offset: what stood below it Kafka has removed, as far as this epoch was told; 0 = nothing (C40).
        since_epoch: the epoch in which its topic was found to be another one than before; 0 = it never was (C42).
    """

    __slots__ = ("_standings", "begin_offset", "end_offset", "next_offset", "partition", "since_epoch", "topic")

    def __init__(self, topic: str, partition: int, next_offset: int = 0) -> None:
        self.topic = topic
        self.partition = partition
        self.next_offset = next_offset
        self.end_offset = 0
        self.begin_offset = 0
        self.since_epoch = 0
        self._standings: list[Standing] = []

    @property
    def stands(self) -> bool:
        """Whether any of its messages may still be there."""
        return bool(self._standings)

    def add(self, offset: int, place: int, count: int) -> None:
        """Note that messages stand somewhere; the places lie in one segment."""
        standing = Standing(offset, place, count)
        if not self._standings or offset > self._standings[-1].offset:
            last = self._standings[-1] if self._standings else None
            if (
                last is not None
                and last.offset + last.count == offset
                and last.place + last.count == place
                and last.place // SIZE == place // SIZE
            ):
                self._standings[-1] = Standing(last.offset, last.place, last.count + count)
            else:
                self._standings.append(standing)
        else:
            insort(self._standings, standing)

    def drop(self, segment: Segment, number: int) -> None:
        """Forget the messages of a segment that is gone; `number` is this source's.

        A run can be several standings: scheduled messages that follow one another come between those noted before.
        """
        for run in segment.runs:
            if run.source == number:
                first = bisect_left(self._standings, run.offset, key=_offset_of)
                stop = bisect_left(self._standings, run.offset + run.count, key=_offset_of)
                del self._standings[first:stop]

    def standing(self, offset: int) -> Standing | None:
        """Where a message stands; None where it has no place."""
        at = bisect_right(self._standings, offset, key=_offset_of) - 1
        found = self._standings[at] if at >= 0 else None
        return found if found is not None and offset < found.offset + found.count else None

    def find(self, first: int, last: int) -> Iterator[Piece]:
        """Cut a range of offsets (both ends included) into pieces by where they stand."""
        offset = first
        at = max(0, bisect_right(self._standings, first, key=_offset_of) - 1)
        while offset <= last and at < len(self._standings):
            standing = self._standings[at]
            end = standing.offset + standing.count - 1
            at += 1
            if end < offset:
                continue
            if standing.offset > last:
                break
            if offset < standing.offset:
                yield Piece(offset, standing.offset - 1, -1)
                offset = standing.offset
            stop = min(end, last)
            yield Piece(offset, stop, standing.place + offset - standing.offset)
            offset = stop + 1
        if offset <= last:
            yield Piece(offset, last, -1)


def _offset_of(standing: Standing) -> int:
    return standing.offset
