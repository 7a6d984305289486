"""What the worker encodes and decodes itself is what aiokafka would send and read."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from io import BytesIO
from typing import Any

import pytest
from aiokafka import TopicPartition, errors
from aiokafka.protocol.api import ResponseHeader_v0
from aiokafka.protocol.fetch import FetchRequest, FetchRequest_v11, FetchResponse_v11
from aiokafka.protocol.produce import ProduceRequest, ProduceRequest_v7, ProduceResponse_v7
from hypothesis import given
from hypothesis import strategies as st

from lapse.runtime.kafka.connection import SwiftConnection
from lapse.runtime.kafka.fetch_session import FetchSession
from lapse.runtime.kafka.swift_codec import ANSWERS, fetch_request, fetched, produced

INT16, INT32, INT64 = (st.integers(-(1 << bits), (1 << bits) - 1) for bits in (15, 31, 63))
TEXT = st.text(max_size=5)
ABORTED = st.none() | st.lists(st.tuples(INT64, INT64), max_size=3)
RECORDS = st.none() | st.binary(max_size=20)


def topics(partition: Any) -> Any:
    return st.lists(st.tuples(TEXT, st.lists(partition, max_size=3)), max_size=3)


FETCHED = st.builds(
    FetchResponse_v11,
    INT32,
    INT16,
    INT32,
    topics(st.tuples(INT32, INT16, INT64, INT64, INT64, ABORTED, INT32, RECORDS)),
)
PRODUCED = st.builds(ProduceResponse_v7, topics(st.tuples(INT32, INT16, INT64, INT64, INT64)), INT32)
WANTED = st.builds(
    FetchRequest_v11,
    *[INT32] * 4,
    st.integers(-128, 127),
    *[INT32] * 2,
    topics(st.tuples(INT32, INT32, INT64, INT64, INT32)),
    topics(INT32),
    st.none() | TEXT,
)


@pytest.mark.parametrize("request_kind", [FetchRequest, ProduceRequest])
def test_what_a_new_broker_answers_is_decoded_here(request_kind: Any) -> None:
    """aiokafka knew a newer version of an answer than it asks for, so that one was never decoded."""
    newest = {request_kind.API_KEY: (0, 99)}
    asked = FetchRequest(1, 1, 1, 0, []) if request_kind is FetchRequest else ProduceRequest(None, -1, 1, [])
    assert asked.prepare(newest).RESPONSE_TYPE in ANSWERS


@given(answer=FETCHED, kind=st.sampled_from([bytes, bytearray]))
def test_what_was_fetched_is_read_like_aiokafka_reads_it(answer: Any, kind: Any) -> None:
    found = fetched(kind(b"\0\0\0\1" + answer.encode()))
    assert found == answer
    assert all(type(one[-1]) in (bytes, type(None)) for _, partitions in found.topics for one in partitions)


@given(answer=PRODUCED)
def test_what_was_written_is_read_like_aiokafka_reads_it(answer: Any) -> None:
    assert produced(b"\0\0\0\1" + answer.encode()) == answer


@given(request=WANTED)
def test_a_fetch_is_encoded_like_aiokafka_encodes_it(request: Any) -> None:
    assert fetch_request(request) == request.encode()


@given(answer=FETCHED, data=st.data())
def test_a_frame_that_is_cut_off_is_an_error(answer: Any, data: Any) -> None:
    frame = b"\0\0\0\1" + answer.encode()
    cut = data.draw(st.integers(0, len(frame) - 1))
    with pytest.raises((struct.error, ValueError)):
        fetched(frame[:cut])


class Connection(SwiftConnection):
    """A connection without a socket, that waits for the answer to one request."""

    def __init__(self, request: Any, answer: Any) -> None:
        self._requests = deque([(7, request, answer)])
        self.reasons: list[Any] = []

    def close(self, reason: Any = None, exc: Any = None) -> None:
        self.reasons.append(reason)

    def __del__(self) -> None:
        pass


def frame_of(answer: Any, number: int = 7) -> bytes:
    return ResponseHeader_v0(number).encode() + bytes(answer.encode())


def test_answers_reach_those_who_asked() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        answer = ProduceResponse_v7([("orders", [(0, 0, 5, -1, 0)])], 0)
        future: Any = loop.create_future()
        connection = Connection(ProduceRequest_v7(None, -1, 5, []), future)
        connection._handle_frame(frame_of(answer))
        assert (future.result(), connection._requests) == (answer, deque())
        future = loop.create_future()
        connection = Connection(ProduceRequest_v7(None, -1, 5, []), future)
        connection._handle_frame(frame_of(answer, number=8))
        assert isinstance(future.exception(), errors.CorrelationIdError)
        assert connection.reasons

    asyncio.run(work())


def test_a_session_is_informed_of_its_answer() -> None:
    async def work() -> None:
        session, place = FetchSession(), TopicPartition("orders", 0)
        limits = {"max_wait_time": 1, "min_bytes": 1, "max_bytes": 1, "isolation_level": 1, "max_partition_bytes": 9}
        request = session.request({place: 3}, **limits)
        built = request.build(FetchRequest_v11)
        assert fetch_request(built) == built.encode()
        answer = FetchResponse_v11(0, 0, 44, [("orders", [(0, 0, 5, 5, 0, [], -1, b"")])])
        future: Any = asyncio.get_running_loop().create_future()
        Connection(built, future)._handle_frame(frame_of(answer))
        assert future.result() == built.RESPONSE_TYPE.kind.decode(BytesIO(answer.encode())) == answer
        assert request.topics == [("orders", [(0, 3, 9)])]
        assert session.request({place: 3}, **limits).session_id == 44

    asyncio.run(work())
