"""Hand-overs: which records elsewhere replace which messages, such as `orders:0:5-9>orders:2:105-109` (Q17)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from lapse.core.lifetime import NAMES
from lapse.core.transfer_counts import NONE as NO_COUNTS
from lapse.core.transfer_counts import Counts
from lapse.protocol import header, topic
from lapse.protocol.bookmark import Bookmark, BookmarkRange
from lapse.protocol.dead_letter import kept_deadline

_BECOMES: Final = ">"


def transfer_id(text: str) -> str:
    """Return the id of a transfer.

    Raises:
        ValueError: it is none; the text names the rule.
    """
    if not topic.NAME.match(text):
        raise ValueError(
            f"{text[:40]!r} is no id of a transfer: at most 200 letters, digits, '.', '_' and '-', and neither '.' nor "
            "'-' first"
        )
    return text


@dataclass(frozen=True, slots=True)
class HandOver:
    """Messages, and the records that replace them one by one.

    Attributes:
        messages: the messages at the source deployment.
        records: the same number of records at the destination.
    """

    messages: BookmarkRange
    records: BookmarkRange

    def __str__(self) -> str:
        return f"{self.messages}{_BECOMES}{self.records}"

    def record_of(self, message: Bookmark) -> Bookmark | None:
        """Return the record that replaces a message; None if the message is not one of these."""
        return _counterpart(message, self.messages, self.records)

    def message_of(self, record: Bookmark) -> Bookmark | None:
        """Return the message that a record replaces; None if the record is not one of these."""
        return _counterpart(record, self.records, self.messages)

    @classmethod
    def parse(cls, text: str) -> HandOver:
        """Parse `topic:partition:first[-last]>topic:partition:first[-last]`.

        Raises:
            ValueError: the text has another form, or the ranges have different lengths.
        """
        here, becomes, there = text.partition(_BECOMES)
        if not becomes:
            raise ValueError(f"hand-over {text!r}: expected topic:partition:first-last>topic:partition:first-last")
        both = cls(BookmarkRange.parse(here), BookmarkRange.parse(there))
        if len(both.messages) != len(both.records):
            raise ValueError(f"hand-over {text!r}: {len(both.messages)} messages cannot be {len(both.records)} records")
        return both


def _counterpart(one: Bookmark, among: BookmarkRange, others: BookmarkRange) -> Bookmark | None:
    if one[:2] != (among.topic, among.partition) or not among.first <= one.offset <= among.last:
        return None
    return Bookmark(others.topic, others.partition, others.first + one.offset - among.first)


def join_neighbours(pairs: Iterable[tuple[Bookmark, Bookmark]]) -> list[HandOver]:
    """Join neighbouring messages whose records are neighbours as well."""
    ends: list[tuple[Bookmark, Bookmark, int]] = []
    for here, there in sorted(pairs):
        if ends:
            first, record, count = ends[-1]
            if (*first[:2], first.offset + count) == here and (*record[:2], record.offset + count) == there:
                ends[-1] = first, record, count + 1
                continue
        ends.append((here, there, 1))
    return [
        HandOver(
            BookmarkRange(here.topic, here.partition, here.offset, here.offset + count - 1),
            BookmarkRange(there.topic, there.partition, there.offset, there.offset + count - 1),
        )
        for here, there, count in ends
    ]


def headers(
    original: Sequence[tuple[str, bytes | None]],
    queue: str,
    transfer: str,
    expires_at_ms: int | None,
    enqueue_at_ms: int | None,
    counts: Counts = NO_COUNTS,
    origin: str = "",
) -> list[tuple[str, bytes | None]]:
    """Return the headers of a record that a transfer puts at its destination. The deadline stays exactly the same.

    Args:
        original: the message's headers.
        queue: the only queue that takes the record.
        transfer: id of the transfer.
        expires_at_ms: the message's deadline, ms since the epoch; None without one.
        enqueue_at_ms: the instant before which it may not be delivered, ms since the epoch; None = at once.
        counts: its deliveries and cancels, which count towards the destination's limits (C73).
        origin: the queue and cluster that hand it over; empty = not stated.
    """
    kept = [(name, value) for name, value in original if name not in _REPLACED]
    kept += kept_deadline(original)
    kept.append((header.TRANSFER, f"{queue}/{transfer}".encode()))
    if origin:
        kept.append((header.TRANSFER_FROM, origin.encode()))
    if expires_at_ms is None:
        kept.append((header.TTL_MS, b"0"))
    else:
        kept.append((header.EXPIRES_AT_MS, b"%d" % expires_at_ms))
    if enqueue_at_ms is not None:
        kept.append((header.ENQUEUE_AT_MS, b"%d" % enqueue_at_ms))
    if counts != NO_COUNTS:
        kept.append((header.TRANSFER_COUNTS, counts.encode()))
    return kept


_REPLACED: Final = NAMES | {header.TRANSFER, header.TRANSFER_FROM, header.TRANSFER_COUNTS, header.REDRIVE_QUEUE}
