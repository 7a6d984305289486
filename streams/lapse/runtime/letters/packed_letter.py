"""Dead letters in the format of a RecordBatch. The common parts of a removal's letters are encoded only once (D2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from lapse.core.generation import FIRST_REWOUND, format_position, offset_of
from lapse.core.lifetime import EXPIRES_AT_MS, NEVER
from lapse.core.queue.step import Messages
from lapse.protocol import dead_letter, header
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.dead_letter import TELLING, Death
from lapse.runtime.kafka.packed_record import NULL, VARINT, packed_header, packed_headers, packed_name

Dead = tuple[int, Any, int, int, int]
"""Offset, record (None if Kafka has removed it), delivery count, cancel count, deadline in ms or `NEVER`."""

_OFFSET: Final = packed_name(header.DLQ_OFFSET)
_ID: Final = packed_name(header.LAPSE_ID)
_EXPIRES_AT: Final = packed_name(EXPIRES_AT_MS)
_NULL_VALUE: Final = packed_header(header.NULL_VALUE, b"true")

_TELLING: Final = TELLING | {header.LAPSE_ID, header.DLQ_TOPIC, *header.ORIGINAL_NAMES.values()}
"""Headers of a message with a history. They influence what its letter says, and what happens to its other headers."""

_MOST_NAMES: Final = 1_000
"""How many names are cached. A producer may use new ones in each message, which must not fill the memory."""


_FRAMES: Final = 64
"""How many frames are cached. A step has few, but makes its letters in many parts."""


class _Names(dict[str, bytes | None]):
    """Caches encoded names of a message's own headers on letters; empty to leave one out, None for a history header."""

    def __missing__(self, name: str) -> bytes | None:
        found = None if name in _TELLING else _begins(name)
        if len(self) < _MOST_NAMES:
            self[name] = found
        return found


_NAMES: Final = _Names()


def _begins(name: str) -> bytes:
    kept = dead_letter.copied_headers([name])
    return packed_name(kept[0][1]) if kept else b""


class _Frame(NamedTuple):
    """The packed headers that lapse adds to a letter, without offset, id and deadline.

    Attributes:
        headers: their number, including offset and id.
        before: those before the offset.
        between: those between offset and id.
        behind: those behind the id.
        id_head: the part of the id before the offset.
        id_tail: the part of the id behind the offset.
    """

    headers: int
    before: bytes
    between: bytes
    behind: bytes
    id_head: bytes
    id_tail: bytes


class PackedLetters:
    """Packs the letters of one removal, with the same bytes as `packed` and `dead_letter.headers` for each letter.

    A message's own headers are copied one by one, because in most topics no two messages have the same. The headers of
    lapse are encoded once for all letters that share them.

    Args:
        death: the facts of its first message. Its `expires_at_ms` is ignored.
    """

    def __init__(self, death: Death) -> None:
        self._death = replace(death, expires_at_ms=None)

    def pack(self, dead: Iterable[Dead]) -> list[bytes]:
        """Return the letters of some messages, in order."""
        varint, join = VARINT, b"".join
        letters: list[bytes] = []
        put = letters.append
        own: Any = None  # these are values of the previous message
        known_facts: Sequence[tuple[str, bytes]] = ()
        copied, copies, headers = b"", 0, 0
        before = between = behind = until = id_head = id_tail = b""
        times = cancelled = until_ms = place_size = name_size = -1
        framed = False
        for offset, record, deliveries, cancels, deadline_ms in dead:
            original = () if record is None else record.headers
            if original != own:
                own = original
                facts, copies, copied = _copied(original)
                framed = framed and facts == known_facts
                known_facts = facts
            if offset < FIRST_REWOUND:
                name = place = b"%d" % offset
            else:
                name, place = format_position(offset).encode(), b"%d" % offset_of(offset)
            if not (
                framed
                and deliveries == times
                and cancels == cancelled
                and len(place) == place_size
                and len(name) == name_size
            ):
                # Most messages that leave together have these in common.
                framed, times, cancelled = True, deliveries, cancels
                place_size, name_size = len(place), len(name)
                headers, before, between, behind, id_head, id_tail = self._framed(known_facts, deliveries, cancels)
                before += _OFFSET + varint[place_size]
                between += _ID + varint[len(id_head) + name_size + len(id_tail)] + id_head
                behind = id_tail + behind
            if deadline_ms != until_ms:
                until_ms, stated = deadline_ms, b"%d" % deadline_ms
                until = b"" if deadline_ms == NEVER else _EXPIRES_AT + varint[len(stated)] + stated
            key, value, null = None, None, b""
            if record is not None:
                key, value = record.key, record.value
                null = _NULL_VALUE if value is None else b""
            put(
                join(
                    (
                        NULL if key is None else varint[len(key)] + key,
                        NULL if value is None else varint[len(value)] + value,
                        varint[copies + headers + bool(until) + bool(null)],
                        copied, before, place, between, name, behind, until, null,
                    )
                )
            )  # fmt: skip
        return letters

    def frame(self, delivery_count: int, cancel_count: int) -> tuple[int, tuple[bytes, ...]]:
        """Return what lapse adds to the letter of a message without history, in the six parts of `columns.letters`."""
        headers, before, between, behind, id_head, id_tail = _plain_frame(self._death, delivery_count, cancel_count)
        return headers, (before + _OFFSET, between + _ID, id_head, id_tail, behind, _EXPIRES_AT)

    def _framed(self, known_facts: Sequence[tuple[str, bytes]], delivery_count: int, cancel_count: int) -> _Frame:
        """Return the headers of a letter, without copied ones; for a message with a history, all of them."""
        if not known_facts:
            return _plain_frame(self._death, delivery_count, cancel_count)
        return _frame(self._death, known_facts, delivery_count, cancel_count)


@lru_cache(maxsize=_FRAMES)
def _plain_frame(death: Death, delivery_count: int, cancel_count: int) -> _Frame:
    """Return the frame of a message without history."""
    return _frame(death, (), delivery_count, cancel_count)


def _frame(death: Death, known_facts: Sequence[tuple[str, bytes]], delivery_count: int, cancel_count: int) -> _Frame:
    topic, partition, _ = death.bookmark
    bookmark = Bookmark(topic, partition, 0)
    death = replace(death, bookmark=bookmark, delivery_count=delivery_count, cancel_count=cancel_count)
    headers = dead_letter.headers(death, known_facts)
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


def special() -> dict[str, bytes | None]:
    """Return the names of headers that are not copied unchanged to a letter, with values as in `_Names`."""
    names = sorted(_TELLING | dead_letter.NOT_COPIED | header.ORIGINAL_NAMES.keys())
    return {name: None if name in _TELLING else _begins(name) for name in names}


def with_records(messages: Messages, records: Sequence[Any | None]) -> Iterator[Dead]:
    """Return messages with their records, as `PackedLetters` takes them."""
    offsets, deliveries = messages.offsets.tolist(), messages.deliveries.tolist()
    cancels = [0] * len(offsets) if messages.cancels is None else messages.cancels.tolist()
    deadlines = [NEVER] * len(offsets) if messages.deadlines_ms is None else messages.deadlines_ms.tolist()
    return zip(offsets, records, deliveries, cancels, deadlines, strict=True)


def _copied(original: Any) -> tuple[Any, int, bytes]:
    """Return history headers if there are any; else number and bytes of a message's own headers on its letter."""
    names, varint = _NAMES, VARINT
    parts: list[bytes] = []
    for name, value in original:
        begin = names[name]
        if begin is None:
            return original, 0, b""
        if begin:
            parts += (begin, NULL, b"") if value is None else (begin, varint[len(value)], value)
    return (), len(parts) // 3, b"".join(parts)
