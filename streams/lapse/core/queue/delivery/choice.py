"""Choice: which messages go to which subscriptions if more than the order of arrival counts (Q7, Q11, Q12, Q14).

Messages are examined in the order of delivery: by place, or by priority and then place (Q11), and only before the
first barrier (Q12). Each goes to a subscription that has space and whose filter it matches (Q14). Fairness chooses
among several (Q7). A returned message goes to its last holder only if no other subscription takes it (C49).
`group_choice` does the same for queues with groups.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.arrival.trait import OWN_GROUP
from lapse.core.queue.delivery.candidates import last_holders
from lapse.core.queue.delivery.fairness import Turns
from lapse.core.queue.inquiry.matching import NO, UNKNOWN, YES, Matching
from lapse.core.queue.segments.segment import AVAILABLE, NOBODY, SIZE, Segment
from lapse.core.queue.segments.tops import Key
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.state import QueueState
from lapse.core.queue.subscriptions.subscription import Subscription

Chunk = tuple[Segment, NDArray[np.intp]]
"""Slots of a segment in the order of delivery."""


class _Ranked(NamedTuple):
    """Places of several segments in the order of delivery by priority, with their sort columns."""

    unranked: NDArray[np.bool_]
    complements: NDArray[np.uint64]
    places: NDArray[np.int64]

    @staticmethod
    def merged(parts: Sequence[_Ranked], limit: int) -> _Ranked:
        """Return the first `limit` places of all parts."""
        unranked = np.concatenate([part.unranked for part in parts])
        complements = np.concatenate([part.complements for part in parts])
        places = np.concatenate([part.places for part in parts])
        if len(places) > 2 * limit:  # finding the first ones costs much less than sorting all
            first = _first_by_key(unranked, complements, places, limit)
            unranked, complements, places = unranked[first], complements[first], places[first]
        order = np.lexsort((places, complements, unranked))[:limit]
        return _Ranked(unranked[order], complements[order], places[order])

    def key(self, at: int) -> Key:
        """Return the sort key of one place, equal to `Segment.key`."""
        place = int(self.places[at])
        return (0, place) if self.unranked[at] else (-int(~self.complements[at]) - 1, place)


class _Dealing:
    """Deals messages to subscriptions one after the other, until there is no space or the limit is reached.

    Attributes:
        ring: the subscriptions, in the order of the shard's table.
    """

    def __init__(self, ring: Sequence[Subscription], turns: Turns, limit: int) -> None:
        self.ring = ring
        self._turns = turns
        self._left = limit
        self._space = {one.number: one.space for one in ring}
        self._outstanding = {one.number: one.outstanding for one in ring}
        self._places: dict[int, list[int]] = {one.number: [] for one in ring}

    def open_ones(self) -> list[Subscription]:
        """Return the subscriptions that can get more."""
        return [one for one in self.ring if self._space[one.number]] if self._left else []

    def give(self, only: Subscription, places: Sequence[int]) -> None:
        """Deal messages to the only subscription that can get more."""
        taken = places[: min(self._left, self._space[only.number])]
        if taken:
            self._turns.note_served(only)
            self._deal(only, taken)

    def spread(
        self,
        open_ones: Sequence[Subscription],
        places: Sequence[int],
        codes: Mapping[int, NDArray[np.uint8]],
        last: Sequence[int] | None,
    ) -> None:
        """Deal each message to one of several subscriptions.

        Args:
            open_ones: the subscriptions that can get more.
            places: the messages' places, in the order of delivery.
            codes: by subscription: whether each message matches its filter.
            last: number of each message's last holder, `NOBODY` without one; None = no message has one.
        """
        matches = {number: (column == YES).tolist() for number, column in codes.items()}
        for at, place in enumerate(places):
            if not self._left:
                break
            fitting = [one for one in open_ones if self._space[one.number] and matches[one.number][at]]
            if fitting:
                self._deal(self._turns.pick(fitting, self._outstanding, NOBODY if last is None else last[at]), [place])

    def shares(self) -> list[tuple[Subscription, list[int]]]:
        """Return each subscription that gets anything, with its places in the order of delivery."""
        return [(one, self._places[one.number]) for one in self.ring if self._places[one.number]]

    def _deal(self, subscription: Subscription, places: Sequence[int]) -> None:
        number, count = subscription.number, len(places)
        self._places[number] += places
        self._space[number] -= count
        self._outstanding[number] += count
        self._left -= count


class Chooser:
    """Assigns messages of one shard to subscriptions at one instant.

    Args:
        state: the shard's state.
        matching: what is known of which messages match which filters.
        settings: the queue's settings; stored traits count only while the queue uses them.
        turns: the order in which subscriptions were served.
        now_ms: the instant, ms since the epoch; negative = deadlines do not count.
        filters: segments without a match for any of these are skipped; `assign` takes them from the subscriptions.
    """

    def __init__(
        self,
        state: QueueState,
        matching: Matching,
        settings: QueueSettings,
        turns: Turns,
        now_ms: int,
        filters: Iterable[str] = ("",),
    ) -> None:
        self._state = state
        self._matching = matching
        self._traits = settings.traits
        self._in_group_order = settings.group_limit == 1
        self._now_ms = now_ms
        self._turns = turns
        self._filters = set(filters)
        self.unknown: list[int] = []
        """Places that must be judged under the filters before any message after them can be assigned."""

    def assign(self, subscriptions: Sequence[Subscription], limit: int) -> list[tuple[Subscription, list[int]]]:
        """Assign at most `limit` messages; return each subscription's places in the order of delivery."""
        dealing = _Dealing([one for one in subscriptions if one.space], self._turns, limit)
        self._filters = {one.filter for one in dealing.ring}
        for segment, slots in self.in_order():
            open_ones = dealing.open_ones()
            if not open_ones:
                break
            slots, codes = self._matched(segment, slots, open_ones)
            places = (slots + segment.base).tolist()
            if len(open_ones) == 1:
                dealing.give(open_ones[0], places)
            else:
                dealing.spread(open_ones, places, codes, last_holders(self._state, places))
            if self.unknown:
                break
        return dealing.shares()

    def groups_held_back(self, subscriptions: Sequence[Subscription]) -> int:
        """Return how many groups wait because their first message matches no subscription, regardless of space."""
        held_back = self._in_group_order and self.by_group and subscriptions
        if not held_back or not all(one.filter for one in subscriptions):
            return 0
        filters = {one.filter for one in subscriptions}
        firsts = self._firsts_by_group()
        if firsts is not None:
            code, bound_count = self._matching.code, self._state.index.bound_count
            return sum(
                not bound_count(group) and all(code(text, *divmod(place, SIZE)) == NO for text in filters)
                for group, place in firsts.items()
            )
        count = 0
        for segment, slots in self._first_of_each_group(self.in_order()):
            if segment.groups is not None:
                unmatched = segment.groups[slots] != OWN_GROUP
                for text in filters:
                    unmatched &= self._matching.codes(text, segment.index, slots) == NO
                count += int(np.count_nonzero(unmatched))
        return count

    def _firsts_by_group(self) -> dict[int, int] | None:
        """Return the place of each group's first message before the barrier; None while that needs all messages."""
        waiting, barrier = self._state.index.lines, self._barrier
        lines = None if waiting is None else waiting.all_lines()
        if waiting is None or lines is None:
            return None
        firsts: dict[int, int] = {}
        for line in lines:
            place = None if line[1] in firsts or line[1] == OWN_GROUP else waiting.first_place(line)
            if place is not None and (barrier is None or place < barrier):
                firsts[line[1]] = place
        return firsts

    def first_places(self, limit: int) -> list[int]:
        """Return the first `limit` places in the order of delivery, for queues where no filters and groups count."""
        barrier = self._barrier
        if self._ranked:
            return self._first_by_rank(limit, barrier)
        found: list[int] = []
        for segment, slots in self._by_place(barrier):
            found += (slots[: limit - len(found)] + segment.base).tolist()
            if len(found) == limit:
                break
        return found

    def _first_by_rank(self, limit: int, barrier: int | None) -> list[int]:
        """Return the first places by priority, then place, opening segments until no other can hold a better one."""
        tops = self._state.index.tops
        best = _Ranked(np.zeros(0, bool), np.zeros(0, np.uint64), np.zeros(0, np.int64))
        indexes = tops.by_key()
        pending, opened = next(indexes, None), 0
        while pending is not None and not (len(best.places) == limit and best.key(-1) < tops.best_key_of(pending)):
            parts = [best]
            for _ in range(max(1, opened)):  # doubling, so that sorting again costs as much in total as sorting once
                segment = self._state.segments.look(pending)
                slots = self._deliverable_by_rank(segment, barrier)[:limit]
                parts.append(_Ranked(*segment.ranking(slots), slots + segment.base))
                opened += 1
                pending = next(indexes, None)
                if pending is None:
                    break
            best = _Ranked.merged(parts, limit)
        indexes.close()
        return [int(place) for place in best.places]

    def _matched(
        self, segment: Segment, slots: NDArray[np.intp], open_ones: Sequence[Subscription]
    ) -> tuple[NDArray[np.intp], dict[int, NDArray[np.uint8]]]:
        """Keep slots that some subscription takes, up to the first one that is not judged yet."""
        codes = {one.number: self._matching.codes(one.filter, segment.index, slots) for one in open_ones}
        unjudged = np.zeros(len(slots), bool)
        wanted = np.zeros(len(slots), bool)
        for column in codes.values():
            unjudged |= column == UNKNOWN
            wanted |= column == YES
        if unjudged.any():
            first = int(np.flatnonzero(unjudged)[0])
            self.unknown = (slots[first:][unjudged[first:]] + segment.base).tolist()
            wanted[first:] = False
        kept = np.flatnonzero(wanted)
        return slots[kept], {number: column[kept] for number, column in codes.items()}

    def in_order(self) -> Iterator[Chunk]:
        """Yield available places before the barrier and not past their deadline, in the order of delivery."""
        return self._by_rank(self._barrier) if self._ranked else self._by_place(self._barrier)

    @property
    def by_group(self) -> bool:
        """Whether the queue delivers by groups."""
        return self._state.index.grouped and self._traits.group is not None

    @property
    def _ranked(self) -> bool:
        return self._state.index.ranked and self._traits.priority is not None

    @property
    def _barrier(self) -> int | None:
        barriers = self._state.index.barriers
        return barriers[0] if barriers and self._traits.barrier is not None else None

    def _deliverable_mask(self, segment: Segment, barrier: int | None) -> NDArray[np.bool_]:
        """Return, for each slot, whether it is available, before the barrier and not past its deadline."""
        free: NDArray[np.bool_] = segment.state[: segment.used] == AVAILABLE
        if self._now_ms >= 0 and segment.min_deadline_ms <= self._now_ms and segment.deadline_ms is not None:
            free &= segment.deadline_ms[: segment.used] > self._now_ms
        if barrier is not None and barrier < segment.base + segment.used:
            free[max(0, barrier - segment.base) :] = False
        return free

    def _deliverable_by_rank(self, segment: Segment, barrier: int | None) -> NDArray[np.intp]:
        order = segment.rank_order()
        return order[self._deliverable_mask(segment, barrier)[order]].astype(np.intp)

    def _cannot_match(self, index: int, used: int) -> bool:
        """Return whether no subscription can get anything of a segment.

        With groups this is never so, since a message that nobody matches holds back its group.
        """
        return not self.by_group and self._matching.matches_none(self._filters, index, used)

    def _by_place(self, barrier: int | None) -> Iterator[Chunk]:
        for segment in self._state.with_available(self._cannot_match):
            if barrier is not None and segment.base >= barrier:
                return
            if self._now_ms >= 0 and segment.is_late(self._now_ms):
                continue
            slots = np.flatnonzero(self._deliverable_mask(segment, barrier))
            if len(slots):
                yield segment, slots

    def _by_rank(self, barrier: int | None) -> Iterator[Chunk]:
        """Yield places by priority, then place. Each chunk precedes the best place of every other segment."""
        state = self._state
        opened: list[tuple[Key, int, Segment, NDArray[np.intp], int]] = []
        tops = state.index.tops.by_key()
        pending = next(tops, None)
        while opened or pending is not None:
            # Open every segment whose best place may precede the best open one.
            while pending is not None and (not opened or state.index.tops.best_key_of(pending) <= opened[0][0]):
                segment = state.segments.look(pending)
                slots = self._deliverable_by_rank(segment, barrier)
                if len(slots):
                    heapq.heappush(opened, (segment.key(int(slots[0])), pending, segment, slots, 0))
                pending = next(tops, None)
            if not opened:
                continue
            _, index, segment, slots, at = heapq.heappop(opened)
            rivals = [opened[0][0]] if opened else []
            if pending is not None:
                rivals.append(state.index.tops.best_key_of(pending))
            stop = _end_before(segment, slots, at, min(rivals)) if rivals else len(slots)
            yield segment, slots[at:stop]
            if stop < len(slots):
                heapq.heappush(opened, (segment.key(int(slots[stop])), index, segment, slots, stop))

    def _first_of_each_group(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """Keep only the first message of each group that has no leased or delayed message."""
        seen = self._state.index.bound_groups()
        for segment, slots in chunks:
            if segment.groups is None:
                yield segment, slots
                continue
            kept: list[int] = []
            for slot, group in zip(slots.tolist(), segment.groups[slots].tolist(), strict=True):
                if group == OWN_GROUP:
                    kept.append(slot)
                elif group not in seen:
                    seen.add(group)
                    kept.append(slot)
            if kept:
                yield segment, np.array(kept, np.intp)


def _first_by_key(
    unranked: NDArray[np.bool_], complements: NDArray[np.uint64], places: NDArray[np.int64], limit: int
) -> NDArray[np.intp]:
    """Return the indexes of the first `limit` of more messages by priority and place, in no order."""
    ranked = np.flatnonzero(~unranked)
    if len(ranked) <= limit:
        rest = np.flatnonzero(unranked)
        return np.concatenate((ranked, _lowest(rest, places, limit - len(ranked))))
    values = complements[ranked]
    last = np.partition(values, limit - 1)[limit - 1]
    before = ranked[values < last]
    return np.concatenate((before, _lowest(ranked[values == last], places, limit - len(before))))


def _lowest(indexes: NDArray[np.intp], places: NDArray[np.int64], count: int) -> NDArray[np.intp]:
    """Return those of some indexes that have the `count` lowest places."""
    if count >= len(indexes):
        return indexes
    return indexes[np.argpartition(places[indexes], count)[:count]]


def _end_before(segment: Segment, slots: NDArray[np.intp], at: int, rival: Key) -> int:
    """Return the end of the slots from `at` on that precede a rival's key; the first one always does."""
    low, high = at + 1, len(slots)
    while low < high:
        middle = (low + high) // 2
        if segment.key(int(slots[middle])) < rival:
            low = middle + 1
        else:
            high = middle
    return low
