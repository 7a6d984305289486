"""Sources: the partitions of underlying topics that a shard reads, and the places of their messages."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from lapse.core.generation import FIRST_REWOUND, generation_of, position_of
from lapse.core.queue.segments.segment import SIZE, Segment


class PlacedRun(NamedTuple):
    """A run of messages of one source with consecutive offsets at consecutive places. Runs sort by offset.

    Offsets here are positions, which include the generation of a message that a rewind brought back.
    """

    offset: int
    place: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed here


_RUN: Final[Callable[[tuple[int, int, int]], PlacedRun]] = partial(tuple.__new__, PlacedRun)
"""Makes a run of all its fields. The class itself takes twice as long."""


class PlacedRange(NamedTuple):
    """A range of offsets and its first place; `place` is -1 if the shard has no places for these offsets."""

    first: int
    last: int
    place: int


class Source:
    """One partition of an underlying topic, as a shard knows it.

    Attributes:
        topic: the underlying topic.
        partition: its partition.
        next_offset: the offset that is read next; everything below was seen.
        end_offset: the known end of the log; 0 = not known.
        first_offset: the first offset that this shard has read; what is before belongs to an older shard (C81).
        begin_offset: Kafka has removed all records below it, as far as this epoch knows; 0 = none (C40).
        since_epoch: the epoch that found the topic replaced by a new one of the same name; 0 = none did (C42).
        generation: how many times the source was rewound (Q22).
        is_read: whether this epoch reads it. Otherwise its topic was taken away, or another shard reads it.
    """

    __slots__ = (
        "_rewound",
        "_standings",
        "begin_offset",
        "end_offset",
        "first_offset",
        "generation",
        "is_read",
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
        self.first_offset = 0
        self.begin_offset = 0
        self.since_epoch = 0
        self.generation = 0
        self.is_read = False
        self._standings: list[PlacedRun] = []
        self._rewound: list[PlacedRun] = []

    @property
    def begun_offset(self) -> int:
        """The first offset that this shard may bring back. Of a topic that was created again, all are (C42, C62)."""
        return 0 if self.since_epoch else self.first_offset

    @property
    def may_hold_messages(self) -> bool:
        """Whether the shard may still hold messages of this source."""
        return bool(self._standings or self._rewound)

    def next_unread_position(self, offset: int) -> int:
        """Return the next unread position, in the generation of the given position."""
        if offset < FIRST_REWOUND:  # true for almost all
            return self.next_offset
        generation = generation_of(offset)
        return position_of(self.next_offset if generation <= self.generation else 0, generation)

    def _runs_near(self, offset: int) -> list[PlacedRun]:
        """Return the list of runs that would contain a position: the rewound ones, or all others."""
        return self._standings if offset < FIRST_REWOUND else self._rewound

    def add(self, offset: int, place: int, count: int) -> None:
        """Note the places of a run of messages. All places of a run are in one segment."""
        near = self._runs_near(offset)
        if not near or offset > near[-1].offset:
            if near:
                from_offset, from_place, before = near[-1]
                joins = from_offset + before == offset and from_place + before == place
                if joins and from_place // SIZE == place // SIZE:
                    near[-1] = _RUN((from_offset, from_place, before + count))
                    return
            near.append(_RUN((offset, place, count)))
        else:
            insort(near, PlacedRun(offset, place, count))

    def drop(self, segment: Segment, number: int) -> None:
        """Forget the messages of a dropped segment; `number` is this source's number.

        A run of the segment can be several entries here, since scheduled messages are noted out of order.
        """
        for run in segment.runs:
            if run.source == number:
                near = self._runs_near(run.offset)
                first = bisect_left(near, run.offset, key=_first_offset)
                stop = bisect_left(near, run.offset + run.count, key=_first_offset)
                del near[first:stop]

    def find_run(self, offset: int) -> PlacedRun | None:
        """Return the run that contains a position; None if the message has no place."""
        near = self._standings if offset < FIRST_REWOUND else self._rewound
        if not near:
            return None
        found = near[-1]
        first, _, count = found
        if offset < first:
            at = bisect_right(near, offset, key=_first_offset) - 1
            if at < 0:
                return None
            found = near[at]
            first, _, count = found
        return found if offset < first + count else None

    def find(self, first: int, last: int) -> Iterator[PlacedRange]:
        """Cut a range of positions of one generation, both ends included, into pieces with consecutive places."""
        offset, near = first, self._runs_near(first)
        at = max(0, bisect_right(near, first, key=_first_offset) - 1)
        while offset <= last and at < len(near):
            standing = near[at]
            end = standing.offset + standing.count - 1
            at += 1
            if end < offset:
                continue
            if standing.offset > last:
                break
            if offset < standing.offset:
                yield PlacedRange(offset, standing.offset - 1, -1)
                offset = standing.offset
            stop = min(end, last)
            yield PlacedRange(offset, stop, standing.place + offset - standing.offset)
            offset = stop + 1
        if offset <= last:
            yield PlacedRange(offset, last, -1)


def _first_offset(standing: PlacedRun) -> int:
    return standing.offset
