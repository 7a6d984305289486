"""Journal entries for calls of an expiry rule that are still to be made (L15, C26).

An entry becomes durable before the removal that it belongs to, and is dropped when its calls were made. A queue's entry
names messages, whose payloads are in their log. A SOW topic's entry has the record itself, which exists nowhere else.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from lapse.core.generation import generation_of, offset_of
from lapse.core.lifetime import NEVER
from lapse.core.queue.step import Removal
from lapse.core.sow.step import Removal as RecordRemoval
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.dead_letter import lapse_id, redriven_count
from lapse.runtime.letters.expired_message import ExpiredMessage

MOST_MESSAGES: Final = 1_000
"""The most messages in an entry, which keeps it small."""

_SIZE: Final = struct.Struct(">I")
_Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Entry:
    """Messages of one partition that left together.

    Attributes:
        topic: underlying topic.
        partition: its partition.
        offsets: the messages, ascending.
        deadlines_ms: deadline of each, ms since the epoch; `NEVER` without one.
        deliveries: delivery count of each.
        cancels: cancel count of each.
        reasons: why they left, in L14's order.
        at_ms: instant of the decision, ms since the epoch.
        incarnation: distinguishes the topic from earlier ones with the same name (C42); 0 = there were none.
        copy: key, value and headers of a single message that the log no longer has; None if the log has it.
    """

    topic: str
    partition: int
    offsets: Sequence[int]
    deadlines_ms: Sequence[int]
    deliveries: Sequence[int]
    cancels: Sequence[int]
    reasons: tuple[str, ...]
    at_ms: int
    incarnation: int = 0
    copy: tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]] | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def message(self, entity: str, at: int, record: Any | None) -> ExpiredMessage:
        """Return one of the messages, with its record from the log; None if Kafka no longer has the record (C40)."""
        key: bytes | None = None
        value: bytes | None = None
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if self.copy is not None:
            key, value, headers = self.copy
        elif record is not None:
            key, value, headers = record.key, record.value, tuple(record.headers)
        offset = self.offsets[at]
        return ExpiredMessage(
            entity=entity,
            topic=self.topic,
            partition=self.partition,
            offset=offset_of(offset),
            generation=generation_of(offset),
            key=key,
            value=value,
            headers=headers,
            reasons=self.reasons,
            expires_at_ms=None if self.deadlines_ms[at] == NEVER else self.deadlines_ms[at],
            expired_at_ms=self.at_ms,
            delivery_count=self.deliveries[at],
            cancel_count=self.cancels[at],
            lapse_id=lapse_id(
                entity, Bookmark(self.topic, self.partition, offset), redriven_count(headers), self.incarnation
            ),
        )

    def encode(self) -> bytes:
        """Encode the entry for the journal: facts as JSON, then the unchanged value."""
        facts: dict[str, Any] = {
            "topic": self.topic,
            "partition": self.partition,
            "offsets": list(self.offsets),
            "deadlines_ms": list(self.deadlines_ms),
            "deliveries": list(self.deliveries),
            "cancels": list(self.cancels),
            "reasons": self.reasons,
            "at_ms": self.at_ms,
            "incarnation": self.incarnation,
        }
        value: bytes | None = b""
        if self.copy is not None:
            key, value, headers = self.copy
            facts |= {
                "key": _text(key),
                "headers": [(name, _text(content)) for name, content in headers],
                "null": value is None,
            }
        head = orjson.dumps(facts)
        return _SIZE.pack(len(head)) + head + (value or b"")

    @classmethod
    def decode(cls, data: bytes) -> Entry:
        """Decode an entry."""
        size = _SIZE.unpack_from(data)[0]
        facts = orjson.loads(data[_SIZE.size : _SIZE.size + size])
        copy = None
        if "null" in facts:
            value = None if facts.pop("null") else data[_SIZE.size + size :]
            headers = tuple((name, _bytes(content)) for name, content in facts.pop("headers"))
            copy = (_bytes(facts.pop("key")), value, headers)
        facts["reasons"] = tuple(facts["reasons"])
        return cls(**facts, copy=copy)


def of_removal(removal: Removal) -> list[Entry]:
    """Return the entries of messages that left a queue."""
    messages = removal.messages
    count = len(messages)
    deadlines_ms = [NEVER] * count if messages.deadlines_ms is None else messages.deadlines_ms.tolist()
    deliveries = messages.deliveries.tolist()
    cancels = [0] * count if messages.cancels is None else messages.cancels.tolist()
    offsets = messages.offsets.tolist()
    reasons = tuple(str(reason) for reason in removal.reasons)
    return [
        Entry(
            messages.topic,
            messages.partition,
            offsets[at : at + MOST_MESSAGES],
            deadlines_ms[at : at + MOST_MESSAGES],
            deliveries[at : at + MOST_MESSAGES],
            cancels[at : at + MOST_MESSAGES],
            reasons,
            removal.at_ms,
            removal.incarnation,
        )
        for at in range(0, count, MOST_MESSAGES)
    ]


def of_copy(left: RecordRemoval) -> Entry:
    """Return the entry of a record that left a SOW topic."""
    return Entry(
        left.bookmark.topic,
        left.bookmark.partition,
        [left.bookmark.offset],
        [left.deadline_ms],
        [0],
        [0],
        tuple(str(reason) for reason in left.reasons),
        left.at_ms,
        left.incarnation,
        (left.key, left.value, left.headers),
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)
