"""The gateway's server: slow and broken clients, and its end."""

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable

import pytest

from lapse_client import Connection
from lapse_gateway import CannotListen, Gateway, Settings, Users, server

Client = Callable[[int], Awaitable[None]]


def serve(client: Client, settings: Settings | None = None) -> None:
    """Run a gateway in this process while a client is at work; SIGTERM ends it."""
    gateway = Gateway(Connection("127.0.0.1:1"), settings or Settings(), Users())
    opened = server.listen("127.0.0.1", 0)
    port = opened.getsockname()[1]

    async def run() -> None:
        ready = asyncio.Event()
        serving = asyncio.create_task(server._serve(gateway, opened, None, lambda _: ready.set()))
        await ready.wait()
        try:
            await client(port)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(serving, 20)

    with opened:
        asyncio.run(run())


def test_an_answer_s_body_does_not_wait_for_its_head_s_receipt() -> None:
    async def accepted() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def met(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            found.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with server.listen("127.0.0.1", 0) as opened:
            async with await asyncio.start_server(met, sock=opened):
                _, writer = await asyncio.open_connection(*opened.getsockname())
                writer.close()
                return await asyncio.wait_for(found, 20)

    assert asyncio.run(accepted()) == 1, "40 ms for each answer, by Nagle's rule and a delayed acknowledgment"


@pytest.mark.feature("X7")
@pytest.mark.parametrize("head", [b"", b"GET /v1 HTTP/1.1\r\nHost: x\r\n"], ids=["silent", "unfinished"])
def test_a_client_whose_request_does_not_arrive_is_let_go(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_HEAD_S", 0.3)

    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()

    serve(client)


@pytest.mark.feature("X7")
def test_a_client_whose_second_request_does_not_arrive_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_HEAD_S", 0.3)

    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 200 " in await reader.readline()
        while b"status" not in await reader.readline():
            pass
        writer.write(b"GET /health HTTP/1.1\r\nHo")
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()

    serve(client)


@pytest.mark.feature("X7")
def test_a_body_that_does_not_arrive_is_refused_in_a_sentence() -> None:
    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/publish/orders HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")
        answer = await asyncio.wait_for(reader.read(), 20)  # it ends: the connection is closed behind it
        assert b" 408 " in answer.splitlines()[0]
        assert b"the body did not arrive within 0.3 s" in answer
        writer.close()

    serve(client, Settings(body_timeout_s=0.3))


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9 + b"\r\n\r\n",
        b"GET /v1 HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n",
        b"GET /v1 HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["TLS", "a head of 1,000,000 bytes", "a length below 0", "bytes that are no address"],
)
def test_what_is_no_http_is_refused_and_the_next_client_is_served(request_bytes: bytes) -> None:
    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes)
        try:
            answer = await asyncio.wait_for(reader.read(), 20)
        except ConnectionResetError:
            assert len(request_bytes) > 100_000  # nobody reads it to its end, so TCP may drop the answer
        else:
            assert b" 400 " in answer.splitlines()[0]
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b" 200 " in (await asyncio.wait_for(reader.read(), 20)).splitlines()[0]
        writer.close()

    serve(client)


@pytest.mark.feature("X7")
def test_a_port_that_is_occupied_is_told_with_what_to_do() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(CannotListen, match=rf"cannot listen on 127.0.0.1:{port}: .*in use.*--port"):
            server.listen("127.0.0.1", port)


def test_an_address_of_another_machine_is_told() -> None:
    with pytest.raises(CannotListen, match="cannot listen on 192.0.2.1:0"):
        server.listen("192.0.2.1", 0)
