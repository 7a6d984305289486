"""The HTTP endpoint of a worker, which answers from the start of the process, even without brokers."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import orjson
from prometheus_client import CollectorRegistry, Gauge, make_wsgi_app

from lapse.runtime.health import AWAY_FIGURE, Readiness, StartResponse, Wsgi

logger = logging.getLogger(__name__)


class _Server(ThreadingMixIn, WSGIServer):
    """A server that has its application before it listens. prometheus-client's would answer `/ready` with 200 first.

    Raises:
        OSError: the address is not available.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, app: Wsgi) -> None:
        self.address_family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self.set_app(app)
        super().__init__((str(address[0]), port), _QuietHandler)


class _QuietHandler(WSGIRequestHandler):
    """A handler that does not log requests."""

    def log_message(self, *_: Any) -> None:
        """See `BaseHTTPRequestHandler`."""


class Endpoint:
    """Answers in a thread of its own: with fixed answers during the start, then with the application of `serve`.

    Until then the worker is healthy, and not ready.
    """

    def __init__(self) -> None:
        self._server: WSGIServer | None = None
        self._app: Wsgi = self._starting
        self._away: tuple[float, str] | None = None
        registry = CollectorRegistry()
        Gauge(*AWAY_FIGURE, registry=registry).set_function(lambda: self._away_s or 0)
        self._figures: Wsgi = make_wsgi_app(registry)

    def open(self, host: str, port: int) -> None:
        """Listen. If the address is not available, log a warning, because a worker can run without.

        Args:
            host: the address.
            port: the port; 0 to answer nobody.
        """
        if not port or self._server is not None:
            return
        try:
            self._server = _Server(host, port, self._starting)
        except OSError as error:
            logger.warning(
                "no metrics: metrics_port %d on %s cannot be opened: %s. End the program that uses it, or set another "
                "metrics_port, and start the worker again",
                port,
                host,
                error.strerror or error,
            )
            return
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        logger.info("metrics at http://%s:%d/metrics", host, port)

    def note_away(self, why: str) -> None:
        """Report from now on that no broker answers, and log it once, or again if the reason is about something else.

        Args:
            why: the reason: what it is about, a colon, and more.
        """
        if self._away is None or self._away[1].partition(":")[0] != why.partition(":")[0]:
            logger.warning("%s. The worker waits for it", why)
        self._away = (time.monotonic() if self._away is None else self._away[0]), why

    def note_back(self) -> None:
        """Report that brokers answer again."""
        if self._away is not None:
            logger.info("Kafka answers: the worker starts")
        self._away = None

    def serve(self, app: Wsgi) -> None:
        """Answer with this application from now on."""
        self._app = app
        if self._server is not None:
            self._server.set_app(app)

    def healthy(self) -> bool:
        """Whether `/health` is answered with 200; waits for the event loop as that does.

        Raises:
            RuntimeError: the event loop has ended.
        """
        statuses: list[str] = []

        def note(status: str, _: list[tuple[str, str]]) -> None:
            statuses.append(status)

        self._app({"PATH_INFO": "/health", "REQUEST_METHOD": "GET"}, note)
        return statuses[0].startswith("200")

    def close(self) -> None:
        """Stop answering."""
        if self._server is not None:
            # Do not join the thread: it may wait for the event loop, on which this runs.
            threading.Thread(target=self._server.shutdown, daemon=True).start()
            self._server.server_close()

    @property
    def _away_s(self) -> float | None:
        away = self._away
        return None if away is None else time.monotonic() - away[0]

    def _starting(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        facts: dict[str, Any]
        if path == "/health":
            status, facts = "200 OK", {"healthy": True}
        elif path == "/ready":
            away = self._away
            why = "the worker is starting" if away is None else away[1]
            found = Readiness(False, 0, 0, (), {}, self._away_s)
            status, facts = "503 Service Unavailable", {**found.as_dict(), "why": why}
        else:
            return self._figures(environ, start_response)
        start_response(status, [("Content-Type", "application/json"), ("Cache-Control", "no-store")])
        return [orjson.dumps(facts)]
