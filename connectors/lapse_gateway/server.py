"""The process: a socket, TLS, slow clients, and the end by a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import h11
import orjson
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from lapse.core.error_code import ErrorCode
from lapse_client.error import LapseError
from lapse_gateway.application import LARGEST_HEAD, application
from lapse_gateway.fault import Fault
from lapse_gateway.gateway import Gateway
from lapse_gateway.request_target import AbsoluteTargets

_HEAD_S: Final = 10.0
"""How long the head of a request may take to arrive, s."""

_PATIENCE_S: Final = 10
"""How long requests that are under way may take to end, s."""

_THREADS: Final = 64
"""What waits for answers of the client, at most."""

_MOST_CONNECTIONS: Final = 2_000

_NO_HTTP: Final = (
    "this cannot be read as HTTP/1.1: look at the request's first line, at the names and values of its headers, and at "
    "the lengths of its body and of its chunks. The connection is closed"
)

log = logging.getLogger("lapse_gateway")


class CannotListen(LapseError):
    """The address cannot be used, or the certificate."""


class _Protocol(H11Protocol):
    """HTTP/1.1 that does not wait for ever for the head of a request."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # What is left of a body whose request is answered already may not take longer than a head, either.
        unwanted = self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY
        if unwanted or (self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]):
            self._await_head()
        elif self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, as any other request is refused; in words of the gateway's own."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # an answer has begun, or is sent: nothing can be said any more
            return
        content = orjson.dumps(Fault(ErrorCode.MALFORMED, _NO_HTTP).as_dict(), option=orjson.OPT_APPEND_NEWLINE)
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(content))), ("Connection", "close")]
        answer = h11.Response(status_code=400, headers=headers, reason="Bad Request")
        for event in (answer, h11.Data(data=content), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        """Close the connection unless the head is there in time; further bytes of it buy no time."""
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().call_later(_HEAD_S, self.transport.close)


class _Server(uvicorn.Server):
    """A server that says when it takes requests, and leaves signals to who started it."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """Open the socket.

    Raises:
        CannotListen: the port is occupied, the address is not this machine's, or a right is missing.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # asyncio looks at the protocol, and only where it is TCP has an answer's body not wait for its head's receipt.
        opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(address)
            opened.listen(1_024)
        except OSError:
            opened.close()
            raise
    except OSError as error:
        raise CannotListen(
            f"cannot listen on {host}:{port}: {error.strerror or error}. End the program that listens there, or choose "
            "another address with --host and --port"
        ) from error
    return opened


def context(gateway: Gateway) -> ssl.SSLContext | None:
    """What TLS needs; None without.

    Raises:
        CannotListen: certificate or key cannot be read, or do not belong together.
    """
    settings = gateway.settings
    if settings.certificate is None:
        return None
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        found.load_cert_chain(settings.certificate, settings.key)
    except (OSError, ssl.SSLError) as error:
        raise CannotListen(
            f"TLS: certificate {settings.certificate} and key {settings.key or settings.certificate} cannot be used: "
            f"{error.strerror or error}. Name two PEM files that belong together"
        ) from error
    return found


def serve(gateway: Gateway, opened: socket.socket, started: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; then end streams, give back what subscriptions hold, and return.

    Args:
        gateway: what is served.
        opened: where, from `listen`.
        started: told the address once requests are taken.

    Raises:
        CannotListen: TLS cannot be used.
    """
    tls = context(gateway)
    with asyncio.Runner(loop_factory=_loop()) as runner:
        runner.run(_serve(gateway, opened, tls, started))


def _loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop: uvloop's where it is installed, which costs less a request; else Python's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(
    gateway: Gateway, opened: socket.socket, tls: ssl.SSLContext | None, started: Callable[[str], None]
) -> None:
    config = uvicorn.Config(
        AbsoluteTargets(application(gateway)),
        http=_Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MOST_CONNECTIONS,
        h11_max_incomplete_event_size=2 * LARGEST_HEAD,
        timeout_graceful_shutdown=_PATIENCE_S,
    )
    config.load()
    config.ssl = tls

    def ready() -> None:
        host, port = opened.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        started(f"{'http' if tls is None else 'https'}://{shown}:{port}")

    server = _Server(config, ready)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS, "lapse gateway"))

    def end() -> None:
        for one in gateway.deployments:
            one.stopping.set()
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    await server.serve(sockets=[opened])
