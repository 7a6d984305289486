"""Frames from a socket come out whole, however the bytes came in; what is produced is what aiokafka would send."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine
from typing import Any

import pytest
import uvloop
from aiokafka.protocol.produce import ProduceRequest_v3, ProduceRequest_v7
from hypothesis import given
from hypothesis import strategies as st

from lapse.runtime.kafka.connection import produced
from lapse.runtime.kafka.frames import Frames

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

SIZES = st.lists(st.sampled_from([0, 1, 3, 4, 100, 8_000, 16_379, 16_380, 16_381, 16_384, 70_000]), max_size=8)


def run(loop: str, work: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(work)


def framed(frames: list[bytes]) -> bytes:
    return b"".join(struct.pack(">i", len(one)) + one for one in frames)


async def feed(data: bytes, reads: list[int]) -> list[bytes]:
    """What comes out of bytes that the socket brings in reads of these sizes."""
    one = Frames(asyncio.get_running_loop().create_future())
    at, turn, found = 0, 0, []
    while at < len(data):
        room = one.get_buffer(-1)
        count = min(len(room), len(data) - at, reads[turn % len(reads)])
        assert count, "the loop would end for want of room"
        room[:count] = data[at : at + count]
        one.buffer_updated(count)
        at, turn = at + count, turn + 1
    one.eof_received()
    while not one.at_eof():
        found.append(bytes(await one.frame()))
    with pytest.raises(EOFError):
        await one.frame()
    return found


@given(sizes=SIZES, reads=st.lists(st.integers(1, 50_000), min_size=1, max_size=5))
def test_frames_come_out_as_they_went_in(sizes: list[int], reads: list[int]) -> None:
    frames = [bytes((at + size) % 256 for at in range(min(size, 300))).ljust(size, b"x") for size in sizes]
    assert asyncio.run(feed(framed(frames), reads)) == frames


@pytest.mark.parametrize("loop", LOOPS)
def test_frames_cross_a_socket_both_ways(loop: str) -> None:
    async def work() -> None:
        sent = [b"small", b"", b"L" * 3_000_000, b"behind"]

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked = await reader.readexactly(2_000_003)
            assert asked == b"one" + b"2" * 2_000_000
            writer.write(framed(sent))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        closed = asyncio.get_running_loop().create_future()
        port = server.sockets[0].getsockname()[1]
        _, one = await asyncio.get_running_loop().create_connection(lambda: Frames(closed), "127.0.0.1", port)
        one.writelines([b"one", b"2" * 2_000_000])
        await one.drain()
        assert [bytes(await one.frame()) for _ in sent] == sent
        with pytest.raises(EOFError):
            await one.frame()
        assert one.at_eof()
        async with asyncio.timeout(10):
            await closed
        server.close()

    run(loop, work())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_broken_connection_ends_who_waits_for_a_frame(loop: str) -> None:
    async def work() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(struct.pack(">i", 1_000_000) + b"a part of it")
            await writer.drain()
            writer.transport.abort()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        closed = asyncio.get_running_loop().create_future()
        port = server.sockets[0].getsockname()[1]
        _, one = await asyncio.get_running_loop().create_connection(lambda: Frames(closed), "127.0.0.1", port)
        with pytest.raises((EOFError, OSError)):
            await one.frame()
        async with asyncio.timeout(10):
            await closed
        server.close()

    run(loop, work())


@given(sizes=SIZES, reads=st.lists(st.integers(1, 50_000), min_size=1, max_size=5), fails_at=st.integers(0, 9))
def test_frames_are_handed_over_as_soon_as_they_are_here_until_one_is_refused(
    sizes: list[int], reads: list[int], fails_at: int
) -> None:
    frames = [b"x" * size for size in sizes]
    taken: list[bytes] = []

    def take(frame: bytes | bytearray) -> None:
        if len(taken) == fails_at:
            raise ValueError("refused")
        taken.append(bytes(frame))

    async def work() -> None:
        one = Frames(asyncio.get_running_loop().create_future(), take)
        reader = asyncio.create_task(one.frame())
        await asyncio.sleep(0)
        data, at, turn = framed(frames), 0, 0
        while at < len(data):
            room = one.get_buffer(-1)
            count = min(len(room), len(data) - at, reads[turn % len(reads)])
            room[:count] = data[at : at + count]
            one.buffer_updated(count)
            at, turn = at + count, turn + 1
        assert taken == frames[:fails_at]
        one.close()
        with pytest.raises(ValueError if len(frames) > fails_at else EOFError):
            await reader

    asyncio.run(work())


TOPICS = st.lists(
    st.tuples(
        st.text(max_size=8),
        st.lists(st.tuples(st.integers(0, 2**31 - 1), st.binary(max_size=40)), max_size=4),
    ),
    max_size=4,
)


@given(topics=TOPICS, transaction=st.none() | st.text(max_size=5), acks=st.integers(-1, 1))
@pytest.mark.parametrize("version", [ProduceRequest_v3, ProduceRequest_v7])
def test_what_is_produced_is_what_aiokafka_would_send(
    version: Any, topics: list[Any], transaction: str | None, acks: int
) -> None:
    request = version(transaction, acks, 30_000, topics)
    assert request.SCHEMA is ProduceRequest_v3.SCHEMA
    assert b"".join(produced(request)) == request.encode()
