"""Events, and their kinds, for queues and SOW topics alike (D4)."""

from __future__ import annotations

from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from lapse.core.reason import Reason

M = TypeVar("M")
"""What an event is about: columns of a queue's messages, or records of a SOW topic."""


class EventKind(StrEnum):
    """What an event tells (D4)."""

    ACKNOWLEDGED = "acknowledged"
    DELIVERED_AT_MOST_ONCE = "delivered_at_most_once"
    DEAD_LETTERED = "dead_lettered"  # left for L14's reasons, a letter was written
    EXPIRED = "expired"  # left for L14's reasons, without a letter (D1)
    BARRIER_RELEASED = "barrier_released"
    REWOUND = "rewound"  # brought back by a rewind, as a message of its own generation (Q22)
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
    IGNORED = "ignored"  # an update of a SOW topic that is older than what is there (C88)
    DELETED = "deleted"
    SUBSCRIBED = "subscribed"
    UNSUBSCRIBED = "unsubscribed"
    PAUSED = "paused"
    RESUMED = "resumed"


class ShardEvent(NamedTuple, Generic[M]):
    """Something that is written to the event topic (D4).

    Attributes:
        kind: what happened, an `EventKind`.
        at_ms: the instant at which it counts, ms since the epoch.
        messages: which messages or records; None where it is about the entity, or a subscription.
        subscription: whose.
        detail: a sentence for people.
        reasons: why they left, in L14's order, if they did.
    """

    kind: EventKind
    at_ms: int
    messages: M | None = None
    subscription: str = ""
    detail: str = ""
    reasons: tuple[Reason, ...] = ()

    @property
    def ends_entity(self) -> bool:
        """Whether it is the end of the queue or SOW topic, not of one of its messages."""
        return self.kind == EventKind.DELETED and self.messages is None
