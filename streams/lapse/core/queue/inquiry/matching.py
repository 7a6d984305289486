"""Content filters: which messages match, remembered per segment (Q14), or by bookmark without a place (X4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.inquiry.view import RecordView
from lapse.core.queue.segments.segment import SIZE, Segment, State

UNKNOWN: Final = 0
YES: Final = 1
NO: Final = 2

MOST_TRAVELLING: Final = 64
"""How many filters of other deployments' subscriptions keep their results: each is asked for again and again."""

MOST_PAGED: Final = 2
"""How many filters of peeks keep theirs: a long answer is asked for in pages."""

Predicate = Callable[[RecordView], bool]
_Known = tuple[Predicate, dict[int, NDArray[np.uint8]]]
"""A filter, and its results for the places of each segment."""

_Offsets = dict[tuple[str, int], set[int]]
"""By topic and partition."""

Measured = Callable[[str], AbstractContextManager[Callable[[int], None]]]
"""Measures the work under a filter; it yields a function, which is called with the number of messages."""


def unmeasured(_text: str) -> AbstractContextManager[Callable[[int], None]]:
    """Measure nothing."""
    return nullcontext(lambda _count: None)


class Matching:
    """What is known of the messages under each filter that a subscription has.

    It is not part of the state: after a take-over the payloads are read again as far as they are needed.
    """

    def __init__(self, compile_filter: Callable[[str], Predicate]) -> None:
        self._compile = compile_filter
        self._filters: dict[str, _Known] = {}
        self._subscribed: set[str] = set()
        self._judged_to: dict[str, int] = {}
        self._selecting: list[str] = []
        self._kept: dict[str, _Known | None] = {}
        """What was asked for by others than subscriptions and may be asked again; None while it is under selection."""
        self._latest: dict[int, dict[str, None]] = {}
        """The filters that are kept, the latest last, by how many of such are kept."""
        self._seen: dict[str, _Offsets] = {}
        self._tried: dict[str, _Offsets] = {}
        self._resting: dict[str, tuple[_Offsets, _Offsets]] = {}
        """Of filters that are kept: which messages without a place matched, and on which each was tried."""
        self.measured: Measured = unmeasured
        """Wraps the work under each filter. The caller of the shard provides it, because the core has no clock."""

    @property
    def active(self) -> bool:
        """Whether any subscription has a filter."""
        return bool(self._filters)

    def keep(self, filters: Iterable[str]) -> None:
        """Know the filters that subscriptions have now, and forget the others.

        Raises:
            ValueError: one cannot be compiled; the text shows the spot.
        """
        self._subscribed = {text for text in filters if text}
        self._refresh()

    def begin_selection(self, text: str, most_kept: int = 0) -> None:
        """Know one more filter for a while.

        Args:
            text: the filter.
            most_kept: of so many such filters, the latest, what is known is kept after the selection: it will be asked
                for again.

        Raises:
            ValueError: it cannot be compiled; the text shows the spot.
        """
        self._compile(text)
        self._selecting.append(text)
        self._judged_to[text] = 0
        if most_kept:
            self._keep(text, most_kept)
            self._seen[text], self._tried[text] = self._resting.pop(text, ({}, {}))
        self._refresh()

    def end_selection(self, text: str) -> None:
        """Forget it again, unless a subscription has it."""
        self._selecting.remove(text)
        self._judged_to.pop(text, None)
        seen, tried = self._seen.pop(text, {}), self._tried.pop(text, None)
        if tried is not None and text in self._kept:
            self._resting[text] = seen, tried
        self._refresh()

    def _keep(self, text: str, most: int) -> None:
        """Keep the results of a filter, and forget those that nobody can ask for any more."""
        self._kept.setdefault(text, None)
        latest = self._latest.setdefault(most, {})
        latest.pop(text, None)
        latest[text] = None  # the latest stands last
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

    def _all_known(self) -> Iterator[_Known]:
        yield from self._filters.values()
        for known in self._kept.values():
            if known is not None:
                yield known

    def predicate(self, text: str) -> Predicate:
        """The filter of a subscription, or under selection, behind its text."""
        return self._filters[text][0]

    def judge(self, places: Sequence[int], messages: Sequence[RecordView | None]) -> None:
        """Evaluate every filter on messages; one whose record is gone matches none."""
        if any(getattr(predicate, "uses_payload", False) for predicate, _ in self._filters.values()):
            for message in messages:
                if message is not None:
                    message.payload  # noqa: B018  # parsed when first asked for, which is no work of any filter's
        for text, (predicate, columns) in self._filters.items():
            with self.measured(text) as look:
                judged = 0
                for place, message in zip(places, messages, strict=True):
                    index, slot = divmod(place, SIZE)
                    column = columns.get(index)
                    if column is None:
                        column = columns[index] = np.zeros(SIZE, np.uint8)
                    if column[slot] == UNKNOWN:
                        column[slot] = YES if message is not None and predicate(message) else NO
                        judged += 1
                look(judged)

    def judge_bookmarks(self, text: str, messages: Iterable[RecordView]) -> None:
        """Evaluate a filter under selection on records whose messages have no place: gone, or not visible yet."""
        predicate, _ = self._filters[text]
        tried = self._tried.get(text)
        for message in messages:
            place = message.topic, message.partition
            if predicate(message):
                self._seen.setdefault(text, {}).setdefault(place, set()).add(message.offset)
            if tried is not None:
                tried.setdefault(place, set()).add(message.offset)

    def untried_offsets(self, text: str, topic: str, partition: int, offsets: list[int]) -> list[int]:
        """The messages of a source without a place on which a filter under selection was not tried.

        What is known of messages that are not among these offsets is forgotten.

        Args:
            text: the filter.
            topic: the source's topic.
            partition: its partition.
            offsets: of all of its messages without a place, in order.
        """
        place = topic, partition
        tried = self._tried.get(text, {}).get(place)
        if tried is None:
            return offsets
        tried.intersection_update(offsets)
        self._seen.setdefault(text, {}).setdefault(place, set()).intersection_update(offsets)
        return [offset for offset in offsets if offset not in tried]

    def seen(self, text: str, topic: str, partition: int) -> Set[int]:
        """Offsets of the records of a source on which `judge_bookmarks` tried the filter, and that match."""
        return self._seen.get(text, {}).get((topic, partition), frozenset())

    def judged_to(self, text: str) -> int:
        """The first segment in which a message may be unknown under a filter under selection."""
        return self._judged_to.get(text, 0)

    def note_judged(self, text: str, index: int) -> None:
        """Note that all places before a segment are judged. They stay so, and new messages come after them."""
        if text in self._judged_to:
            self._judged_to[text] = index

    @property
    def subscribed(self) -> Set[str]:
        """The filters of subscriptions."""
        return self._subscribed

    def put_away(self, segment: Segment) -> None:
        """Note which places of a segment are empty for good, so that no search visits it for them."""
        state = segment.state[: segment.used]
        for _, columns in self._all_known():
            column = columns.get(segment.index)
            if column is not None:
                column[: segment.used][(state == State.GONE) | (state == State.EXPIRED)] = NO

    def hopeless(self, texts: Iterable[str], index: int, used: int) -> bool:
        """Whether none of a segment's messages can match any of the filters."""
        for text in texts:
            column = self._filters[text][1].get(index) if text else None
            if column is None or not bool((column[:used] == NO).all()):
                return False
        return True

    def untried(self, text: str, index: int) -> bool:
        """Whether a filter was tried on no message of a segment."""
        return bool(text) and index not in self._filters[text][1]

    def codes(self, text: str, index: int, slots: NDArray[np.intp]) -> NDArray[np.uint8]:
        """What is known of some places of a segment under a filter; the empty one matches all."""
        if not text:
            return np.full(len(slots), YES, np.uint8)
        column = self._filters[text][1].get(index)
        return np.zeros(len(slots), np.uint8) if column is None else column[slots]

    def code(self, text: str, index: int, slot: int) -> int:
        """What is known of one place of a segment under a filter."""
        column = self._filters[text][1].get(index) if text else None
        return (UNKNOWN if text else YES) if column is None else int(column[slot])

    def drop(self, indexes: Iterable[int]) -> None:
        """Forget segments that are gone."""
        for index in indexes:
            for _, columns in self._all_known():
                columns.pop(index, None)
