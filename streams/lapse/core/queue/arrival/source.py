"""Sources: the partitions of underlying topics that a shard reads, and where their messages stand in it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import NamedTuple

from lapse.core.generation import FIRST_REWOUND, generation_of, position_of
from lapse.core.queue.segments.segment import SIZE, Segment


class Standing(NamedTuple):
    """Messages of one source with consecutive offsets that stand at consecutive places; ordered by offset.

    An offset here is a position: that of a message that a rewind brought back names its generation, too.
    """

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
        begin_offset: Kafka has removed what stood below it, as far as this epoch knows; 0 = nothing (C40).
        since_epoch: the epoch in which its topic was found to be another one than before; 0 = it never was (C42).
        generation: how often it was rewound (Q22).
    """

    __slots__ = (
        "_rewound",
        "_standings",
        "begin_offset",
        "end_offset",
        "generation",
        "next_offset",
        "partition",
        "since_epoch",
        "topic",
    )

    def __init__(self, topic: str, partition: int, next_offset: int = 0) -> None:
        self.topic = topic
        self.partition = partition
        self.next_offset = next_offset
        self.end_offset = 0
        self.begin_offset = 0
        self.since_epoch = 0
        self.generation = 0
        self._standings: list[Standing] = []
        self._rewound: list[Standing] = []

    @property
    def stands(self) -> bool:
        """Whether any of its messages may still be there."""
        return bool(self._standings or self._rewound)

    def seen_to(self, offset: int) -> int:
        """The offset that is seen next, in the generation of the given one."""
        generation = generation_of(offset)
        if not generation:
            return self.next_offset
        return position_of(self.next_offset if generation <= self.generation else 0, generation)

    def _near(self, offset: int) -> list[Standing]:
        """The standings among which a message is; those that a rewind brought back stand behind all others."""
        return self._standings if offset < FIRST_REWOUND else self._rewound

    def add(self, offset: int, place: int, count: int) -> None:
        """Note that messages stand somewhere; the places lie in one segment."""
        standing, near = Standing(offset, place, count), self._near(offset)
        if not near or offset > near[-1].offset:
            last = near[-1] if near else None
            if (
                last is not None
                and last.offset + last.count == offset
                and last.place + last.count == place
                and last.place // SIZE == place // SIZE
            ):
                near[-1] = Standing(last.offset, last.place, last.count + count)
            else:
                near.append(standing)
        else:
            insort(near, standing)

    def drop(self, segment: Segment, number: int) -> None:
        """Forget the messages of a segment that is gone; `number` is this source's.

        A run can be several standings: scheduled messages that follow one another come between those noted before.
        """
        for run in segment.runs:
            if run.source == number:
                near = self._near(run.offset)
                first = bisect_left(near, run.offset, key=_offset_of)
                stop = bisect_left(near, run.offset + run.count, key=_offset_of)
                del near[first:stop]

    def standing(self, offset: int) -> Standing | None:
        """Where a message stands; None where it has no place."""
        near = self._near(offset)
        at = bisect_right(near, offset, key=_offset_of) - 1
        found = near[at] if at >= 0 else None
        return found if found is not None and offset < found.offset + found.count else None

    def find(self, first: int, last: int) -> Iterator[Piece]:
        """Cut a range of offsets of one generation (both ends included) into pieces by where they stand."""
        offset, near = first, self._near(first)
        at = max(0, bisect_right(near, first, key=_offset_of) - 1)
        while offset <= last and at < len(near):
            standing = near[at]
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
