"""From a delivery to records that hold many messages each; the hot encoder of inline payloads (D4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np

from lapse.core.lifetime import NEVER, Headers
from lapse.core.queue.step import Messages
from lapse.protocol import packed_delivery
from lapse.protocol.header import is_handed_out
from lapse.protocol.packed_delivery import column, encode_headers
from lapse.runtime.kafka.packed_record import packed

MOST_BYTES: Final = 800_000
"""A record takes no further message beyond so many bytes of keys and values; a single message may have any size."""


def packed_records(
    messages: Messages, records: Sequence[Any | None], headers: bytes, header_count: int, most_bytes: int = MOST_BYTES
) -> list[bytes]:
    """Records that hand messages out, in their order; what Kafka has lost is left out.

    Args:
        messages: which.
        records: theirs, None where Kafka lost one.
        headers: what all records bear, packed.
        header_count: how many headers these are.
        most_bytes: see `MOST_BYTES`.
    """
    if not all(records):
        there = np.array([at for at, record in enumerate(records) if record is not None], np.intp)
        messages, records = messages.some(there), [records[at] for at in there.tolist()]
    if not records:
        return []
    keys: list[bytes | None] = [record.key for record in records]  # type: ignore[union-attr]
    values: list[bytes | None] = [record.value for record in records]  # type: ignore[union-attr]
    stamps = [record.timestamp for record in records]  # type: ignore[union-attr]
    own = _own_headers([record.headers for record in records])  # type: ignore[union-attr]
    deadlines_ms = messages.deadlines_ms
    if deadlines_ms is not None and bool((deadlines_ms == NEVER).all()):
        deadlines_ms = None
    has_keys = any(keys) or any(key is not None for key in keys)
    topic, partition = messages.topic, messages.partition
    bodies: list[bytes] = []
    for first, stop in _parts(keys, values, own, most_bytes):
        body = packed_delivery.encode(
            topic,
            partition,
            messages.offsets[first:stop].astype("<i8", copy=False).tobytes(),
            column("q", stamps[first:stop]),
            messages.deliveries[first:stop].astype("<u4", copy=False).tobytes(),
            values[first:stop],
            deadlines_ms=b"" if deadlines_ms is None else deadlines_ms[first:stop].astype("<i8", copy=False).tobytes(),
            keys=keys[first:stop] if has_keys else (),
            headers=own[first:stop],
        )
        bodies.append(packed(None, body, header_count, headers))
    return bodies


def _own_headers(all_headers: list[Headers]) -> list[bytes]:
    """The messages' own headers, encoded; empty if none has any. See `is_handed_out`."""
    known = all_headers[0]
    if all_headers.count(known) == len(all_headers):
        encoded = _encoded(known)
        return [encoded] * len(all_headers) if encoded else []
    own: list[bytes] = []
    encoded = _encoded(known)
    for headers in all_headers:
        if headers != known:
            known, encoded = headers, _encoded(headers)
        own.append(encoded)
    return own if any(own) else []


def _encoded(headers: Headers) -> bytes:
    return encode_headers(one for one in headers if is_handed_out(one[0])) if headers else b""


def _parts(
    keys: Sequence[bytes | None], values: Sequence[bytes | None], own: Sequence[bytes], most_bytes: int
) -> Iterator[tuple[int, int]]:
    """The first message of each record, and the one behind its last."""
    count = len(values)
    whole = sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values))) + sum(map(len, own))
    if whole <= most_bytes:
        yield 0, count
        return
    sizes = [len(key or b"") + len(value or b"") for key, value in zip(keys, values, strict=True)]
    if own:
        sizes = [size + len(headers) for size, headers in zip(sizes, own, strict=True)]
    ends = list(accumulate(sizes))
    first, before = 0, 0
    for at, end in enumerate(ends):
        if end - before > most_bytes and at > first:
            yield first, at
            first, before = at, ends[at - 1]
    yield first, count
