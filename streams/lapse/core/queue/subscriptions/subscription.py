"""A subscription to a queue shard (Q3, Q5, C20)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Payload = Literal["inline", "packed", "reference"]
"""How messages are written to a subscription: each in a record, many in a record, or by bookmark only."""


@dataclass(slots=True)
class Subscription:
    """One client's standing request to receive messages of one shard.

    Attributes:
        id: its name on the wire.
        number: its number in the columns of segments, never reused.
        client: the client's name for people.
        max_backlog: most unsettled deliveries at once; 0 = barriers only.
        asked_backlog: the backlog that the client asked for, before the queue's cap.
        heartbeat_timeout_ms: silence after which it is lost, ms.
        filter: content filter; empty = all messages.
        last_seen_ms: instant of its last command, ms since the epoch.
        outstanding: number of unsettled deliveries.
        payload: how its deliveries are written.
        row_filter: its user's row filter, which `filter` includes; empty = all (X4).
        began_ms: instant of its first subscribe, ms since the epoch.
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
        """How many more deliveries it can get now."""
        return max(0, self.max_backlog - self.outstanding)

    @property
    def lost_at_ms(self) -> int:
        """Instant at which it is lost unless heard of before, ms since the epoch."""
        return self.last_seen_ms + self.heartbeat_timeout_ms

    def facts(self) -> dict[str, Any]:
        """Return the values that the journal holds; outstanding deliveries follow from the segments."""
        facts = asdict(self)
        del facts["outstanding"]
        return facts
