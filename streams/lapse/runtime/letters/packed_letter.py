"""Dead letters in the format of a RecordBatch: the common parts of a removal's letters are encoded once (D2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from lapse.core.generation import FIRST_REWOUND, offset_of, shown
from lapse.core.lifetime import EXPIRES_AT_MS
from lapse.protocol import dead_letter, header
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.dead_letter import TELLING, Death
from lapse.runtime.kafka.packed_record import NULL, VARINT, packed_headers, packed_name

_OFFSET: Final = packed_name(header.DLQ_OFFSET)
_ID: Final = packed_name(header.LAPSE_ID)
_EXPIRES_AT: Final = packed_name(EXPIRES_AT_MS)


class _Frame(NamedTuple):
    """What letters have in common whose records have headers of the same names.

    Attributes:
        headers: how many a letter has, offset and id included.
        kept: those that are the record's own: the index of each, and its packed name.
        before: the facts before the offset, packed.
        between: those between offset and id.
        behind: those behind the id.
        id_head: the id before the offset.
        id_tail: the id behind it.
    """

    headers: int
    kept: tuple[tuple[int, bytes], ...]
    before: bytes
    between: bytes
    behind: bytes
    id_head: bytes
    id_tail: bytes


class PackedLetters:
    """Packs the letters of one removal.

    What letters have in common is packed once. Most messages that leave together have headers of the same names, and
    many have the same headers.

    Args:
        death: of its first message; `expires_at_ms` is left out of account.
    """

    def __init__(self, death: Death) -> None:
        self._death = replace(death, expires_at_ms=None)
        self._original: Sequence[tuple[str, bytes | None]] | None = None
        self._counts = (0, 0)
        self._names: list[str] = []
        self._frame = _Frame(0, (), b"", b"", b"", b"", b"")
        self._own = b""

    def pack(
        self, offset: int, record: Any | None, delivery_count: int, cancel_count: int, expires_at_ms: int | None
    ) -> bytes:
        """The letter of one message; without a record, of one that Kafka has removed."""
        original = () if record is None else record.headers
        counts = (delivery_count, cancel_count)
        if original != self._original or counts != self._counts:
            self._begin(original, counts)
        count, _, before, between, behind, id_head, id_tail = self._frame
        varint = VARINT
        place = b"%d" % offset_of(offset)
        name = id_head + (place if offset < FIRST_REWOUND else shown(offset).encode()) + id_tail
        parts = [
            NULL if record is None or record.key is None else varint[len(record.key)] + record.key,
            NULL if record is None or record.value is None else varint[len(record.value)] + record.value,
            varint[count if expires_at_ms is None else count + 1], self._own,
            before, _OFFSET, varint[len(place)], place, between, _ID, varint[len(name)], name, behind,
        ]  # fmt: skip
        if expires_at_ms is not None:
            until = b"%d" % expires_at_ms
            parts += (_EXPIRES_AT, varint[len(until)], until)
        return b"".join(parts)

    def _begin(self, original: Sequence[tuple[str, bytes | None]], counts: tuple[int, int]) -> None:
        """Go on with messages that have these headers and counts."""
        names = [name for name, _ in original]
        if self._original is None or names != self._names or counts != self._counts or not TELLING.isdisjoint(names):
            self._names, self._counts = names, counts
            self._frame = self._framed(original)
        self._original = original
        own: list[bytes] = []
        for at, name in self._frame.kept:
            value = original[at][1]
            own += (name, NULL) if value is None else (name, VARINT[len(value)], value)
        self._own = b"".join(own)

    def _framed(self, original: Sequence[tuple[str, Any]]) -> _Frame:
        topic, partition, _ = self._death.bookmark
        deliveries, cancels = self._counts
        bookmark = Bookmark(topic, partition, 0)
        facts = dead_letter.facts(
            replace(self._death, bookmark=bookmark, delivery_count=deliveries, cancel_count=cancels), original
        )
        kept = dead_letter.kept(self._names)
        names = [name for name, _ in facts]
        at, of_id = names.index(header.DLQ_OFFSET), names.index(header.LAPSE_ID)
        head, slash, redriven = facts[of_id][1].rpartition(b"/")
        return _Frame(
            len(kept) + len(facts),
            tuple((index, packed_name(name)) for index, name in kept),
            packed_headers(facts[:at]),
            packed_headers(facts[at + 1 : of_id]),
            packed_headers(facts[of_id + 1 :]),
            head.removesuffix(b"0"),
            slash + redriven,
        )
