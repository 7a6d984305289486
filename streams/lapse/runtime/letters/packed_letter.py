"""Dead letters as a RecordBatch holds them: what letters of one removal have in common is written once (D2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from lapse.core.generation import FIRST_REWOUND, offset_of, shown
from lapse.core.lifetime import EXPIRES_AT_MS
from lapse.protocol import dead_letter, header
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.dead_letter import Death
from lapse.runtime.kafka.packed_record import NULL, VARINT, packed_headers, packed_name

_OFFSET: Final = packed_name(header.DLQ_OFFSET)
_ID: Final = packed_name(header.LAPSE_ID)
_EXPIRES_AT: Final = packed_name(EXPIRES_AT_MS)


class _Frame(NamedTuple):
    """The headers of a letter, packed, without offset, id and deadline.

    Attributes:
        headers: how many there are, offset and id included.
        before: those before the offset.
        between: those between offset and id.
        behind: those behind the id.
        id_head: the id before the offset.
        id_tail: the id behind it.
    """

    headers: int
    before: bytes
    between: bytes
    behind: bytes
    id_head: bytes
    id_tail: bytes


class PackedLetters:
    """Packs the letters of one removal.

    Args:
        death: of its first message; `expires_at_ms` is left out of account.
    """

    def __init__(self, death: Death) -> None:
        self._death = replace(death, expires_at_ms=None)
        self._like: tuple[Any, int, int] | None = None
        self._frame = _Frame(0, b"", b"", b"", b"", b"")

    def pack(
        self, offset: int, record: Any | None, delivery_count: int, cancel_count: int, expires_at_ms: int | None
    ) -> bytes:
        """The letter of one message; without a record, of one that Kafka has removed."""
        original = () if record is None else record.headers
        like = (original, delivery_count, cancel_count)
        if like != self._like:
            # Most of those that leave together have these in common.
            self._like, self._frame = like, self._framed(original, delivery_count, cancel_count)
        count, before, between, behind, id_head, id_tail = self._frame
        varint = VARINT
        place = b"%d" % offset_of(offset)
        name = id_head + (place if offset < FIRST_REWOUND else shown(offset).encode()) + id_tail
        parts = [
            NULL if record is None or record.key is None else varint[len(record.key)] + record.key,
            NULL if record is None or record.value is None else varint[len(record.value)] + record.value,
            varint[count if expires_at_ms is None else count + 1],
            before, _OFFSET, varint[len(place)], place, between, _ID, varint[len(name)], name, behind,
        ]  # fmt: skip
        if expires_at_ms is not None:
            until = b"%d" % expires_at_ms
            parts += (_EXPIRES_AT, varint[len(until)], until)
        return b"".join(parts)

    def _framed(self, original: Sequence[tuple[str, bytes]], delivery_count: int, cancel_count: int) -> _Frame:
        topic, partition, _ = self._death.bookmark
        bookmark = Bookmark(topic, partition, 0)
        death = replace(self._death, bookmark=bookmark, delivery_count=delivery_count, cancel_count=cancel_count)
        headers = dead_letter.headers(death, original)
        names = [name for name, _ in headers]
        at, of_id = names.index(header.DLQ_OFFSET), names.index(header.LAPSE_ID)
        head, slash, redriven = headers[of_id][1].rpartition(b"/")
        return _Frame(
            len(headers),
            packed_headers(headers[:at]),
            packed_headers(headers[at + 1 : of_id]),
            packed_headers(headers[of_id + 1 :]),
            head.removesuffix(b"0"),
            slash + redriven,
        )
