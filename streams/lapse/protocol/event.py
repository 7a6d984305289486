"""Events on `lapse.events.<name>`, which say what happened to messages (D4)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

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


class PackedRanges(NamedTuple):
    """Ranges of messages in the encoding of an event: their number, and the bytes of all of them."""

    total: int
    data: bytes


def packed_source(topic: str, partition: int) -> bytes:
    """Return the bytes with which each range of a source begins. First and last offset follow as Avro `long`s."""
    name = topic.encode()
    return codec.packed_long(len(name)) + name + codec.packed_long(partition)


_NAMES: Final = tuple(one.name for one in fields(Event))


def encode(event: Event, messages: PackedRanges | None = None) -> bytes:
    """Encode an event in Avro single-object encoding. A very long detail is cut.

    Args:
        event: the event.
        messages: its messages instead of `event.messages`.
    """
    fields = {name: getattr(event, name) for name in _NAMES}
    # Without `asdict`, which would take most of the time for an event with a thousand ranges.
    fields["messages"] = [
        {"topic": one.topic, "partition": one.partition, "first": one.first, "last": one.last} for one in event.messages
    ]
    fields["detail"] = event.detail[:_MAX_DETAIL_CHARACTERS]
    if messages is None or not messages.total:
        return codec.encode("event", fields)
    return codec.encode_with_items("event", {**fields, "messages": []}, "messages", messages.total, messages.data)


def decode(data: bytes) -> Event:
    """Decode an event.

    Raises:
        codec.CodecError: the bytes are not an event.
    """
    record: dict[str, Any] = codec.decode("event", data)
    record["messages"] = tuple(BookmarkRange(**item) for item in record["messages"])
    record["reasons"] = tuple(record["reasons"])
    return Event(**record)


def epoch_of(data: bytes | None) -> int:
    """Return the epoch of an event; 0 if the bytes are no event."""
    try:
        return decode(data or b"").epoch
    except codec.CodecError:
        return 0
