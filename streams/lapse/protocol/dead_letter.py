"""The headers of a dead letter (D2, D3, C26)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lapse.core.letter import PUT
from lapse.core.lifetime import EXPIRES_AT_MS
from lapse.core.reason import Reason, is_unconfirmed
from lapse.protocol import header
from lapse.protocol.bookmark import Bookmark

_SENTENCES = {
    Reason.TIME_LIMIT: "its lifetime ended",
    Reason.FORCED_EXPIRE: "expired by request",
    Reason.MAX_DELIVERIES: "delivered as often as allowed without being acknowledged",
    Reason.MAX_CANCELS: "cancelled more often than allowed",
    Reason.INVALID_LIFETIME: "its lifetime cannot be read",
    Reason.UNDECODABLE: "it cannot be decoded",
    Reason.PURGED: "purged by request",
    Reason.AUTO_DELETED: "its queue or SOW topic was idle and is deleted",
    Reason.WITHDRAWN: "withdrawn before it was visible",
    Reason.LOG_TRUNCATED: "Kafka no longer has the record",
}

_FOR_THE_QUEUE = frozenset({header.REDRIVE_QUEUE, header.TRANSFER, header.TRANSFER_FROM, header.TRANSFER_COUNTS})
"""Headers that assign a record to one queue, which does not apply to its letter."""

NOT_COPIED: Final = header.DEAD_LETTER_NAMES | _FOR_THE_QUEUE | header.ORIGIN_NAMES
"""Headers of a record that are never copied to its letter, which no replication has brought (C54)."""

_KEY = header.RECORD_KEY
_FIRST: Final = frozenset(header.FIRST_NAMES.values()) - {header.FIRST_EXPIRES_AT_MS}
"""Headers that only a letter's letter has. A redriven letter has the deadline under the same name as well."""

_STATED_AGAIN: Final = PUT | {header.MESSAGE_ID}
"""Headers behind those of a letter if it was put somewhere with a deadline of its own; see `is_letter`."""

_MAX_TEXT_BYTES = 1000
"""The size to which a fault's text is cut, so that headers stay small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The facts of a removed message for its letter.

    Attributes:
        entity: the queue or SOW topic that lost it.
        bookmark: its bookmark.
        reasons: the reasons for which it left, in L14's order.
        expired_at_ms: the instant of the removal, ms since 1970.
        expires_at_ms: its deadline, ms since 1970; None without one.
        delivery_count: its delivery count.
        cancel_count: its cancel count.
        detail: text of the fault; empty = a standard sentence.
        epoch: the epoch that removed it; None = not stated.
        null_value: whether its value is known to have been null, which it is not if its record is gone (C84).
        incarnation: distinguishes its topic from earlier ones with the same name (C42); 0 = there were none.
    """

    entity: str
    bookmark: Bookmark
    reasons: tuple[Reason, ...]
    expired_at_ms: int
    expires_at_ms: int | None = None
    delivery_count: int = 0
    cancel_count: int = 0
    detail: str = ""
    epoch: int | None = None
    null_value: bool = False
    incarnation: int = 0


def redriven_count(headers: Sequence[tuple[str, bytes | None]]) -> int:
    """Return how often a record was redriven before, from its headers; 0 if they do not say, or are invalid."""
    for name, value in headers:
        if name == header.REDRIVEN_COUNT and value is not None and value.isdigit() and len(value) < 10:
            return int(value)
    return 0


def lapse_id(entity: str, bookmark: Bookmark, redriven: int, incarnation: int = 0) -> str:
    """Return the deterministic id of a dead letter. A duplicate after a crash has the same id (D3).

    A topic that was created again has the same bookmarks for other messages (C42). So its `incarnation` is in the id.
    """
    return f"{entity}@{incarnation}/{bookmark}/{redriven}" if incarnation else f"{entity}/{bookmark}/{redriven}"


def headers(death: Death, original: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Return a dead letter's headers: the original ones with lifetimes renamed, then the facts of the death.

    Headers of an earlier death are overwritten, and earlier `lapse-original-…` headers are kept (D2).
    """
    of_record = [(name, original[at][1]) for at, name in copied_headers([name for name, _ in original])]
    return of_record + death_headers(death, original)


def copied_headers(names: Sequence[str]) -> list[tuple[int, str]]:
    """Return the indexes of a record's headers that are copied to its letter, each with its name there.

    If the record is a letter itself, lifetimes are not renamed. It has renamed the producer's already, so its
    lifetimes are lapse's own (C54). The facts of the first death are kept under separate names.

    Args:
        names: names of the record's headers, in order.
    """
    again = header.LAPSE_ID in names
    first = header.DLQ_TOPIC in names and _FIRST.isdisjoint(names)
    originals = {name for name in names if name in header.ORIGINAL_NAMES.values()}
    of_death = first and again and _STATED_AGAIN.isdisjoint(names[names.index(header.LAPSE_ID) :])
    found: list[tuple[int, str]] = []
    for at, name in enumerate(names):
        renamed = header.ORIGINAL_NAMES.get(name)
        if first and name in header.FIRST_NAMES and (of_death or name != EXPIRES_AT_MS):
            found.append((at, header.FIRST_NAMES[name]))
        elif renamed is not None:
            if not again and renamed not in originals:
                found.append((at, renamed))
        elif name not in NOT_COPIED and not (again and name == _KEY):
            found.append((at, name))
    return found


def kept_deadline(original: Sequence[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """Return the header that keeps a letter's deadline where the letter gets one of its own (C54); empty if none does.

    Args:
        original: headers of any record.
    """
    names = [name for name, _ in original]
    if header.LAPSE_ID not in names or header.FIRST_EXPIRES_AT_MS in names:
        return []
    return [(name, original[at][1]) for at, name in copied_headers(names) if name == header.FIRST_EXPIRES_AT_MS]


TELLING: Final = frozenset({header.REDRIVEN_COUNT, header.TRANSFER})
"""Headers of a record on whose values the facts of its letter depend."""


def death_headers(death: Death, original: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Return the headers with the facts of a death. Only the record's headers in `TELLING` affect them."""
    redriven = redriven_count(original)
    topic, partition, _ = death.bookmark
    message = death.detail or "; ".join(_SENTENCES[reason] for reason in death.reasons)
    facts: list[tuple[str, str]] = [
        (header.DLQ_TOPIC, topic),
        (header.DLQ_PARTITION, str(partition)),
        (header.DLQ_OFFSET, str(death.bookmark.log_offset)),
        (header.DLQ_GROUP, death.entity),
        (header.DLQ_DELIVERY_COUNT, str(death.delivery_count)),
        (header.DLQ_MESSAGE, message.encode()[:_MAX_TEXT_BYTES].decode("utf-8", "ignore")),
        (header.REASONS, ",".join(death.reasons)),
        (header.CANCEL_COUNT, str(death.cancel_count)),
        (header.EXPIRED_AT_MS, str(death.expired_at_ms)),
        (header.REDRIVEN_COUNT, str(redriven)),
        (header.LAPSE_ID, lapse_id(death.entity, death.bookmark, redriven, death.incarnation)),
    ]
    transfer = next((value for name, value in original if name == header.TRANSFER), None)
    if transfer is not None and is_unconfirmed(death.detail):
        facts.append((header.UNCONFIRMED_TRANSFER, transfer.decode("utf-8", "replace")))
    if death.epoch is not None:
        facts.append((header.EPOCH, str(death.epoch)))
    if death.expires_at_ms is not None:
        facts.append((EXPIRES_AT_MS, str(death.expires_at_ms)))
    if death.null_value:
        facts.append((header.NULL_VALUE, "true"))
    return [(name, value.encode()) for name, value in facts]
