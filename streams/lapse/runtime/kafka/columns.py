"""Calls `columns.c`, which makes columns of RecordBatches and packed deliveries of columns.

The library is built with the package, where a C compiler is. Where it is missing `LIBRARY` is None, and records are
objects, one each: the same, for more CPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

NAME: Final = "libcolumns.so"

_TABLE_BYTES: Final = 4
"""A header in a packed delivery takes at most so many times what it takes in a RecordBatch."""

MOST_BYTES: Final = (1 << 31) - 1
"""Places are numbers of 32 bits."""


def _library() -> Any | None:
    try:
        library = ctypes.CDLL(str(Path(__file__).with_name(NAME)))
    except OSError:
        return None
    at, number = ctypes.c_void_p, ctypes.c_int64
    library.lapse_rows.argtypes = [ctypes.c_char_p, *[number] * 7, ctypes.c_char_p, at, at]
    library.lapse_gather.argtypes = [ctypes.c_char_p, at, at, number, at]
    library.lapse_own_headers.argtypes = [
        ctypes.c_char_p, at, at, at, number, ctypes.c_char_p, ctypes.c_char_p, at, at
    ]  # fmt: skip
    for function in (library.lapse_rows, library.lapse_gather, library.lapse_own_headers):
        function.restype = number
    return library


LIBRARY: Any | None = _library()


def names(some: Iterable[str]) -> bytes:
    """Names as the library reads them."""
    encoded = [name.encode() for name in some]
    return b"".join(bytes([len(one)]) + one for one in encoded) + b"\0"


def columns_of(
    data: bytes,
    at: int,
    stop: int,
    count: int,
    base_offset: int,
    first_ms: int,
    append_ms: int | None,
    telling: bytes,
) -> tuple[NDArray[np.int64], NDArray[np.int32]] | None:
    """The columns of a RecordBatch's records; None where they are malformed, or there is no library.

    Args:
        data: where the records stand.
        at: where they begin.
        stop: where they end.
        count: how many there are.
        base_offset: of the batch.
        first_ms: its first timestamp, ms since the epoch.
        append_ms: the timestamp of all, if the broker gave it.
        telling: `names` of the headers that decide what becomes of a record; the first states a lifetime.

    Returns:
        three columns: offset, timestamp, lifetime as `Rows.stated_ms` has it; and seven: where key, value and headers
        begin and how long they are (-1 = null), and whether the headers are those of the record before.
    """
    # A record takes seven bytes at least: what speaks of more is not believed, and no room is made for it.
    if LIBRARY is None or stop > MOST_BYTES or not 0 < count <= stop - at:
        return None
    places, spans = np.empty((3, count), np.int64), np.empty((7, count), np.int32)
    by_broker = append_ms is not None
    found = LIBRARY.lapse_rows(
        data, at, stop, count, base_offset, first_ms, by_broker, append_ms or 0, telling,
        places.ctypes.data, spans.ctypes.data,
    )  # fmt: skip
    return (places, spans) if found == count else None


def gather(data: bytes, at: NDArray[np.int32], lengths: NDArray[np.int32], out: NDArray[np.uint8]) -> int:
    """Put bytes that stand apart behind each other into `out`; returns how many those are."""
    assert LIBRARY is not None
    done: int = LIBRARY.lapse_gather(data, at.ctypes.data, lengths.ctypes.data, len(at), out.ctypes.data)
    return done


def own_headers(
    data: bytes,
    at: NDArray[np.int32],
    lengths: NDArray[np.int32],
    alike: NDArray[np.int32],
    prefix: bytes,
    kept: bytes,
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """The headers of records as a packed delivery has them: how long those of each are, and the bytes.

    Args:
        data: where they stand.
        at: where those of each begin.
        lengths: how long they are there.
        alike: whether they are those of the record before.
        prefix: names that begin so are left out, behind their length in a byte.
        kept: `names` of those of them that are not.
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
