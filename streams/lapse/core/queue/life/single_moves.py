"""Single moves: one message is handed out under a lease, or leaves after one. Most messages make just these movements.

They do what `Mover` does by the table of life for any movement. `test_one_message` compares both ways.
"""

from __future__ import annotations

from typing import Final, Protocol

from lapse.core.queue.change import Change
from lapse.core.queue.life.message_state import State
from lapse.core.queue.segments.index import Index
from lapse.core.queue.segments.segment import NOBODY, Segment
from lapse.core.queue.subscriptions.subscription_table import SubscriptionTable

_LEASED: Final = State.LEASED  # a look-up in the enumeration takes five times as long
_GONE: Final = State.GONE


class MovedState(Protocol):
    """The part of a queue's state that these movements change.

    Attributes:
        index: the indexes over the segments.
        subscription_table: the subscriptions.
    """

    index: Index
    subscription_table: SubscriptionTable

    def finish_change(self, segment: Segment, other_available: bool) -> None:
        """Note a change of messages of a segment, and drop the segment if none is left."""


def lease_one(state: MovedState, change: Change, segment: Segment, slot: int) -> None:
    """Hand an available message out under a lease."""
    index = state.index
    segment.available -= 1
    if index.columns is not None or index.lines is not None:
        index.note_left(segment, slice(slot, slot + 1))
    segment.delivery_counts()[slot] += 1
    holder, until_ms = segment.leases()
    holder[slot], until_ms[slot] = change.holder, change.until_ms
    if change.offset or segment.since_ms is not None:
        segment.lease_starts()[slot] = change.offset
    segment.state[slot] = _LEASED
    if segment.groups is not None:
        index.bind_groups(segment, slice(slot, slot + 1), 1, _LEASED)
    state.subscription_table.count(change.holder, 1)
    if change.until_ms < segment.min_until_ms:
        index.note_until(segment, change.until_ms)
    state.finish_change(segment, True)


def settle_one(state: MovedState, segment: Segment, slot: int) -> None:
    """Let a leased message leave."""
    index = state.index
    if segment.groups is not None:
        index.bind_groups(segment, slice(slot, slot + 1), -1, _LEASED)
    if segment.holder is not None:
        state.subscription_table.count(segment.holder.item(slot), -1)
        segment.holder[slot] = NOBODY
    segment.state[slot] = _GONE
    segment.occupied -= 1
    if index.barriers:
        index.forget_barriers(segment, slice(slot, slot + 1))
    state.finish_change(segment, False)
