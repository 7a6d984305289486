"""Events of queues and SOW topics, and their kinds (D4)."""

from __future__ import annotations

from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from lapse.core.reason import Reason

M = TypeVar("M")
"""The messages of an event: columns of a queue's messages, or a record of a SOW topic."""


class EventKind(StrEnum):
    """What an event reports (D4)."""

    ACKNOWLEDGED = "acknowledged"
    DELIVERED_AT_MOST_ONCE = "delivered_at_most_once"
    DEAD_LETTERED = "dead_lettered"  # left for reasons of L14, with a dead letter
    EXPIRED = "expired"  # left for reasons of L14, without a dead letter (D1)
    BARRIER_RELEASED = "barrier_released"
    REWOUND = "rewound"  # brought back by a rewind, as a message of a new generation (Q22)
    REPEATED = "repeated"  # dropped on arrival: its message id was seen within the window (X6)
    DYING = "dying"  # removed, but its dead letter is refused and tried again (C27)
    TRANSFERRED = "transferred"  # left for another deployment (Q17)
    TRANSFERRING = "transferring"
    TRANSFER_CANCELLED = "transfer_cancelled"
    TRANSFER_CONFIRMED = "transfer_confirmed"
    CANCELLED = "cancelled"
    LEASE_RETURNED = "lease_returned"
    RENEWED = "renewed"
    SCHEDULED = "scheduled"
    HELD = "held"  # its instant has come, and it waits beyond the target depth (C51)
    IGNORED = "ignored"  # an update of a SOW topic that is older than the stored record (C88)
    DELETED = "deleted"
    SUBSCRIBED = "subscribed"
    UNSUBSCRIBED = "unsubscribed"
    PAUSED = "paused"
    RESUMED = "resumed"


class ShardEvent(NamedTuple, Generic[M]):
    """An event for the event topic (D4).

    Attributes:
        kind: what happened.
        at_ms: the instant at which it took effect, ms since the epoch.
        messages: the messages or record; None for an event of the entity, or of a subscription.
        subscription: id of the subscription concerned; empty = none.
        detail: a sentence for people.
        reasons: the reasons for which the messages left, in L14's order; empty if they did not.
    """

    kind: EventKind
    at_ms: int
    messages: M | None = None
    subscription: str = ""
    detail: str = ""
    reasons: tuple[Reason, ...] = ()

    @property
    def ends_entity(self) -> bool:
        """Whether the event is the deletion of the queue or SOW topic."""
        return self.kind == EventKind.DELETED and self.messages is None
