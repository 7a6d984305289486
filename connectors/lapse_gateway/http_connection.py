"""One HTTP/1.1 connection: parsed by httptools, with limits of time and size for what is no body (X7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Any, Final
from urllib.parse import unquote

import httptools
import orjson
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from lapse.core.error_code import ErrorCode
from lapse_gateway.application import LARGEST_HEAD
from lapse_gateway.fault import Fault

HEAD_S: Final = 10.0
"""How long the head of a request may take to arrive, in seconds."""

_MOST_OVERHEAD: Final = 2 * LARGEST_HEAD
"""The most bytes of a head, or of what surrounds chunks, that may come without its end or a part of a body."""

_NO_HTTP: Final = (
    "this cannot be read as HTTP/1.1: look at the request's first line and its method, such as GET in capitals, at "
    "the names and values of its headers, at the ends of its lines (CR LF), and at the lengths of its body and of its "
    "chunks. The connection is closed"
)

_HOST: Final = b"host"
_CODING: Final = b"transfer-encoding"


class _Place(Enum):
    """Where in a request the next byte stands."""

    BEFORE = "before"
    HEAD = "head"
    BODY = "body"


class _Answer:
    """What a request's answer is written to.

    Args:
        transport: the connection's transport.
        end: called instead of the transport's `close`.
    """

    def __init__(self, transport: asyncio.Transport, end: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = end


class HttpConnection(HttpToolsProtocol):
    """Uvicorn's connection with httptools, and with what that leaves out.

    The head of a request has a time limit, and so has the rest of a body whose request is already answered. A
    connection that ends with such an answer takes that rest in first: most programs send all of a body before they
    read, and would lose the answer. Bytes that are not HTTP are refused in the gateway's own form, behind the answers
    to earlier requests. httptools knows nothing of the rules for `Host`, and takes any transfer encoding that ends
    with `chunked`.
    """

    _deadline: asyncio.TimerHandle | None = None
    _place = _Place.BEFORE
    _overhead = 0
    _is_broken = False
    _is_ending = False

    def connection_made(self, transport: Any) -> None:
        """Begin, with the time limit of the first head."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._end_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        if self._is_broken:
            return
        self._unset_keepalive_if_required()
        self._overhead = 0 if self._place is _Place.BEFORE else self._overhead + len(data)
        try:
            self._feed(data)
            is_readable = self._overhead <= _MOST_OVERHEAD
        except httptools.HttpParserError:
            is_readable = False
        if self._is_ending and not is_readable:
            self.transport.close()
        elif not is_readable:
            self._refuse()
        elif (latest := self._latest) is None or latest.response_complete:
            self._await_head()  # the rest of a body that nobody wants has the same limit
        else:
            self._end_deadline()

    @property
    def _latest(self) -> RequestResponseCycle | None:
        """The request whose head came last; None before the first one."""
        return self.cycle

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:  # to speak another protocol: HTTP/1.1 goes on
                if not offer.args[0]:
                    raise httptools.HttpParserError from offer
                data = data[offer.args[0] :]
            else:
                return

    # What the parser finds

    def on_message_begin(self) -> None:
        """Begin a head."""
        self._place = _Place.HEAD
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header in; those behind a body are ignored."""
        if self._place is _Place.HEAD:
            super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        """Begin the request.

        Raises:
            ValueError: its head is not allowed. httptools passes this on as an error of its own.
        """
        hosts = sum(name == _HOST for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() != "1.0"):
            raise ValueError("a request has one Host")
        if any(name == _CODING and value.lower() != b"chunked" for name, value in self.headers):
            raise ValueError("there is no other transfer encoding than chunked")
        path, _, query = self.url.partition(b"?")
        decoded = unquote(path.decode("ascii"))
        self._place, self._overhead = _Place.BODY, 0
        self.url = b"/"  # uvicorn refuses targets such as `*`, which have answers here
        super().on_headers_complete()
        self.cycle.transport = _Answer(self.transport, self._end)  # type: ignore[assignment]  # a cycle needs no more
        self.scope |= {"path": decoded, "raw_path": path, "query_string": query}

    def on_body(self, body: bytes) -> None:
        """Take in a part of a body."""
        self._overhead = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request.

        Raises:
            EOFError: the connection ends with it. httptools passes this on as an error of its own.
        """
        if self._is_ending:
            raise EOFError
        self._place, self._overhead = _Place.BEFORE, 0
        super().on_message_complete()

    # The end of the connection, and refusals

    def _end(self) -> None:
        """End the connection behind an answer, and behind the body of its request if that is still coming."""
        if self._place is not _Place.BODY or self.pipeline:
            self.transport.close()
            return
        self._is_ending = True
        if self.transport.can_write_eof():  # not with TLS
            self.transport.write_eof()
        self._await_head()

    def _refuse(self) -> None:
        """Refuse bytes that are not HTTP, behind the answers to the requests before them. Nothing more is read."""
        self._is_broken = True
        self._end_deadline()
        before = self._latest
        is_queued = bool(self.pipeline) and self.pipeline[0][0] is before
        is_of_body = self._place is _Place.BODY
        if is_of_body and is_queued:
            self.pipeline.popleft()
        elif is_of_body and before is not None:
            if before.response_started:
                self.transport.close()  # no other answer can follow
                return
            before.disconnected = True  # its own answer would follow
            before.message_event.set()
        self.cycle = self._cycle()
        answer: Any = _answer_broken  # starlette and uvicorn have different types for the same
        if is_queued or not (before is None or before.response_complete or before.disconnected):
            self.pipeline.appendleft((self.cycle, answer))
        else:
            self._start_asgi_task(self.cycle, answer)

    def _cycle(self) -> RequestResponseCycle:
        """Return a request that stands for what cannot be read."""
        return RequestResponseCycle(
            scope={"type": "http", "method": "GET", "http_version": "1.1"},  # type: ignore[typeddict-item]  # no more is known
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=False,
            on_response=self.on_response_complete,
        )

    def _await_head(self) -> None:
        """Close the connection unless the whole head comes in time. Single bytes of it do not extend the time."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_S, self.transport.close)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


async def _answer_broken(_scope: Scope, _receive: Receive, send: Send) -> None:
    """Answer what cannot be read."""
    content = orjson.dumps(Fault(ErrorCode.MALFORMED, _NO_HTTP).as_dict(), option=orjson.OPT_APPEND_NEWLINE)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": 400, "headers": [*headers, (b"connection", b"close")]})
    await send({"type": "http.response.body", "body": content})
