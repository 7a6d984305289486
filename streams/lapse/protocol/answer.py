"""Answers of shards to commands, in the encoding of the command (X2, C16)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeVar

import orjson

from lapse.protocol import codec, confluent
from lapse.protocol.command import Encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """Messages that share a result of a settlement (C16)."""

    bookmarks: str
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedMessage:
    """A message as a peek shows it, without its payload (Q15)."""

    bookmark: str
    state: str
    expires_at_ms: int | None = None
    delivery_count: int = 0
    cancel_count: int = 0
    subscription: str = ""
    until_ms: int | None = None
    waits_for: str = ""
    since_ms: int | None = None
    """Start of its lease, ms since the epoch. On the wire it is outside the messages, for readers with old schemas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterDemand:
    """How many messages the subscriptions with one filter would take (Q26)."""

    filter: str
    wanted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSubscription:
    """An open subscription as `subscriptions` lists it (Q15)."""

    subscription: str
    client: str = ""
    since_ms: int = 0
    heard_ms: int = 0
    outstanding: int = 0
    max_backlog: int = 0
    filter: str = ""
    hangs_since_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledUpdate:
    """An update of a SOW topic that waits for its instant (L5, C47)."""

    bookmark: str
    key: str = ""
    change: str = "publish"
    enqueue_at_ms: int = 0
    expires_at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer. Its fields are those of `schemas/answer.avsc`, which describes each."""

    id: str
    command: str
    status: str
    error: str = ""
    partition: int = -1
    at_ms: int = 0
    settlements: tuple[Settlement, ...] = ()
    lease_until_ms: int | None = None
    counts: Mapping[str, Any] = field(default_factory=dict)
    """Whole numbers; None = a figure that does not exist now, such as the age of the oldest message without any."""

    messages: tuple[QueuedMessage, ...] = ()
    publish_target: str = ""
    handed_over: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    code: str = ""
    late: tuple[str, ...] = ()
    demands: tuple[FilterDemand, ...] = ()
    value_format: str = ""
    subscriptions: tuple[OpenSubscription, ...] = ()
    updates: tuple[ScheduledUpdate, ...] = ()
    since_ms: tuple[int, ...] = ()
    """For each of `messages`, the start of its lease, ms since the epoch, 0 = not known; empty = none is known."""


HELD_UP: Final = ("before_barrier", "dying_before_barrier", "groups_held_back", "hanging")
"""Counts of a queue's `depth` of what holds messages up, by cause."""
MOST_SETTLEMENTS: Final = 10_000
MOST_ERROR_CHARACTERS: Final = 2_000
"""The greatest length of an error. An answer is one record, so its size is limited."""


def encode(answer: Answer, encoding: Encoding) -> bytes:
    """Encode an answer in the encoding of its command. Parts that make it too long are left out, as its error says."""
    error, settlements = answer.error, answer.settlements
    if len(error) > MOST_ERROR_CHARACTERS:
        error = error[: MOST_ERROR_CHARACTERS // 2] + " … " + error[-MOST_ERROR_CHARACTERS // 2 :]
    if len(settlements) > MOST_SETTLEMENTS:
        error = f"{error or 'done'}; the results of {len(settlements) - MOST_SETTLEMENTS} more ranges are left out"
        settlements = settlements[:MOST_SETTLEMENTS]
    if error is not answer.error:
        answer = replace(answer, error=error, settlements=settlements)
    record = _record(answer)
    if encoding == "json":
        return codec.encode_json(record)
    record["counts"] = {name: count for name, count in answer.counts.items() if count is not None}
    if encoding == "confluent" and confluent.has_schema_id("answer"):
        return confluent.encode("answer", record)
    return codec.encode("answer", record) if encoding == "avro" else codec.encode_json(_record(answer))


def decode(data: bytes) -> Answer:
    """Decode an answer in Avro or JSON.

    Raises:
        codec.CodecError: the bytes are not an answer.
    """
    record: Any
    if codec.is_avro(data):
        record = codec.decode("answer", data)
    else:
        try:
            record = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise codec.CodecError(f"an answer that is neither Avro nor JSON: {error}") from error
    if not isinstance(record, dict):
        raise codec.CodecError("an answer is an object, and this is none")
    answer = _read(Answer, {**record, **{name: _read_array(record, name, kind) for name, kind in _PARTS.items()}})
    return _with_beginnings(answer) if answer.since_ms else answer


def _with_beginnings(answer: Answer) -> Answer:
    """Return an answer with the starts of leases moved into its messages."""
    starts_ms = answer.since_ms
    if len(starts_ms) != len(answer.messages) or not all(isinstance(one, int) for one in starts_ms):
        raise codec.CodecError("an answer: field since_ms has to be a whole number for each of messages")
    messages = tuple(
        replace(one, since_ms=at_ms or None) for one, at_ms in zip(answer.messages, starts_ms, strict=True)
    )
    return replace(answer, messages=messages, since_ms=())


def _record(answer: Answer) -> dict[str, Any]:
    """Return an answer in the form that the codecs encode."""
    record = {name: getattr(answer, name) for name in _FIELDS[Answer]}
    for part, kind in _PARTS.items():
        known = _FIELDS[kind]
        record[part] = [{name: getattr(one, name) for name in known} for one in record[part]]
    for one in record["messages"]:
        del one[_SINCE]
    since_ms = [one.since_ms or 0 for one in answer.messages]
    record[_SINCE] = since_ms if any(since_ms) else []
    return record


def _read_array(record: dict[str, Any], name: str, kind: type[_T]) -> tuple[_T, ...]:
    """Read the objects of an array field."""
    given = record.get(name, ())
    if not isinstance(given, list | tuple) or not all(isinstance(one, dict) for one in given):
        raise codec.CodecError(f"an answer: field {name} is no array of objects")
    return tuple(_read(kind, one) for one in given)


def _read(kind: type[_T], record: dict[str, Any]) -> _T:
    """Read an object. Unknown fields come from a newer worker, and are ignored."""
    known = _FIELDS[kind]
    kept: dict[str, Any] = {}
    for name, value in record.items():
        if name in known:
            expected = known[name]
            if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
                raise codec.CodecError(f"an answer: field {name} is {str(value)[:_SHOWN]!r}, which is of a wrong type")
            kept[name] = tuple(value) if isinstance(value, list) else value
    try:
        return kind(**kept)
    except TypeError as error:
        raise codec.CodecError(f"an answer: {error}") from error


_T = TypeVar("_T")
_SHOWN: Final = 60
_SINCE: Final = "since_ms"

_PARTS: Final[Mapping[str, type]] = {
    "settlements": Settlement,
    "messages": QueuedMessage,
    "demands": FilterDemand,
    "subscriptions": OpenSubscription,
    "updates": ScheduledUpdate,
}
"""By name of a field that is an array of objects: the kind of its objects."""

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "str": (str,),
    "int": (int,),
    "int | None": (int, type(None)),
    "Mapping[str, Any]": (dict,),
}
_FIELDS: Final[Mapping[type, Mapping[str, tuple[type, ...]]]] = {
    kind: {each.name: _TYPES.get(str(each.type), (list, tuple)) for each in fields(kind)}
    for kind in (*_PARTS.values(), Answer)
}
"""By kind of object: its fields with the permitted types of their values."""
