"""The argument of an expiry rule: a copy of a message that left (L14, L15)."""

from __future__ import annotations

from dataclasses import dataclass, field

from lapse.core.generation import format_position, position_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredMessage:
    """A message, or record of a SOW topic, that left for one of L14's reasons.

    Attributes:
        entity: the queue or SOW topic that it left.
        topic: its underlying topic.
        partition: its partition.
        offset: its offset.
        key: its key; None without one, or if Kafka no longer has the record (C40).
        value: its value; for a SOW topic the last state of the record.
        headers: all its headers in order.
        reasons: why it left, in L14's order.
        expires_at_ms: its deadline, ms since the epoch; None without one.
        expired_at_ms: the instant of the decision, ms since the epoch (C26).
        delivery_count: how often it was delivered.
        cancel_count: how often it was cancelled.
        lapse_id: an id that repeated calls for this removal and its dead letter have in common (D3).
        generation: number of the rewind of its partition that brought it back; 0 if none did (C61).
    """

    entity: str
    topic: str
    partition: int
    offset: int
    key: bytes | None = field(repr=False)
    value: bytes | None = field(repr=False)
    headers: tuple[tuple[str, bytes | None], ...] = field(repr=False)
    reasons: tuple[str, ...]
    expires_at_ms: int | None
    expired_at_ms: int
    delivery_count: int
    cancel_count: int
    lapse_id: str
    generation: int = 0

    @property
    def bookmark(self) -> str:
        """Its bookmark `topic:partition:offset`, followed by its generation if it has one."""
        return f"{self.topic}:{self.partition}:{format_position(position_of(self.offset, self.generation))}"
