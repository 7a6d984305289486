"""Subscriptions to a queue shard (Q3, Q5, C20)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Payload = Literal["inline", "packed", "reference"]
"""How a message goes to a subscription: in a record of its own, with others in one, or by its bookmark."""


@dataclass(slots=True)
class Subscription:
    """One client's standing request on one shard.

    Attributes:
        id: its name on the wire.
        number: its short name in the columns of segments; never used again for another subscription.
        client: a name for people.
        max_backlog: most deliveries outstanding at once; 0 = barriers only.
        asked_backlog: the same as the client asked for it, before the queue's cap.
        heartbeat_timeout_ms: silence after which it is lost, ms.
        filter: content filter, empty = all messages.
        last_seen_ms: instant of its last command, ms since the epoch.
        outstanding: deliveries that it has not settled.
        payload: how its deliveries are written.
        row_filter: what its user may see at most, which is part of the filter; empty = all (X4).
        began_ms: instant at which it subscribed first, ms since the epoch.
    """

    id: str
    number: int
    client: str
    max_backlog: int
    asked_backlog: int
    heartbeat_timeout_ms: int
    filter: str = ""
    last_seen_ms: int = 0
    outstanding: int = 0
    payload: Payload = "inline"
    row_filter: str = ""
    began_ms: int = 0

    @property
    def space(self) -> int:
        """How many more deliveries it takes now."""
        return max(0, self.max_backlog - self.outstanding)

    @property
    def lost_at_ms(self) -> int:
        """Instant at which it counts as lost unless it is heard of, ms since the epoch."""
        return self.last_seen_ms + self.heartbeat_timeout_ms

    def facts(self) -> dict[str, Any]:
        """What the journal keeps of it; outstanding deliveries are in the segments."""
        facts = asdict(self)
        del facts["outstanding"]
        return facts
