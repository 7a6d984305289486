"""A line of waiting messages: those of one group with one priority, and what is known of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Set
from typing import NamedTuple

from lapse.core.queue.groups.resting_lines import Entry
from lapse.core.queue.segments.segment import AVAILABLE, SIZE, Segment

Found = tuple[Segment, int]
"""A message as its segment and slot."""


class Passed(NamedTuple):
    """Messages of a line that do not fit and are not looked at again while the same filters have no room.

    Attributes:
        to: the first place that is not looked at yet.
        filters: the filters that the messages before it match, or may match.
    """

    to: int
    filters: Set[str]


class WaitingLine:
    """The waiting messages of a line.

    Attributes:
        head: places of messages that wait or have left meanwhile, ascending, in segments up to `loaded_to`.
        loaded_to: index of the last segment whose places are in `head`.
        segments: indexes of later segments that may hold some, ascending.
        entry: the line's valid entry in a heap.
        passed: its first messages, if these do not fit; None = not known.
        rests: whether the line rests.
        rests_whole: whether it rests because none of its messages fits, so that each further one ends the rest.
    """

    __slots__ = ("entry", "head", "loaded_to", "passed", "rests", "rests_whole", "segments")

    def __init__(self, segment: int, head: list[int]) -> None:
        self.head = head
        self.loaded_to = segment
        self.segments: list[int] = []
        self.entry: Entry | None = None
        self.passed: Passed | None = None
        self.rests = self.rests_whole = False

    def first_known(self) -> int:
        """Return a place before which the line has no message."""
        return self.head[0] if self.head else self.segments[0] * SIZE if self.segments else 0

    def add(self, index: int, places: list[int]) -> None:
        """Add ascending places of messages that have become available, all in segment `index`."""
        if index <= self.loaded_to:
            _merge(self.head, places)
        elif index not in self.segments[-1:]:
            _add(self.segments, index)
        if self.passed is not None and places[0] < self.passed.to:
            self.passed = self.passed._replace(to=places[0])


def _add(segments: list[int], index: int) -> None:
    """Add an index to ascending ones, unless it is there."""
    at = bisect_left(segments, index)
    if at == len(segments) or segments[at] != index:
        segments.insert(at, index)


def _merge(into: list[int], places: list[int]) -> None:
    """Merge ascending places into an ascending list, without duplicates."""
    if not into or into[-1] < places[0]:
        into.extend(places)
        return
    for place in places:
        at = bisect_left(into, place)
        if at == len(into) or into[at] != place:
            into.insert(at, place)


def segment_of(place: int) -> int:
    """Return the index of a place's segment."""
    return place // SIZE


def available_at(segment: Segment, slots: list[int]) -> Iterator[Found]:
    """Yield the messages at some slots that are available."""
    state = segment.state
    for slot in slots:
        if state[slot] == AVAILABLE:
            yield segment, slot
