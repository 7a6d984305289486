"""The gateway's server: slow and broken clients, and its end."""

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable

import pytest

from lapse_client import Connection
from lapse_gateway import CannotListen, Gateway, Settings, Users, http_connection, server

Client = Callable[[int], Awaitable[None]]


def serve(
    client: Client, settings: Settings | None = None, after: Callable[[], Awaitable[object]] | None = None
) -> None:
    """Run a gateway in this process while a client is at work; SIGTERM ends it, and `after` is waited for."""
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
            async with asyncio.timeout(20):
                await serving
            if after is not None:
                async with asyncio.timeout(20):
                    await after()

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
                async with asyncio.timeout(20):
                    return await found

    assert asyncio.run(accepted()) == 1, "40 ms for each answer, by Nagle's rule and a delayed acknowledgment"


@pytest.mark.feature("X7")
@pytest.mark.parametrize("head", [b"", b"GET /v1 HTTP/1.1\r\nHost: x\r\n"], ids=["silent", "unfinished"])
def test_a_client_whose_request_does_not_arrive_is_let_go(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "HEAD_S", 0.3)

    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()

    serve(client)


@pytest.mark.feature("X7")
def test_a_client_whose_second_request_does_not_arrive_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "HEAD_S", 0.3)

    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 200 " in await reader.readline()
        while b"status" not in await reader.readline():
            pass
        writer.write(b"GET /health HTTP/1.1\r\nHo")
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()

    serve(client)


@pytest.mark.feature("X7")
def test_a_client_that_goes_on_with_a_refused_request_without_end_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "HEAD_S", 0.3)

    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        assert b" 404 " in await reader.readline()
        ended = asyncio.ensure_future(reader.read())
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(20):
                while not ended.done():
                    writer.write(b"x")
                    await asyncio.wait([ended], timeout=0.05)
        assert ended.done()
        writer.close()

    serve(client)


@pytest.mark.feature("X7")
def test_a_body_that_does_not_arrive_is_refused_in_a_sentence() -> None:
    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/publish/orders HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")
        async with asyncio.timeout(20):
            answer = await reader.read()  # it ends: the connection is closed behind it
        assert b" 408 " in answer.splitlines()[0]
        assert b"the body did not arrive within 0.3 s" in answer
        writer.close()

    serve(client, Settings(body_timeout_s=0.3))


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("head", "code"),
    [
        (b"POST /v1/publish/orders HTTP/1.1\r\nContent-Length: 9000000\r\n", b"too_large"),
        (b"POST /v1/publish/orders HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", b"too_large"),
        (
            b"POST /v1/publish/orders HTTP/1.1\r\nContent-Encoding: br\r\nContent-Length: 9000000\r\n",
            b"unsupported_encoding",
        ),
        (b"POST /v1/nothing HTTP/1.1\r\nConnection: close\r\nContent-Length: 9000000\r\n", b"unknown_path"),
    ],
    ids=["length", "chunks", "encoding", "path"],
)
def test_a_program_that_sends_its_whole_body_first_gets_the_refusal(head: bytes, code: bytes) -> None:
    """Urllib and most others send all before they read. What follows on the connection is not carried out."""
    body = b"x" * 9_000_000
    if b"chunked" in head:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)

    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + b"Host: x\r\n\r\n" + body + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(20):
            await writer.drain()
        async with asyncio.timeout(20):
            answer = await reader.read()
        assert code in answer
        assert answer.count(b"HTTP/1.1 ") == 1
        writer.close()

    serve(client)


POST = b"POST /v1/publish/orders HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"
BROKEN = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9 + b"\r\n\r\n",
    "a head of 1,000,000 bytes": GET + b"X: " + b"a" * 1_000_000 + b"\r\n\r\n",
    "an unknown method": b"BREW /health HTTP/1.1\r\nHost: x\r\n\r\n",
    "a method in small letters": b"get /health HTTP/1.1\r\nHost: x\r\n\r\n",
    "lines that end with LF alone": b"GET /health HTTP/1.1\nHost: x\n\n",
    "HTTP/0.9": b"GET /health\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": GET + b"Host: y\r\n\r\n",
    "a name with a space": GET + b"X y: 1\r\n\r\n",
    "a space before the colon": GET + b"X : 1\r\n\r\n",
    "a zero byte": GET + b"X: \x00\r\n\r\n",
    "bytes that are no address": b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    "a length below 0": POST + b"Content-Length: -1\r\n\r\n",
    "a length with a sign": POST + b"Content-Length: +2\r\n\r\n{}",
    "a length that is no decimal": POST + b"Content-Length: 0x2\r\n\r\n{}",
    "a length of 30 digits": POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n{}",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
    "a length and chunks": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GET + b"\r\n",
    "an unknown transfer encoding": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a chunk's size that is no number": CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n",
    "a chunk's size below 0": CHUNKED + b"-1\r\n{}\r\n0\r\n\r\n",
    "a chunk's size of 30 digits": CHUNKED + b"f" * 30 + b"\r\n{}\r\n0\r\n\r\n",
    "a chunk that is longer than its size": CHUNKED + b"1\r\n{}\r\n0\r\n\r\n",
    "a chunk's extension of 1,000,000 bytes": CHUNKED + b"1;" + b"a" * 1_000_000 + b"\r\n{\r\n0\r\n\r\n",
    "a trailer of 1,000,000 bytes": CHUNKED + b"2\r\n{}\r\n0\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n",
}


@pytest.mark.feature("X7")
@pytest.mark.parametrize("request_bytes", BROKEN.values(), ids=BROKEN.keys())
def test_what_is_no_http_is_refused_in_a_sentence_and_the_next_client_is_served(request_bytes: bytes) -> None:
    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes)
        try:
            async with asyncio.timeout(20):
                answer = await reader.read()  # it ends: the connection is closed behind it
        except ConnectionResetError:
            assert len(request_bytes) > 100_000  # nobody reads it to its end, so TCP may drop the answer
        else:
            head, _, body = answer.partition(b"\r\n\r\n")
            assert b" 400 " in head.splitlines()[0]
            assert answer.count(b"HTTP/1.1") - body.count(b"HTTP/1.1") == 1, "one answer, and to no hidden request"
            error = json.loads(body)["error"]
            assert error["code"] == "malformed"
            assert "length" in error["text"].lower()
        writer.close()
        await served(port)

    serve(client)


async def served(port: int) -> None:
    """The next client is."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GET + b"Connection: close\r\n\r\n")
    async with asyncio.timeout(20):
        assert b" 200 " in (await reader.read()).splitlines()[0]
    writer.close()


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/queues/%zz", 404),
        ("/v1/queues/a%00b", 404),
        ("/v1/queues/%ff%fe", 404),
        ("/console/../../etc/passwd", 404),
        ("/%2e%2e/%2e%2e/etc/passwd", 404),
        ("//v1//queues", 404),
        ("*", 404),
        ("/v1/queues/orders?" + "&".join(f"a{number}=1" for number in range(2_000)), 400),
        ("/v1/queues/orders?filter=%ff", 400),
        ("/" + "a" * 60_000, 404),
    ],
)
def test_a_path_that_names_nothing_is_refused_and_opens_no_file(path: str, status: int) -> None:
    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode("latin-1"))
        async with asyncio.timeout(20):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert int(head.split()[1]) == status, head
        assert len(json.loads(body)["error"]["text"]) < 400
        writer.close()

    serve(client)


@pytest.mark.feature("X7")
def test_headers_behind_a_body_are_no_headers() -> None:
    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        purge = b"POST /v1/queues/orders/purge HTTP/1.1\r\nHost: x\r\nConnection: close \t\r\n"
        writer.write(purge + b"Transfer-Encoding: chunked\r\n\r\n1\r\n[\r\n0\r\nOrigin: http://other\r\n\r\n")
        async with asyncio.timeout(20):
            answer = await reader.read()
        assert b" 400 " in answer.splitlines()[0], "not 403, as that header would have it"
        writer.close()

    serve(client)


@pytest.mark.feature("X7")
def test_an_offer_of_another_protocol_is_passed_over() -> None:
    """curl --http2 makes one with its first request."""

    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
        writer.write(GET + offer + GET + b"\r\n")
        writer.write(GET + b"Connection: close\r\n\r\n")
        async with asyncio.timeout(20):
            answers = (await reader.read()).split(b"HTTP/1.1 ")[1:]
        assert [answer[:3] for answer in answers] == [b"200", b"200", b"200"]
        writer.close()

    serve(client)


@pytest.mark.feature("X7")
def test_garbage_behind_requests_that_are_right_ends_the_connection_after_their_answers() -> None:
    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write((GET + b"\r\n") * 3 + b"\x00garbage\r\n\r\n")
        async with asyncio.timeout(20):
            answers = (await reader.read()).split(b"HTTP/1.1 ")[1:]
        assert [answer[:3] for answer in answers] == [b"200", b"200", b"200", b"400"]
        writer.close()
        await served(port)

    serve(client)


@pytest.mark.feature("X7")
def test_garbage_in_a_body_that_was_refused_already_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CHUNKED + b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        async with asyncio.timeout(20):
            assert b" 413 " in await reader.readline()
        writer.write(b"zz\r\nno chunk")
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(20):
                await reader.read()
        writer.close()
        await served(port)

    serve(client, Settings(largest_body=1_000))
    assert not [one for one in caplog.records if one.exc_info], "no trace"


@pytest.mark.feature("X7")
def test_garbage_in_a_body_that_nobody_waits_for_has_one_answer(caplog: pytest.LogCaptureFixture) -> None:
    """The answer of the request came behind that about the garbage, and left a page of calls in the log."""

    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n")
        async with asyncio.timeout(20):
            answers = (await reader.read()).split(b"HTTP/1.1 ")[1:]
        assert [answer[:3] for answer in answers] == [b"400"]
        writer.close()
        await served(port)

    serve(client)
    assert not [one for one in caplog.records if one.exc_info], "no trace"


@pytest.mark.feature("X7", "X2")
def test_a_request_that_is_under_way_at_the_end_is_answered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "_PATIENCE_S", 1)
    answers = []

    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(POST + b"Content-Length: 10\r\n\r\nhalf")
        await asyncio.sleep(0.2)
        answers.append((asyncio.ensure_future(reader.read()), writer))

    serve(client, after=lambda: answers[0][0])
    answer = answers[0][0].result()
    assert b" 503 " in answer.splitlines()[0]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "stopping"
    assert not [one for one in caplog.records if one.exc_info], "no trace"


@pytest.mark.feature("X7")
def test_a_port_that_is_occupied_is_reported_with_what_to_do() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(CannotListen, match=rf"cannot listen on 127.0.0.1:{port}: .*in use.*End .*--port"):
            server.listen("127.0.0.1", port)


@pytest.mark.feature("X7")
@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
def test_an_address_that_is_not_this_machines_is_reported_with_what_to_do(host: str) -> None:
    with pytest.raises(
        CannotListen, match=rf"cannot listen on {host}:0: .*\. Name an address of this machine with --host"
    ):
        server.listen(host, 0)


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("target", "line"),
    [
        (b"http://gateway:8080/health", b" 200 "),
        (b"HTTPS://me:secret@gateway/health?", b" 200 "),
        (b"http://gateway/v1/%71ueues/a%2Fb?filter=%2F", b" 404 "),
        (b"http://gateway", b" 503 "),
        (b"http://gateway?find=x", b" 503 "),
        (b"ftp://gateway/health", b" 404 "),
    ],
)
def test_a_target_in_its_absolute_form_means_its_path(
    target: bytes, line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As proxies send it; `/` is a page about queues, and no broker answers here."""
    monkeypatch.setattr("lapse_client.kafka.metadata.FIRST_ANSWER_S", 0.1)

    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET " + target + b" HTTP/1.1\r\nHost: other\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(20):
            answer = await reader.read()
        assert line in answer.splitlines()[0]
        writer.close()

    serve(client)


@pytest.mark.feature("X7")
@pytest.mark.parametrize(("origin", "status"), [("http://gateway", b" 400 "), ("http://other", b" 403 ")])
def test_the_target_s_host_counts_and_not_the_header_s(origin: str, status: bytes) -> None:
    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST http://gateway/v1/queues/orders/purge HTTP/1.1\r\nHost: other\r\nOrigin: {origin}\r\n"
        writer.write(head.encode() + b"Content-Length: 1\r\nConnection: close\r\n\r\n[")
        async with asyncio.timeout(20):
            answer = await reader.read()
        assert status in answer.splitlines()[0]
        writer.close()

    serve(client)
