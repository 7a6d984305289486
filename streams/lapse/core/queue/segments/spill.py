"""Spilled segments: those not needed now are kept in a spill store, if the core is given one (Q16)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

from lapse.core.lifetime import NEVER
from lapse.core.queue.journal import packed_segment
from lapse.core.queue.segments.segment import Segment
from lapse.core.queue.segments.summary import Outline, SegmentSummary

_SEEN: Final = 4
"""How many segments that were only read stay cached, since the next access may change them."""


class SpillStore(Protocol):
    """Keeps bytes by number, as a dictionary does. It need not survive the process, since the journal is complete."""

    def __getitem__(self, index: int, /) -> bytes | memoryview:
        """Return a stored segment."""

    def __setitem__(self, index: int, data: bytes | memoryview, /) -> None:
        """Store or replace a segment."""

    def __delitem__(self, index: int, /) -> None:
        """Remove a segment."""

    def __contains__(self, index: object, /) -> bool:
        """Return whether a segment is stored."""


class Segments(Mapping[int, Segment]):
    """The live segments of a shard by index, each in memory, or in a spill store with its summary in memory.

    `segments[index]` loads a segment until `make_room`. `look` only reads it, and leaves it spilled. So between two
    calls of `make_room` there is one object per segment that may be changed.

    Args:
        spill_store: the store for segments; None = all stay in memory.
        room: memory that segments may take if there is a spill store, bytes.

    Attributes:
        find: returns a segment as `segments[index]` does; None if there is no such segment.
        loads: how many segments were read from the spill store.
        resting: callbacks that get each segment before it is spilled.
    """

    def __init__(self, spill_store: SpillStore | None = None, room: int = 0) -> None:
        self.spill_store = spill_store
        self.loads = 0
        self.resting: list[Callable[[Segment], None]] = []
        self._room = room
        self._loaded: dict[int, Segment] = {}
        self.find: Callable[[int], Segment | None] = self._loaded.get if spill_store is None else self.get
        self._summaries: dict[int, SegmentSummary] = {}
        self._used: dict[int, None] = {}
        self._weights: dict[int, int] = {}
        self._weight = 0
        self._same: set[int] = set()
        self._seen: dict[int, Segment] = {}

    def __getitem__(self, index: int) -> Segment:
        segment = self._loaded.get(index)
        if self.spill_store is None:
            if segment is None:
                raise KeyError(index)
            return segment
        if segment is None:
            segment = self._seen.pop(index, None) or self._read(index)
            self._loaded[index] = segment
            self._same.add(index)
            del self._summaries[index]
        self._used[index] = None
        return segment

    def __setitem__(self, index: int, segment: Segment) -> None:
        self._loaded[index] = segment
        if self.spill_store is not None:
            self._used[index] = None

    def __delitem__(self, index: int) -> None:
        self._loaded.pop(index, None)
        if self.spill_store is not None:
            self._summaries.pop(index, None)
            self._seen.pop(index, None)
            self._weight -= self._weights.pop(index, 0)
            self._same.discard(index)
            if index in self.spill_store:
                del self.spill_store[index]

    def __iter__(self) -> Iterator[int]:
        yield from self._loaded
        yield from self._summaries

    def __len__(self) -> int:
        return len(self._loaded) + len(self._summaries)

    def __contains__(self, index: object) -> bool:
        return index in self._loaded or index in self._summaries

    @property
    def in_memory(self) -> int:
        """How many segments are in memory."""
        return len(self._loaded)

    def outline(self, index: int) -> Outline | None:
        """Return the outline of a segment, which needs no columns; None if there is no such segment."""
        return self._loaded.get(index) or self._summaries.get(index)

    def earliest_deadline_ms(self, index: int) -> int:
        """Return the earliest deadline in a segment, ms since the epoch; `NEVER` if it has none or was dropped."""
        outline = self._loaded.get(index) or self._summaries.get(index)
        return NEVER if outline is None else outline.min_deadline_ms

    def earliest_until_ms(self, index: int) -> int:
        """Return the earliest end of a lease or delay, ms since the epoch; `NEVER` if there is none."""
        outline = self._loaded.get(index) or self._summaries.get(index)
        return NEVER if outline is None else outline.min_until_ms

    def look(self, index: int) -> Segment:
        """Return a segment for reading only. It is valid until the next change of the shard."""
        segment = self._loaded.get(index) or self._seen.get(index)
        if segment is None:
            segment = self._seen[index] = self._read(index)
            if len(self._seen) > _SEEN:
                del self._seen[next(iter(self._seen))]
        return segment

    def encoded(self, index: int) -> bytes | memoryview:
        """Return the packed bytes of a segment."""
        segment = self._loaded.get(index)
        if segment is None and self.spill_store is not None:
            return self.spill_store[index]
        return packed_segment.encode(self._loaded[index])

    def note_changed(self, segment: Segment) -> None:
        """Note that the spill store's copy of a segment is outdated."""
        self._same.discard(segment.index)

    def add_restored(self, segment: Segment) -> None:
        """Add a segment from the journal. A spill store, if any, contains it already."""
        self[segment.index] = segment
        if self.spill_store is not None:
            self._same.add(segment.index)

    def make_room(self) -> None:
        """Spill the least recently used segments until the rest fits into memory. No caller may hold a segment."""
        if self.spill_store is None:
            return
        for index in self._used:
            segment = self._loaded.get(index)
            if segment is not None:
                weight = segment.weight
                self._weight += weight - self._weights.pop(index, 0)
                self._weights[index] = weight
        self._used.clear()
        while self._weight > self._room and self._weights:
            self._spill(next(iter(self._weights)), self.spill_store)

    def _spill(self, index: int, spill_store: SpillStore) -> None:
        segment = self._loaded.pop(index)
        self._weight -= self._weights.pop(index)
        for rest in self.resting:
            rest(segment)
        if index in self._same:
            self._same.discard(index)
        else:
            spill_store[index] = packed_segment.encode(segment)
        self._summaries[index] = SegmentSummary.from_segment(segment)

    def _read(self, index: int) -> Segment:
        summary = self._summaries[index]
        assert self.spill_store is not None
        segment = packed_segment.decode(self.spill_store[index])
        # The instants are taken from the summary, not computed again, because index entries must equal them.
        segment.min_deadline_ms, segment.min_until_ms = summary.min_deadline_ms, summary.min_until_ms
        self.loads += 1
        return segment
