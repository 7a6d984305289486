"""Deliveries that were journaled, and that a new owner of the shard may have to write (C55)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from lapse.core.queue.change import Change, ChangeKind, joined
from lapse.core.queue.decision import Decisions, places_of
from lapse.core.queue.life.message_state import State
from lapse.core.queue.life.table import Trigger, route
from lapse.core.queue.segments.segment import LEASED, SENT
from lapse.core.queue.settings import Semantics
from lapse.core.queue.step import Delivery, Messages, Step
from lapse.core.reason import Reason
from lapse.core.shard.event import EventKind


class HandedOut:
    """Finds the deliveries that the last steps of an epoch made, and takes back what reached nobody."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._state = decisions.state

    def deliveries(self, changes: Iterable[Change]) -> list[tuple[Delivery, list[int]]]:
        """What changes of kind LEASED and SENT handed out, as far as it still holds.

        Args:
            changes: in the order of their steps.

        Returns:
            Deliveries in their order, each of one source's messages, and the places of these.
        """
        found: list[tuple[Delivery, list[int]]] = []
        seen: set[int] = set()
        for change in reversed(list(changes)):  # of two leases of a message that end at one instant, the later holds
            holder = self._state.subscription_table.find(change.holder)
            if holder is None:
                continue
            places = [place for place in self._held(change) if place not in seen]
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

    def take_back(self, places: Iterable[int]) -> None:
        """Undo deliveries that nobody could see and whose leases are over: they do not count (Q9).

        Nothing is journaled for it here: the segments are written whole when the epoch begins. Doing it again after a
        crash in between changes nothing.
        """
        once = self._decisions.settings.semantics is Semantics.AT_MOST_ONCE
        row = route(Trigger.UNDELIVER).row(State.SENT if once else State.LEASED)
        self._state.apply(Change(row.changes[0], joined(sorted(places))))

    def undo(self, subscription_id: str, step: Step) -> None:
        """Undo what this step handed to a subscription and nobody took: it does not count, and is not lost (C81)."""
        held = self._decisions.held_by(self._state.subscriptions[subscription_id].number)
        if not held:
            return
        undone = {name for one in self._decisions.messages(held) for name in _names(one)}
        step.events[:] = [
            one
            for one in step.events
            if one.kind is not EventKind.DELIVERED_AT_MOST_ONCE
            or one.messages is None
            or undone.isdisjoint(_names(one.messages))
        ]
        once = self._decisions.settings.semantics is Semantics.AT_MOST_ONCE
        row = route(Trigger.UNDELIVER).row(State.SENT if once else State.LEASED)
        self._decisions.do(Change(row.changes[0], places_of(held)), step)

    def unreached(self, released: Change, now_ms: int, step: Step) -> None:
        """Have a barrier leave for its record, which Kafka removed before anybody got it (C35, C40)."""
        places = np.array([place for place, _ in released.places], np.int64)
        self._decisions.depart(released_message(released), places, (Reason.LOG_TRUNCATED,), now_ms, step)

    def _held(self, change: Change) -> list[int]:
        """Places of a change whose messages are still held as it left them."""
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
    """The barrier that a change of kind RELEASED is about, as it is delivered."""
    facts = released.facts
    offset, no_count = np.array([facts["offset"]], np.int64), np.zeros(1, np.uint32)
    return Messages(facts["topic"], facts["partition"], offset, None, no_count, None)


def _names(messages: Messages) -> list[tuple[str, int, int]]:
    return [(messages.topic, messages.partition, offset) for offset in messages.offsets.tolist()]
