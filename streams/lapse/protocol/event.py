"""Events on `lapse.events.<name>`, which say what happened to messages (D4)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from lapse.core.shard.event import EventKind as EventKind
from lapse.protocol import codec
from lapse.protocol.bookmark import BookmarkRange

_MAX_DETAIL_CHARACTERS: Final = 1_000

TERMINAL = frozenset(
    {
        EventKind.ACKNOWLEDGED,
        EventKind.DELIVERED_AT_MOST_ONCE,
        EventKind.DEAD_LETTERED,
        EventKind.EXPIRED,
        EventKind.BARRIER_RELEASED,
        EventKind.REPEATED,
        EventKind.TRANSFERRED,
    }
)
"""The kinds that end a message's stay in a queue. A message has exactly one, which may be written repeatedly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event. Its fields are those of `schemas/event.avsc`, which describes each."""

    entity: str
    event: str
    at_ms: int
    partition: int
    epoch: int = 0
    messages: tuple[BookmarkRange, ...] = ()
    reasons: tuple[str, ...] = ()
    subscription: str = ""
    key: bytes | None = None
    expires_at_ms: int | None = None
    delivery_count: int | None = None
    cancel_count: int | None = None
    dead_letter_topic: str = ""
    detail: str = ""


_NAMES: Final = tuple(one.name for one in fields(Event))


def encode(event: Event) -> bytes:
    """Encode an event in Avro single-object encoding. A very long detail is cut."""
    fields = {name: getattr(event, name) for name in _NAMES}
    # Without `asdict`, which would take most of the time for an event with a thousand ranges.
    fields["messages"] = [
        {"topic": one.topic, "partition": one.partition, "first": one.first, "last": one.last} for one in event.messages
    ]
    fields["detail"] = event.detail[:_MAX_DETAIL_CHARACTERS]
    return codec.encode("event", fields)


def decode(data: bytes) -> Event:
    """Decode an event.

    Raises:
        codec.CodecError: the bytes are not an event.
    """
    record: dict[str, Any] = codec.decode("event", data)
    record["messages"] = tuple(BookmarkRange(**item) for item in record["messages"])
    record["reasons"] = tuple(record["reasons"])
    return Event(**record)
