"""Records of a SOW topic as queries and subscriptions return them (S5 to S7)."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Message

from lapse.core.lifetime import EXPIRES_AT_MS
from lapse.protocol import header
from lapse.protocol.bookmark import Bookmark
from lapse_client.kafka.headers import headers_of
from lapse_client.payload.serde import DeserializerLike, payload_of
from lapse_client.session.listener import Fields
from lapse_client.session.shard import Shard

log = logging.getLogger("lapse_client")

_OWN: Final = frozenset(
    {
        header.KIND,
        header.SUBSCRIPTION,
        header.COMMAND_ID,
        header.EPOCH,
        header.BOOKMARK,
        header.TIMESTAMP_MS,
        header.OPERATION,
        header.REASONS,
        header.ORDER_VALUE,
        EXPIRES_AT_MS,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SowRecord:
    """The current state of one key, or an update of it.

    Attributes:
        kind: `sow` (result of a query), `publish` (new or replaced), `delta` (the value has only the changed fields),
            or `oof` (out of focus: deleted, expired, or no longer a match). Subscriptions also yield `group-end` (all
            records that matched at the beginning have come) and `resubscribed` (a shard had forgotten the
            subscription, or begins its query again; with a query, drop this `partition`'s records, since they come
            again; other subscriptions may have missed updates).
        key: the record's key.
        value: the record's value.
        bookmark: bookmark of its last update; None if there is none.
        expires_at_ms: its deadline, ms since the epoch; None without one.
        timestamp_ms: its last update, ms since the epoch; -1 if unknown.
        partition: number of the shard.
        operation: for `oof`: the cause, `deleted`, `expired` or `no_longer_matches`.
        reasons: for `oof`: the reasons of the removal (L14).
        command_id: for a query's result: id of the query's command.
        headers: the record's own headers.
        order_value: for a query with `order_by`: the value to order by; None if it is NULL or cannot be compared.
        deserializer: converts the value for `payload`; None = the value is the payload.
    """

    kind: str
    key: bytes | None = None
    value: bytes | None = None
    bookmark: Bookmark | None = None
    expires_at_ms: int | None = None
    timestamp_ms: int = -1
    partition: int = -1
    operation: str = ""
    reasons: tuple[str, ...] = ()
    command_id: str = field(default="", repr=False, compare=False)
    headers: Sequence[tuple[str, bytes | None]] = field(default=(), repr=False)
    order_value: object = field(default=None, repr=False, compare=False)
    deserializer: DeserializerLike | None = field(default=None, repr=False, compare=False)

    @property
    def payload(self) -> Any:
        """The value, deserialized at each access; the value itself if the client has no deserializer.

        Raises:
            InvalidPayload: the value does not fit. A delta has only the changed fields.
        """
        topic = "" if self.bookmark is None else self.bookmark.topic
        return payload_of(self.deserializer, self.value, topic, self.bookmark or "the record")


def read(shard: Shard, message: Message, fields: Fields, deserializer: DeserializerLike | None = None) -> SowRecord:
    """Decode a record of the deliveries topic. If no worker wrote it, log it, and return the kind ""."""
    try:
        return _read(shard, message, fields, deserializer)
    except (ValueError, AttributeError) as error:  # AttributeError: a header without a value
        where = f"{message.topic()}:{message.partition()}:{message.offset()}"
        log.warning("%s is passed over, it cannot be read: %s", where, error)
        return SowRecord(kind="", partition=shard.partition)


def _read(shard: Shard, message: Message, fields: Fields, deserializer: DeserializerLike | None) -> SowRecord:
    place = fields.get(header.BOOKMARK)
    deadline = fields.get(EXPIRES_AT_MS)
    stamp = fields.get(header.TIMESTAMP_MS)
    reasons = fields.get(header.REASONS, b"").decode()
    return SowRecord(
        kind=fields.get(header.KIND, b"").decode(),
        key=message.key(),
        value=message.value(),
        bookmark=Bookmark.parse(place.decode()) if place else None,
        expires_at_ms=int(deadline) if deadline else None,
        timestamp_ms=int(stamp) if stamp else -1,
        partition=shard.partition,
        operation=fields.get(header.OPERATION, b"").decode(),
        reasons=tuple(reasons.split(",")) if reasons else (),
        command_id=fields.get(header.COMMAND_ID, b"").decode(),
        headers=[item for item in headers_of(message) if item[0] not in _OWN],
        deserializer=deserializer,
        order_value=None if (value := fields.get(header.ORDER_VALUE)) is None else json.loads(value),
    )
