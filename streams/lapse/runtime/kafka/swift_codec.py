"""Encodes and decodes the two requests that a worker sends all the time. aiokafka does it field by field.

A worker that has little to do at a time spends a tenth of its CPU on that: each field is an object with a method, and a
fetched RecordBatch is copied twice. Other versions of these requests, and all other requests, are left to aiokafka.
The versions are the newest that aiokafka knows, which brokers since Kafka 2.3 speak.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from aiokafka.protocol.fetch import FetchRequest_v11, FetchResponse_v11
from aiokafka.protocol.produce import ProduceResponse_v7

Frame = bytes | bytearray
"""The bytes of a broker's answer, without the length before them."""

NUMBER: Final = struct.Struct(">i")
"""The request's number, with which a frame begins."""

_COUNT: Final = NUMBER
_SIZE: Final = struct.Struct(">h")
_SESSION: Final = struct.Struct(">ihii")
"""Of fetched records: throttling, error, session, number of topics."""

_FETCHED: Final = struct.Struct(">ihqqqi")
"""Of a fetched partition: number, error, ends of the log, its beginning, number of aborted transactions."""

_ABORTED: Final = struct.Struct(">qq")
_RECORDS: Final = struct.Struct(">ii")
"""The preferred replica, and the number of bytes of the records."""

_PRODUCED: Final = struct.Struct(">ihqqq")
"""Of a written partition: number, error, offset, timestamp, beginning of the log."""

_LIMITS: Final = struct.Struct(">iiiibiii")
"""Of a fetch: replica, longest wait, least and most bytes, isolation, session, its number, number of topics."""

_WANTED: Final = struct.Struct(">iiqqi")
"""Of a partition to fetch: number, leader's epoch, offset, beginning of the log, most bytes."""


def text(value: str | None) -> bytes:
    """Return a text as Kafka encodes it."""
    if value is None:
        return _SIZE.pack(-1)
    encoded = value.encode()
    return _SIZE.pack(len(encoded)) + encoded


def fetch_request(request: Any) -> bytes:
    """Return a `FetchRequest_v11` as it is sent, without its header."""
    parts = [
        _LIMITS.pack(
            request.replica_id,
            request.max_wait_time,
            request.min_bytes,
            request.max_bytes,
            request.isolation_level,
            request.session_id,
            request.session_epoch,
            len(request.topics),
        )
    ]
    for topic, partitions in request.topics:
        parts += [text(topic), _COUNT.pack(len(partitions)), *(_WANTED.pack(*one) for one in partitions)]
    parts.append(_COUNT.pack(len(request.forgotten_topics_data)))
    for topic, numbers in request.forgotten_topics_data:
        parts += [text(topic), struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)]
    parts.append(text(request.rack_id))
    return b"".join(parts)


def fetched(frame: Frame) -> FetchResponse_v11:
    """Return the answer to a fetch. The records are copied out of the frame."""
    throttle_ms, error, session, count = _SESSION.unpack_from(frame, NUMBER.size)
    at, topics = NUMBER.size + _SESSION.size, []
    for _ in range(count):
        topic, at = _text(frame, at)
        (of_topic,) = _COUNT.unpack_from(frame, at)
        at += _COUNT.size
        partitions = []
        for _ in range(of_topic):
            *about, gone = _FETCHED.unpack_from(frame, at)
            at += _FETCHED.size
            stop = at + _ABORTED.size * max(0, gone)
            aborted = None if gone < 0 else [_ABORTED.unpack_from(frame, one) for one in range(at, stop, _ABORTED.size)]
            at = stop
            replica, size = _RECORDS.unpack_from(frame, at)
            at += _RECORDS.size
            records = None if size < 0 else bytes(memoryview(frame)[at : at + size])
            if records is not None and len(records) != size:
                raise ValueError(f"{size - len(records)} bytes of the records of {topic} are missing")
            at += max(0, size)
            partitions.append((*about, aborted, replica, records))
        topics.append((topic, partitions))
    return FetchResponse_v11(throttle_ms, error, session, topics)


def produced(frame: Frame) -> ProduceResponse_v7:
    """Return the answer to a produce request."""
    (count,) = _COUNT.unpack_from(frame, NUMBER.size)
    at, topics = NUMBER.size + _COUNT.size, []
    for _ in range(count):
        topic, at = _text(frame, at)
        (of_topic,) = _COUNT.unpack_from(frame, at)
        at += _COUNT.size
        stop = at + _PRODUCED.size * max(0, of_topic)
        partitions = [_PRODUCED.unpack_from(frame, one) for one in range(at, stop, _PRODUCED.size)]
        at = stop
        topics.append((topic, partitions))
    (throttle_ms,) = _COUNT.unpack_from(frame, at)
    return ProduceResponse_v7(topics, throttle_ms)


def _text(frame: Frame, at: int) -> tuple[str | None, int]:
    """Return a text, and where it ends."""
    (size,) = _SIZE.unpack_from(frame, at)
    at += _SIZE.size
    if size < 0:
        return None, at
    encoded = frame[at : at + size]
    if len(encoded) != size:
        raise ValueError(f"{size - len(encoded)} bytes of a text are missing")
    return encoded.decode(), at + size


ANSWERS: Final[dict[Any, Callable[[Frame], Any]]] = {FetchResponse_v11: fetched, ProduceResponse_v7: produced}
"""The decoders of frames, by the kind of the answer."""

REQUESTS: Final[dict[Any, Callable[[Any], bytes]]] = {FetchRequest_v11: fetch_request}
"""The encoders of requests without their headers, by the kind of request."""
