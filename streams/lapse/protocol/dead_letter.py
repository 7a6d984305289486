"""The headers of a dead letter (D2, D3, C26)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lapse.core.lifetime import EXPIRES_AT_MS
from lapse.core.reason import UNCONFIRMED, Reason
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
"""Headers that say which queue takes a record; a letter goes to nobody in particular."""

NOT_COPIED: Final = header.DEAD_LETTER_NAMES | _FOR_THE_QUEUE
"""Headers of a record that its letter does not bear, whatever else the record bears."""

_KEY = header.RECORD_KEY
_FIRST: Final = frozenset(header.FIRST_NAMES.values())

_MAX_TEXT_BYTES = 1000
"""A fault's text is cut to this, so that headers stay small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """What a letter says of a message that left.

    Attributes:
        entity: the queue or SOW topic that lost it.
        bookmark: where its record stands.
        reasons: why it left, in L14's order.
        expired_at_ms: the instant of the decision, ms since the epoch.
        expires_at_ms: its deadline, ms since the epoch; None without one.
        delivery_count: how often it was delivered.
        cancel_count: how often it was cancelled.
        detail: the text of the fault; a standard sentence when empty.
        epoch: the epoch that decided it; None where there is none.
        null_value: whether its value was null; of a message whose record is gone that is not known (C84).
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


def redriven_count(headers: Sequence[tuple[str, bytes | None]]) -> int:
    """How often a record was redriven before, from its headers; 0 when it does not say or cannot be read."""
    for name, value in headers:
        if name == header.REDRIVEN_COUNT and value is not None and value.isdigit() and len(value) < 10:
            return int(value)
    return 0


def lapse_id(entity: str, bookmark: Bookmark, redriven: int) -> str:
    """The deterministic id of a dead letter: a crash's duplicate has the same one (D3)."""
    return f"{entity}/{bookmark}/{redriven}"


def headers(death: Death, original: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Build a dead letter's headers: the original ones, lifetimes renamed, then what is known of the death.

    A header of an earlier death is overwritten, an earlier `lapse-original-…` is kept (D2).
    """
    of_record = [(name, original[at][1]) for at, name in kept([name for name, _ in original])]
    return of_record + facts(death, original)


def kept(names: Sequence[str]) -> list[tuple[int, str]]:
    """Which of a record's headers its letter bears, by index, each with its name there.

    Of a letter's letter no lifetime is renamed: the first letter had renamed the producer's, so what it bears is
    lapse's own (C54). What the first letter said is kept under names of its own.

    Args:
        names: of the record's headers, in their order.
    """
    again = header.LAPSE_ID in names
    first = header.DLQ_TOPIC in names and _FIRST.isdisjoint(names)
    originals = {name for name in names if name in header.ORIGINAL_NAMES.values()}
    found: list[tuple[int, str]] = []
    for at, name in enumerate(names):
        renamed = header.ORIGINAL_NAMES.get(name)
        if first and name in header.FIRST_NAMES:
            found.append((at, header.FIRST_NAMES[name]))
        elif renamed is not None:
            if not again and renamed not in originals:
                found.append((at, renamed))
        elif name not in NOT_COPIED and not (again and name == _KEY):
            found.append((at, name))
    return found


TELLING: Final = frozenset({header.REDRIVEN_COUNT, header.TRANSFER})
"""Headers of a record whose values a letter's facts depend on."""


def facts(death: Death, original: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """The headers that say what is known of a death; of the record's own only those in `TELLING` matter."""
    redriven = redriven_count(original)
    topic, partition, _ = death.bookmark
    message = death.detail or "; ".join(_SENTENCES[reason] for reason in death.reasons)
    told: list[tuple[str, str]] = [
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
        (header.LAPSE_ID, lapse_id(death.entity, death.bookmark, redriven)),
    ]
    transfer = next((value for name, value in original if name == header.TRANSFER), None)
    if death.detail == UNCONFIRMED and transfer is not None:
        told.append((header.UNCONFIRMED_TRANSFER, transfer.decode("utf-8", "replace")))
    if death.epoch is not None:
        told.append((header.EPOCH, str(death.epoch)))
    if death.expires_at_ms is not None:
        told.append((EXPIRES_AT_MS, str(death.expires_at_ms)))
    if death.null_value:
        told.append((header.NULL_VALUE, "true"))
    return [(name, value.encode()) for name, value in told]
