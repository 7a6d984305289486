"""The server process: it handles the socket, TLS, slow clients, and shutdown by a signal."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import uvicorn

from lapse.process_end import bounded_end
from lapse_client.error import LapseError
from lapse_gateway.application import application
from lapse_gateway.gateway import Gateway
from lapse_gateway.http_connection import HttpConnection
from lapse_gateway.request_target import AbsoluteTargets

_PATIENCE_S: Final = 10
"""How long requests under way may still run after a shutdown signal, in seconds."""

_CLOSING_S: Final = 6
"""How long the gateway then waits for Kafka until its clients are closed, in seconds."""

_HELD: Final = "Messages that it holds return when its heartbeats are missed"

_THREADS: Final = 64
"""The most threads that wait for answers to the client."""

_MOST_CONNECTIONS: Final = 2_000

_REMEDIES: Final = {
    errno.EADDRINUSE: "End the program that listens there, or choose another address with --host and --port",
    errno.EACCES: "Ports below 1024 need a right of the system; choose another one with --port",
}
"""The advice for each error of the system."""

log = logging.getLogger("lapse_gateway")


class CannotListen(LapseError):
    """The address or the certificate cannot be used."""


class _Server(uvicorn.Server):
    """A server that reports when it accepts requests, and leaves signals to its starter."""

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
    """Open the listening socket.

    Raises:
        CannotListen: the port is in use, the address is not this machine's, or a right is missing.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # asyncio sets TCP_NODELAY only if the protocol is TCP. Else a body would wait for the receipt of its head.
        opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(address)
            opened.listen(1_024)
        except OSError:
            opened.close()
            raise
    except OSError as error:
        remedy = _REMEDIES.get(
            error.errno or 0, "Name an address of this machine with --host; 0.0.0.0 means all of them"
        )
        raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror or error}. {remedy}") from error
    return opened


def context(gateway: Gateway) -> ssl.SSLContext | None:
    """Return the TLS context; None without a certificate.

    Raises:
        CannotListen: certificate or key cannot be read, or do not match.
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
    """Serve until SIGTERM or Ctrl-C. Then end streams, return the messages of subscriptions, and return.

    If Kafka does not answer, the whole process ends some seconds later, because threads that wait for it cannot be
    interrupted.

    Args:
        gateway: the gateway to serve.
        opened: the socket from `listen`.
        started: called with the URL when requests are accepted.

    Raises:
        CannotListen: TLS cannot be used.
    """
    tls = context(gateway)
    # The end of the runner waits for threads, which may wait for Kafka.
    with (
        bounded_end(_PATIENCE_S + _CLOSING_S, log, "the gateway", _HELD) as ending,
        asyncio.Runner(loop_factory=_loop()) as runner,
    ):
        runner.run(_serve(gateway, opened, tls, started, ending))


def _loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the event loop: uvloop's if installed, because it is faster; else None for Python's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(
    gateway: Gateway,
    opened: socket.socket,
    tls: ssl.SSLContext | None,
    started: Callable[[str], None],
    ending: Callable[[], None] = lambda: None,
) -> None:
    config = uvicorn.Config(
        AbsoluteTargets(application(gateway)),
        http=HttpConnection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MOST_CONNECTIONS,
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
        ending()
        for one in gateway.deployments:
            one.stopping.set()
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    await server.serve(sockets=[opened])
