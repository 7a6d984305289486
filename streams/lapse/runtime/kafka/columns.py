"""Calls `columns.c`, which turns RecordBatches into columns, and columns into packed deliveries and letters.

The library is built with the package if there is a C compiler. If it is missing, or of another version, `LIBRARY` is
None, and each record is an object. The results are the same, for more CPU.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.core.lifetime import NEVER
from lapse.runtime.kafka.batch_body import BatchBody

NAME: Final = "libcolumns.so"
SOURCE: Final = "columns.c"

_TABLE_BYTES: Final = 4
"""The greatest ratio of a header's bytes in a packed delivery to those in a RecordBatch."""

_RENAMED_BYTES: Final = 3
"""An upper limit of the ratio of a header's bytes on a letter to those on its record."""

_LETTER_NUMBERS_BYTES: Final = 128
"""The most bytes of a letter beside its record and its frame: lengths, its offset twice, its deadline."""

_STATE_NUMBERS_BYTES: Final = 128
"""The most bytes for lengths and numbers in a record of a SOW topic's state."""

UNSURE: Final = -2
"""The length of a text that the library does not find by itself: see `members`."""

MOST_BYTES: Final = (1 << 31) - 1
"""The most bytes of data, because positions are numbers of 32 bits."""


def load(directory: Path) -> Any | None:
    """Load the library of a directory; return None if it is missing, unusable, or not built from the source there."""
    some_bytes, at, number = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64
    taken: dict[str, list[Any]] = {
        "lapse_rows": [some_bytes, *[number] * 7, some_bytes, at, at],
        "lapse_batches": [some_bytes, *[number] * 4, at],
        "lapse_rows_of_batches": [some_bytes, *[number] * 3, some_bytes, at, at],
        "lapse_crc32c": [some_bytes, number],
        "lapse_crc32c_by_tables": [some_bytes, number],
        "lapse_gather": [at, at, at, number, at],
        "lapse_own_headers": [some_bytes, at, at, at, number, some_bytes, some_bytes, at, at],
        "lapse_letters": [
            some_bytes, at, *[number] * 3, at, at, number, number, some_bytes, at, some_bytes, some_bytes, at, *[at] * 3
        ],
        "lapse_states": [
            some_bytes, at, number, some_bytes, at, number, some_bytes, number, some_bytes, at, number, some_bytes, at,
            some_bytes, number, number, number, at, at
        ],
        "lapse_places": [at, at, number, number, number, at],
        "lapse_members": [some_bytes, at, at, number, some_bytes, number, at, at],
    }  # fmt: skip
    try:
        library = ctypes.CDLL(str(directory / NAME))
        library.lapse_source.restype = number
        for name, arguments in taken.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, number
    except (OSError, AttributeError):
        return None
    source = directory / SOURCE
    return library if not source.exists() or library.lapse_source() == zlib.crc32(source.read_bytes()) else None


LIBRARY: Any | None = load(Path(__file__).parent)


def names(some: Iterable[str]) -> bytes:
    """Encode names as the library reads them."""
    encoded = [name.encode() for name in some]
    return b"".join(bytes([len(one)]) + one for one in encoded) + b"\0"


OFFSET, TIMESTAMP, LIFETIME = range(3)
"""Columns of 64 bits. For the lifetime see `Rows.stated_ms`."""

KEY, KEY_LENGTH, VALUE, VALUE_LENGTH, HEADERS, HEADERS_LENGTH, ALIKE = range(7)
"""Columns of 32 bits: where the parts of a record begin, their lengths (-1 for null), and whether its headers equal
those of the record before."""


def columns_of(body: BatchBody, telling: bytes) -> tuple[NDArray[np.int64], NDArray[np.int32]] | None:
    """Return the columns of a RecordBatch, of 64 and of 32 bits; None if it is malformed, or without the library.

    Args:
        body: the records.
        telling: `names` of the headers that decide how a record is handled. The first one states a lifetime.
    """
    data, at, stop, count, append_ms = body.data, body.at, body.stop, body.count, body.append_ms
    # A record has at least seven bytes, so a larger count is wrong, and no memory is allocated for it.
    if LIBRARY is None or stop > MOST_BYTES or not 0 < count <= stop - at:
        return None
    places, spans = np.empty((3, count), np.int64), np.empty((7, count), np.int32)
    by_broker = append_ms is not None
    found = LIBRARY.lapse_rows(
        data, at, stop, count, body.base_offset, body.first_ms, by_broker, append_ms or 0, telling,
        places.ctypes.data, spans.ctypes.data,
    )  # fmt: skip
    return (places, spans) if found == count else None


class BatchRun(NamedTuple):
    """RecordBatches in a row that can be read together; their checksums are right.

    Attributes:
        stop: where they end in the data.
        records: how many records they have.
        next_offset: the offset behind them.
        timestamp_type: who set their timestamps, as aiokafka has it: 0 for producers, 1 for the broker.
    """

    stop: int
    records: int
    next_offset: int
    timestamp_type: int


_Found: Final = ctypes.c_int64 * 4


def batches_at(data: bytes, at: int, most_bytes: int, most_records: int) -> BatchRun | None:
    """Return the plain RecordBatches that begin here: not compressed, in no transaction, all stamped by one side.

    Args:
        data: the bytes of a fetch.
        at: where the first batch begins.
        most_bytes: the size of the largest batch among them.
        most_records: how many records they have together, at most.

    Returns:
        None if the first batch is not plain, or damaged, and without the library.
    """
    if LIBRARY is None or len(data) > MOST_BYTES:
        return None
    found = _Found()
    if not LIBRARY.lapse_batches(data, at, len(data), most_bytes, most_records, ctypes.addressof(found)):
        return None
    return BatchRun(*found)


def columns_of_batches(
    data: bytes, at: int, run: BatchRun, telling: bytes
) -> tuple[NDArray[np.int64], NDArray[np.int32]] | None:
    """Return the columns of the records of `batches_at`; None if one is malformed. See `columns_of`."""
    assert LIBRARY is not None
    count = run.records
    places, spans = np.empty((3, count), np.int64), np.empty((7, count), np.int32)
    found = LIBRARY.lapse_rows_of_batches(data, at, run.stop, count, telling, places.ctypes.data, spans.ctypes.data)
    return (places, spans) if found == count else None


def gather(
    data: bytes | NDArray[np.uint8], at: NDArray[np.int32], lengths: NDArray[np.int32], out: NDArray[np.uint8]
) -> int:
    """Copy separate pieces of bytes one behind the other into `out`; return their total number of bytes."""
    assert LIBRARY is not None
    begin = data if isinstance(data, bytes) else data.ctypes.data
    done: int = LIBRARY.lapse_gather(begin, at.ctypes.data, lengths.ctypes.data, len(at), out.ctypes.data)
    return done


def own_headers(
    data: bytes,
    at: NDArray[np.int32],
    lengths: NDArray[np.int32],
    alike: NDArray[np.int32],
    prefix: bytes,
    kept: bytes,
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Return the headers of records as a packed delivery has them: their lengths by record, and all bytes.

    Args:
        data: the bytes with the records.
        at: where the headers of each record begin.
        lengths: their lengths there.
        alike: whether they equal those of the record before.
        prefix: names with this prefix are left out; preceded by its length, a byte.
        kept: `names` with the prefix that are kept.
    """
    assert LIBRARY is not None
    found = np.empty(len(at), np.int32)
    out = np.empty(_TABLE_BYTES * int(lengths.sum(dtype=np.int64)), np.uint8)
    end = LIBRARY.lapse_own_headers(
        data, at.ctypes.data, lengths.ctypes.data, alike.ctypes.data, len(at), prefix, kept,
        found.ctypes.data, out.ctypes.data,
    )  # fmt: skip
    assert end >= 0, "headers that were read before"
    return found, out[:end]


class Renamed:
    """Header names that the library replaces.

    Args:
        became: the packed replacements, by name; empty to leave a header out, None if the library must not pack its
            record.
    """

    def __init__(self, became: Mapping[str, bytes | None]) -> None:
        parts = [b"\0" if one is None else one for one in became.values()]
        self.names = names(became)
        self.became = b"".join(parts)
        self.ends = np.cumsum([0, *map(len, parts)], dtype=np.int32)


def letters(
    data: bytes,
    spans: NDArray[np.int32],
    first: int,
    offsets: NDArray[np.int64],
    deadlines_ms: NDArray[np.int64] | None,
    header_count: int,
    frame: Sequence[bytes],
    renamed: Renamed,
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the packed letters of messages one behind the other: their bytes, and the end of each.

    A letter that the library cannot pack has no bytes.

    Args:
        data: the bytes with the messages' records.
        spans: see `columns_of`.
        first: the row of the first message.
        offsets: the offsets of the messages.
        deadlines_ms: their deadlines, ms since the epoch, `NEVER` for none; None if no message has one.
        header_count: how many headers lapse adds, without the deadline.
        frame: these headers in six parts; see `columns.c`.
        renamed: the names of a message's own headers that are not copied unchanged.
    """
    assert LIBRARY is not None
    count = len(offsets)
    stop = first + count
    sizes = spans[HEADERS_LENGTH, first:stop]
    of_record = int(np.maximum(spans[[KEY_LENGTH, VALUE_LENGTH], first:stop], 0).sum(dtype=np.int64))
    frame_ends = np.cumsum([len(part) for part in frame], dtype=np.int32)
    each = int(frame_ends[-1]) + _LETTER_NUMBERS_BYTES
    room = of_record + _RENAMED_BYTES * int(sizes.sum(dtype=np.int64)) + count * each
    out, ends = np.empty(room, np.uint8), np.empty(count, np.int64)
    scratch = np.empty(_RENAMED_BYTES * int(sizes.max(initial=0)) + 1, np.uint8)
    offsets = np.ascontiguousarray(offsets)
    deadlines_ms = None if deadlines_ms is None else np.ascontiguousarray(deadlines_ms)
    end = LIBRARY.lapse_letters(
        data, spans.ctypes.data, spans.shape[1], first, count,
        offsets.ctypes.data, None if deadlines_ms is None else deadlines_ms.ctypes.data, NEVER, header_count,
        b"".join(frame), frame_ends.ctypes.data, renamed.names, renamed.became, renamed.ends.ctypes.data,
        ends.ctypes.data, out.ctypes.data, scratch.ctypes.data,
    )  # fmt: skip
    return out[:end], ends


class Titles:
    """The names of the headers of a SOW topic's record whose values the library writes.

    Args:
        bookmark: the packed name of the bookmark header, with all headers before it.
        timestamp: the packed name of the timestamp header.
        deadline: the packed name of the deadline header.
    """

    def __init__(self, bookmark: bytes, timestamp: bytes, deadline: bytes) -> None:
        self.names = bookmark + timestamp + deadline
        self.ends = np.cumsum([len(bookmark), len(timestamp), len(deadline)], dtype=np.int32)


def states(
    keys: Sequence[bytes],
    entries: Sequence[bytes],
    block: bytes,
    prefixes: Sequence[bytes],
    titles: Titles,
    tail: tuple[int, bytes],
    skip: int = 0,
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return packed records of a SOW topic one behind the other: their bytes, and the end of each.

    A record that the library cannot pack has no bytes.

    Args:
        keys: their keys, or journal keys.
        entries: the records, as the state has them.
        block: the header block of the records that are packed.
        prefixes: the beginning of the bookmarks of each source.
        titles: the names of the headers for bookmark, timestamp and deadline.
        tail: the number of further headers of each record, and the packed ones at its end.
        skip: how many bytes of a journal key come before the key.
    """
    assert LIBRARY is not None
    count = len(keys)
    key_ends = np.cumsum([len(key) for key in keys], dtype=np.int64)
    entry_ends = np.cumsum([len(entry) for entry in entries], dtype=np.int64)
    prefix_ends = np.cumsum([len(prefix) for prefix in prefixes], dtype=np.int32)
    each = len(titles.names) + max(map(len, prefixes)) + len(tail[1]) + _STATE_NUMBERS_BYTES
    out = np.empty(int(key_ends[-1] + entry_ends[-1]) + count * each, np.uint8)
    ends = np.empty(count, np.int64)
    end = LIBRARY.lapse_states(
        b"".join(keys), key_ends.ctypes.data, skip, b"".join(entries), entry_ends.ctypes.data, count,
        block, len(block),
        b"".join(prefixes), prefix_ends.ctypes.data, len(prefixes), titles.names, titles.ends.ctypes.data,
        tail[1], len(tail[1]), tail[0], NEVER, ends.ctypes.data, out.ctypes.data,
    )  # fmt: skip
    return out[:end], ends


def places(
    data: NDArray[np.uint8], ends: NDArray[np.int64], first: int, stop: int, number: int, size: int
) -> NDArray[np.uint8]:
    """Return packed records as a RecordBatch contains them: each with its length and its position before it.

    Args:
        data: the records, one behind the other.
        ends: the end of each.
        first: index of the first record.
        stop: index behind the last record.
        number: the number of records in the batch before them.
        size: the number of bytes of the result.
    """
    assert LIBRARY is not None
    out = np.empty(size, np.uint8)
    end = LIBRARY.lapse_places(data.ctypes.data, ends.ctypes.data, first, stop, number, out.ctypes.data)
    assert end == size, "records that were measured before"
    return out


def members(
    data: bytes, at: NDArray[np.int32], lengths: NDArray[np.int32], name: bytes
) -> tuple[NDArray[np.int32], NDArray[np.int32], int] | None:
    """Find a member of JSON objects whose value is a text, without parsing the rest into Python objects.

    Args:
        data: the bytes with the objects.
        at: where each begins.
        lengths: their lengths; -1 = there is none.
        name: the member's name.

    Returns:
        Where the text begins, its length, -1 without one or for null, and for how many objects the length is `UNSURE`,
        so that they must be parsed; None without the library.
    """
    if LIBRARY is None:
        return None
    found, sizes = np.empty(len(at), np.int32), np.empty(len(at), np.int32)
    at, lengths = np.ascontiguousarray(at), np.ascontiguousarray(lengths)
    unsure: int = LIBRARY.lapse_members(
        data, at.ctypes.data, lengths.ctypes.data, len(at), name, len(name), found.ctypes.data, sizes.ctypes.data
    )
    return found, sizes, unsure
