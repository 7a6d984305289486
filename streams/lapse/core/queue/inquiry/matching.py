"""Content filters: which messages match, stored per segment (Q14), or by bookmark for messages without a place (X4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.expression import Filter
from lapse.core.queue.inquiry.view import RecordView, RowViews, parse_payloads
from lapse.core.queue.segments.segment import SIZE, Segment, State

UNKNOWN: Final = 0
YES: Final = 1
NO: Final = 2

MOST_TRAVELLING: Final = 64
"""How many filters of other deployments' subscriptions keep their results, since they are used repeatedly."""

MOST_PAGED: Final = 2
"""How many filters of peeks keep their results, since a long answer is requested in pages."""

Predicate = Callable[[RecordView], bool]
_Known = tuple[Predicate, dict[int, NDArray[np.uint8]]]
"""A filter and, by segment index, its results for the segment's slots."""

_Offsets = dict[tuple[str, int], set[int]]
"""Offsets by topic and partition."""

Measured = Callable[[str], AbstractContextManager[Callable[[int], None]]]
"""A context that measures the work of a filter; the function it yields takes the number of judged messages."""


def unmeasured(_text: str) -> AbstractContextManager[Callable[[int], None]]:
    """Return a context that measures nothing."""
    return nullcontext(lambda _count: None)


class Matching:
    """The known results of each filter in use, for the messages of a shard.

    They are not part of the state. After a take-over, payloads are read again as far as needed.
    """

    def __init__(self, compile_filter: Callable[[str], Predicate]) -> None:
        self._compile = compile_filter
        self._filters: dict[str, _Known] = {}
        self._subscribed: set[str] = set()
        self._judged_to: dict[str, int] = {}
        self._selecting: list[str] = []
        self._kept: dict[str, _Known | None] = {}
        """Results of filters that are not a subscription's but may be used again; None while under selection."""
        self._latest: dict[int, dict[str, None]] = {}
        """The kept filters in the order of their last use, by the greatest number of their kind."""
        self._seen: dict[str, _Offsets] = {}
        self._tried: dict[str, _Offsets] = {}
        self._resting: dict[str, tuple[_Offsets, _Offsets]] = {}
        """By kept filter: the messages without a place that matched, and those on which it was tried."""
        self.measured: Measured = unmeasured
        """Measures the work of each filter. The shard's caller provides it, because the core has no clock."""

    @property
    def active(self) -> bool:
        """Whether any subscription has a filter."""
        return bool(self._filters)

    def set_subscribed(self, filters: Iterable[str]) -> None:
        """Set the filters of the current subscriptions, and forget the others.

        Raises:
            ValueError: a filter cannot be compiled; the message shows where.
        """
        self._subscribed = {text for text in filters if text}
        self._refresh()

    def begin_selection(self, text: str, most_kept: int = 0) -> None:
        """Add a filter until `end_selection`.

        Args:
            text: the filter.
            most_kept: number of filters of this kind whose results are kept after their selections, the latest first;
                0 = the results are forgotten.

        Raises:
            ValueError: the filter cannot be compiled; the message shows where.
        """
        self._compile(text)
        self._selecting.append(text)
        self._judged_to[text] = 0
        if most_kept:
            self._keep_results(text, most_kept)
            self._seen[text], self._tried[text] = self._resting.pop(text, ({}, {}))
        self._refresh()

    def end_selection(self, text: str) -> None:
        """End the selection of a filter, and forget its results unless a subscription has it or they are kept."""
        self._selecting.remove(text)
        self._judged_to.pop(text, None)
        seen, tried = self._seen.pop(text, {}), self._tried.pop(text, None)
        if tried is not None and text in self._kept:
            self._resting[text] = seen, tried
        self._refresh()

    def _keep_results(self, text: str, most: int) -> None:
        """Keep the results of a filter, and forget those of the least recently used ones beyond `most`."""
        self._kept.setdefault(text, None)
        latest = self._latest.setdefault(most, {})
        latest.pop(text, None)
        latest[text] = None  # appended, so that the dict stays in the order of last use
        while len(latest) > most:
            oldest = next(iter(latest))
            del latest[oldest]
            if not any(oldest in others for others in self._latest.values()):
                del self._kept[oldest]
                self._resting.pop(oldest, None)

    def _refresh(self) -> None:
        wanted = self._subscribed | set(self._selecting)
        for text in wanted - self._filters.keys():
            known = self._kept.get(text)
            self._filters[text] = (self._compile(text), {}) if known is None else known
            if known is not None:
                self._kept[text] = None
        for text in self._filters.keys() - wanted:
            known = self._filters.pop(text)
            if text in self._kept:
                self._kept[text] = known

    def _all_results(self) -> Iterator[_Known]:
        yield from self._filters.values()
        for known in self._kept.values():
            if known is not None:
                yield known

    def predicate(self, text: str) -> Predicate:
        """Return the compiled filter of a text that a subscription has or that is under selection."""
        return self._filters[text][0]

    def judge(self, places: Sequence[int], messages: Sequence[RecordView | None]) -> None:
        """Evaluate every filter on messages. A message whose record is gone (None) matches none.

        Raises:
            ValueError: there are not as many messages as places.
        """
        if len(messages) != len(places):
            raise ValueError(f"one list is shorter: {len(messages)} messages for {len(places)} places")
        if not len(places):
            return
        if any(getattr(predicate, "uses_payload", False) for predicate, _ in self._filters.values()):
            parse_payloads(messages)  # outside the measured work
        indexes, slots = np.divmod(np.asarray(places, np.int64), SIZE)
        bounds = [0, *(np.flatnonzero(np.diff(indexes)) + 1).tolist(), len(slots)]
        for text, (predicate, columns) in self._filters.items():
            with self.measured(text) as look:
                judged = 0
                for first, stop in pairwise(bounds):
                    index = int(indexes[first])
                    column = columns.get(index)
                    if column is None:
                        column = columns[index] = np.zeros(SIZE, np.uint8)
                    mine = slots[first:stop]
                    unknown = np.flatnonzero(column[mine] == UNKNOWN)
                    matches = _matches(predicate, messages, (unknown + first).tolist())
                    column[mine[unknown]] = np.where(matches, YES, NO)
                    judged += len(unknown)
                look(judged)

    def judge_bookmarks(self, text: str, messages: Iterable[RecordView]) -> None:
        """Evaluate a filter under selection on messages without a place, which have left or are not visible yet."""
        predicate, _ = self._filters[text]
        tried = self._tried.get(text)
        for message in messages:
            place = message.topic, message.partition
            if predicate(message):
                self._seen.setdefault(text, {}).setdefault(place, set()).add(message.position)
            if tried is not None:
                tried.setdefault(place, set()).add(message.position)

    def untried_offsets(self, text: str, topic: str, partition: int, offsets: list[int]) -> list[int]:
        """Return the messages of a source without a place on which a filter under selection was not tried.

        Results for other messages of the source are forgotten.

        Args:
            text: the filter.
            topic: the source's topic.
            partition: the source's partition.
            offsets: offsets of all its messages without a place, ascending.
        """
        place = topic, partition
        tried = self._tried.get(text, {}).get(place)
        if tried is None:
            return offsets
        tried.intersection_update(offsets)
        self._seen.setdefault(text, {}).setdefault(place, set()).intersection_update(offsets)
        return [offset for offset in offsets if offset not in tried]

    def matched_offsets(self, text: str, topic: str, partition: int) -> Set[int]:
        """Return the offsets of a source's records that matched the filter in `judge_bookmarks`."""
        return self._seen.get(text, {}).get((topic, partition), frozenset())

    def first_unjudged_segment(self, text: str) -> int:
        """Return the first segment that may hold a message not judged under a filter under selection."""
        return self._judged_to.get(text, 0)

    def note_judged(self, text: str, index: int) -> None:
        """Note that all places before a segment are judged. New messages get later places, so this remains true."""
        if text in self._judged_to:
            self._judged_to[text] = index

    @property
    def subscribed_filters(self) -> Set[str]:
        """The filters of subscriptions."""
        return self._subscribed

    def mark_empty_slots(self, segment: Segment) -> None:
        """Mark the empty slots of a segment as matching no filter, so that searches skip it if nothing is left."""
        state = segment.state[: segment.used]
        for _, columns in self._all_results():
            column = columns.get(segment.index)
            if column is not None:
                column[: segment.used][(state == State.GONE) | (state == State.EXPIRED)] = NO

    def matches_none(self, texts: Iterable[str], index: int, used: int) -> bool:
        """Return whether none of a segment's messages matches any of the filters."""
        for text in texts:
            column = self._filters[text][1].get(index) if text else None
            if column is None or not bool((column[:used] == NO).all()):
                return False
        return True

    def is_untried(self, text: str, index: int) -> bool:
        """Return whether a filter was tried on no message of a segment."""
        return bool(text) and index not in self._filters[text][1]

    def codes(self, text: str, index: int, slots: NDArray[np.intp]) -> NDArray[np.uint8]:
        """Return a filter's results for some slots of a segment. The empty filter matches all."""
        if not text:
            return np.full(len(slots), YES, np.uint8)
        column = self._filters[text][1].get(index)
        return np.zeros(len(slots), np.uint8) if column is None else column[slots]

    def code(self, text: str, index: int, slot: int) -> int:
        """Return a filter's result for one slot of a segment."""
        column = self._filters[text][1].get(index) if text else None
        return (UNKNOWN if text else YES) if column is None else int(column[slot])

    def drop(self, indexes: Iterable[int]) -> None:
        """Forget the results of dropped segments."""
        for index in indexes:
            for _, columns in self._all_results():
                columns.pop(index, None)


def _matches(predicate: Predicate, messages: Sequence[RecordView | None], positions: Sequence[int]) -> list[bool]:
    """Return whether the messages at some positions match. One whose record is gone (None) does not."""
    if (
        isinstance(messages, RowViews)
        and isinstance(predicate, Filter)
        and predicate.uses_payload
        and not predicate.attributes
    ):
        payloads, match = messages.payloads(), predicate.match
        return [match(payloads[at]) for at in positions]
    chosen = (messages[at] for at in positions)
    return [message is not None and predicate(message) for message in chosen]
