"""Journaled deliveries that reached nobody, or that the new owner of a shard may have to write (C55)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from lapse.core.lifetime import NEVER
from lapse.core.queue.change import Change, ChangeKind, join_places
from lapse.core.queue.decision import Decisions, places_of
from lapse.core.queue.life.message_state import State
from lapse.core.queue.life.table import Guard, Trigger, route
from lapse.core.queue.life.transitions import Transitions
from lapse.core.queue.segments.segment import LEASED, SENT
from lapse.core.queue.step import Delivery, Messages, Step


class Unsent(NamedTuple):
    """A delivery under a lease that was journaled, and certainly never sent to Kafka.

    Attributes:
        subscription: id of the subscription.
        topic: the message's topic.
        partition: its partition.
        offset: its position.
        delivery_count: its delivery count.
    """

    subscription: str
    topic: str
    partition: int
    offset: int
    delivery_count: int


class Leases(NamedTuple):
    """The leases of one subscription.

    Attributes:
        deliveries: the messages by place, each delivery with messages of one source.
        places: the places of each delivery's messages.
        since_ms: when the first of these leases began, ms since the epoch; 0 if it is not known, `NEVER` without any.
    """

    deliveries: list[Delivery]
    places: list[list[int]]
    since_ms: int


class HandedOut:
    """Finds the deliveries of the last steps of an epoch, and takes back those that reached nobody."""

    def __init__(self, decisions: Decisions, transitions: Transitions) -> None:
        self._decisions = decisions
        self._transitions = transitions
        self._state = decisions.state

    def deliveries(self, changes: Iterable[Change]) -> list[tuple[Delivery, list[int]]]:
        """Return the deliveries of changes of kind LEASED and SENT that still hold.

        Args:
            changes: the changes in the order of their steps.

        Returns:
            The deliveries in order, each with messages of one source, and the places of these messages.
        """
        found: list[tuple[Delivery, list[int]]] = []
        seen: set[int] = set()
        for change in reversed(list(changes)):  # if two leases of a message end at one instant, the later one holds
            holder = self._state.subscription_table.find(change.holder)
            if holder is None:
                continue
            places = [place for place in self._places_still_held(change) if place not in seen]
            seen.update(places)
            rest = iter(places)
            of_change = [
                (
                    Delivery(holder.id, messages, change.until_ms, holder.payload),
                    [next(rest) for _ in range(len(messages))],
                )
                for messages in self._decisions.messages_at(places)
            ]
            found = of_change + found
            self._state.segments.make_room()
        return found

    def take_back(self, places: Collection[int]) -> None:
        """Undo deliveries that nobody could see and whose leases are over. They do not count (Q9).

        No change is journaled, because the segments are written whole when the epoch begins. Repeating this after a
        crash in between changes nothing.
        """
        for of_state in (State.LEASED, State.SENT):
            slots = self._decisions.slots(join_places(sorted(places)))
            undone = [(segment, some[segment.state[some] == of_state]) for segment, some in slots]
            if any(len(some) for _, some in undone):
                row = route(Trigger.UNDELIVER).row(of_state)
                self._state.apply(Change(row.changes[0], places_of(undone)))

    def places_of_unsent(self, unsent: Iterable[Unsent]) -> list[int]:
        """Return the places, ascending, of messages that are still leased by deliveries that were never sent.

        A message that was settled, returned or delivered again meanwhile is left out.
        """
        found: list[int] = []
        for one in unsent:
            subscription = self._state.subscriptions.get(one.subscription)
            number = self._state.sources.find(one.topic, one.partition)
            run = None if number is None else self._state.sources[number].find_run(one.offset)
            if subscription is None or run is None:
                continue
            place = run.place + one.offset - run.offset
            for segment, slot, _ in self._state.spans([(place, 1)]):
                holds = segment.state[slot] == LEASED and segment.leases()[0][slot] == subscription.number
                if holds and segment.deliveries[slot] == one.delivery_count:
                    found.append(place)
            self._state.segments.make_room()
        return sorted(found)

    def take_back_unsent(self, places: Sequence[int], now_ms: int, step: Step) -> None:
        """Undo leased deliveries that were never sent. They do not count, and their counts are free again (C55, Q9).

        A message that may not stay leaves, as at the end of its lease (Q10, C80). That end is noted at no
        subscription, because none could settle anything (Q15). A message that is not leased stays as it is: a replay
        with other settings meets such ones where the recording took deliveries back (X10).
        """
        if not places:
            return
        found = self._decisions.slots(join_places(sorted(places)))
        leased = [(segment, some[segment.state[some] == State.LEASED]) for segment, some in found]
        slots = [(segment, some) for segment, some in leased if len(some)]
        if not slots:
            return  # an empty change would be journaled
        settled = [(one, one.settled) for one in self._state.subscriptions.values()]
        row = route(Trigger.UNDELIVER).row(State.LEASED)
        self._decisions.apply_change(Change(row.changes[0], places_of(slots)), step)
        for one, before in settled:
            one.settled = before
        self._transitions.review_returned(slots, now_ms, step)

    def undo_deliveries(self, subscription_id: str, step: Step) -> None:
        """Undo the leases of a subscription whose messages nobody took: they do not count, messages stay (C81)."""
        held = self._decisions.backlog_places(self._state.subscriptions[subscription_id].number)
        if held:
            row = route(Trigger.UNDELIVER).row(State.LEASED)
            self._decisions.apply_change(Change(row.changes[0], places_of(held)), step)

    def leases_of(self, subscription_id: str) -> Leases:
        """Return the leases of a subscription, by place."""
        known = self._state.subscriptions.get(subscription_id)
        if known is None or not known.outstanding:
            return Leases([], [], NEVER)
        held = self._decisions.backlog_places(known.number)
        found = list(self._decisions.messages(held))
        places = np.concatenate([slots.astype(np.int64) + segment.base for segment, slots in held])
        stops = np.cumsum([len(one) for one in found])[:-1]
        starts = [0 if one.since_ms is None else int(one.since_ms[slots].min()) for one, slots in held]
        self._state.segments.make_room()
        return Leases(
            [Delivery(known.id, one, 0, known.payload) for one in found],
            [some.tolist() for some in np.split(places, stops)],
            min(starts),
        )

    def remove_unreached_barrier(self, released: Change, now_ms: int, step: Step) -> None:
        """Record the removal of a released barrier whose record Kafka removed before any client got it (C35, C40)."""
        places = np.array([place for place, _ in released.places], np.int64)
        reason = route(Trigger.RELEASE, Guard.RECORDLESS).row(State.AVAILABLE).reason
        assert reason is not None
        self._decisions.record_removal(released_message(released), places, (reason,), now_ms, step)

    def _places_still_held(self, change: Change) -> list[int]:
        """Return the places of a change whose messages still have the holder and lease that it gave them."""
        state = LEASED if change.kind is ChangeKind.LEASED else SENT
        places: list[int] = []
        for segment, slot, stop in self._state.spans(change.places):
            holder, until_ms = segment.leases()
            held = (
                (segment.state[slot:stop] == state)
                & (holder[slot:stop] == change.holder)
                & (until_ms[slot:stop] == change.until_ms)
            )
            places += (np.flatnonzero(held) + (segment.base + slot)).tolist()
        return places


def released_message(released: Change) -> Messages:
    """Return the barrier of a RELEASED change as a message for delivery."""
    facts = released.facts
    offset, no_count = np.array([facts["offset"]], np.int64), np.zeros(1, np.uint32)
    return Messages(facts["topic"], facts["partition"], offset, None, no_count, None)
