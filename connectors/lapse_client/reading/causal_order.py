"""The order of the moments of a life: by instant, and within one millisecond causes before effects (D6)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from lapse.protocol.bookmark import Bookmark
from lapse.protocol.event import EventKind
from lapse_client.reading.moment import ABORTED, ARRIVED, DEAD_LETTER, DELIVERED, END, ENDS_BEFORE_DELIVERY, Moment

Links = Iterable[tuple[Bookmark, Bookmark]]
"""Pairs of bookmarks: a message, and the record as which it continues."""

_FOLLOWS_LAST: Final = (END | {EventKind.DYING}) - ENDS_BEFORE_DELIVERY
"""Events after which a message is not delivered again."""

_FOLLOWS_ONE: Final = frozenset({EventKind.CANCELLED, EventKind.LEASE_RETURNED, EventKind.RENEWED})
"""Events that presuppose a delivery. Others may follow it."""

_RECORD, _STEP_TO, _LIFE, _LETTER, _STEP_FROM = range(5)


def in_causal_order(moments: Sequence[Moment], links: Links = ()) -> list[Moment]:
    """Sort moments by instant. Of one millisecond, each moment stands after what must have been before it.

    Events and deliveries are in different topics, so only their instants and their delivery counts order them. A
    message's arrival stands before its life, even if its producer's clock was ahead (C6).

    Args:
        moments: the moments; those of one topic in the order of its log.
        links: how the messages continue as one another; the life of the former stands before that of the latter.
    """
    depths = _depths(links)
    ordered: list[Moment] = []
    first_ms: dict[Bookmark, int] = {}
    for one in moments:
        first_ms[_record(one.message)] = min(one.at_ms, first_ms.get(_record(one.message), one.at_ms))

    def instant_ms(one: Moment) -> int:
        return first_ms[_record(one.message)] if one.what == ARRIVED else one.at_ms

    for _, found in groupby(sorted(moments, key=instant_ms), key=instant_ms):
        together = list(found)
        if len(together) > 1:
            together = list(_merged(together))
            together.sort(key=lambda one: (depths.get(_record(one.message), 0), one.message.generation, _rank(one)))
        ordered += together
    return ordered


def _record(message: Bookmark) -> Bookmark:
    """Return the bookmark of a message's record, which all its generations share (C61)."""
    return message._replace(offset=message.log_offset)


def _depths(links: Links) -> Mapping[Bookmark, int]:
    """Return for each record how many others its message was before."""
    pairs = {(_record(before), _record(after)) for before, after in links}
    depths: dict[Bookmark, int] = defaultdict(int)
    for _ in pairs:  # at most as many rounds as there are links, even if they form a circle
        grown = [(after, depths[before] + 1) for before, after in pairs if depths[after] <= depths[before]]
        if not grown:
            break
        depths.update(grown)
    return depths


def _rank(moment: Moment) -> int:
    if moment.what in (ARRIVED, ABORTED):
        return _RECORD
    if moment.what == DEAD_LETTER:
        return _LETTER
    if "from" not in moment.facts:
        return _LIFE
    return _STEP_FROM if moment.facts["from"] == str(moment.message) else _STEP_TO


def _merged(together: Sequence[Moment]) -> Iterator[Moment]:
    """Yield moments of one instant with each delivery between the events of its entity before and behind it."""
    deliveries: dict[tuple[str, Bookmark], list[Moment]] = defaultdict(list)
    for one in together:
        if one.what == DELIVERED:
            deliveries[one.entity, one.message].append(one)
    for one in together:
        if one.what != DELIVERED:
            waiting = deliveries[one.entity, one.message]
            before = _number_before(one, waiting)
            yield from waiting[:before]
            del waiting[:before]
            yield one
    for rest in deliveries.values():
        yield from rest


def _number_before(event: Moment, deliveries: Sequence[Moment]) -> int:
    """Return how many of the next deliveries were before an event."""
    if event.what in _FOLLOWS_LAST:
        # That a record is out of focus is the effect of an event (S7).
        return _first(one.facts.get("kind") == "oof" for one in deliveries)
    if event.what == EventKind.DELIVERED_AT_MOST_ONCE:
        return 0
    known = event.facts.get("delivery_count")
    if known is not None:
        return _first((one.facts.get("delivery_count") or 0) > known for one in deliveries)
    return min(1, len(deliveries)) if event.what in _FOLLOWS_ONE else 0


def _first(conditions: Iterable[bool]) -> int:
    """Return the index of the first condition that holds, or the number of conditions."""
    number = 0
    for number, holds in enumerate(conditions, 1):
        if holds:
            return number - 1
    return number
