"""A connection to a broker like aiokafka's, with fewer copies of requests and responses."""

from __future__ import annotations

import asyncio
import struct
import time
import weakref
from functools import partial
from typing import Any, Final

from aiokafka import conn, errors
from aiokafka.protocol.produce import ProduceRequest, ProduceRequest_v3

from lapse.runtime.kafka.fetch_session import SessionAnswer
from lapse.runtime.kafka.frames import Frames
from lapse.runtime.kafka.swift_codec import ANSWERS, NUMBER, REQUESTS, Frame, text

_LENGTH: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">hii")
_PARTITION: Final = struct.Struct(">ii")
_REQUEST: Final = struct.Struct(">hhi")
"""The kind of a request, its version and its number."""


class SwiftConnection(conn.AIOKafkaConnection):
    """Reads responses with `Frames`, and sends produce requests in pieces."""

    async def connect(self) -> None:
        """Do the same as aiokafka's, with `Frames` as the protocol."""
        loop = self._loop
        self._closed_fut = loop.create_future()
        ssl = self._ssl_context if self._security_protocol in ("SSL", "SASL_SSL") else None
        frames = Frames(self._closed_fut, partial(_take, weakref.ref(self)))
        async with asyncio.timeout(self._request_timeout):
            await loop.create_connection(lambda: frames, self.host, self.port, ssl=ssl)
        self._reader = self._writer = self._protocol = frames
        self._read_task = self._create_reader_task()
        if self._max_idle_ms is not None:
            self._idle_handle = loop.call_soon(self._idle_check, weakref.ref(self))
        try:
            await self._do_version_lookup()
            if self._security_protocol in ("SASL_SSL", "SASL_PLAINTEXT"):
                await self._do_sasl_handshake()
        except BaseException:
            self.close()
            raise

    def send(self, request: Any, expect_response: bool = True) -> Any:  # signature of aiokafka
        """Send a request like aiokafka's, which copies a produce request eight times: once for each nested part."""
        frames: Any = self._writer
        if frames is None or not expect_response:
            return super().send(request, expect_response)
        struct = request.prepare(self._versions)
        if isinstance(request, ProduceRequest) and struct.SCHEMA is ProduceRequest_v3.SCHEMA:
            parts = produced(struct)
        elif (encode := REQUESTS.get(type(struct))) is not None:
            parts = [encode(struct)]
        else:
            return super().send(request, expect_response)
        number = self._next_correlation_id()
        parts.insert(0, _REQUEST.pack(struct.API_KEY, struct.API_VERSION, number) + text(self._client_id))
        try:
            frames.writelines([_LENGTH.pack(sum(map(len, parts))), *parts])
        except OSError as error:
            self.close(reason=conn.CloseReason.CONNECTION_BROKEN)
            raise errors.KafkaConnectionError(f"Connection at {self.host}:{self.port} broken: {error}") from error
        answer = self._loop.create_future()
        self._requests.append((number, struct, answer))
        return self._answer(answer)

    async def _answer(self, answer: asyncio.Future[Any]) -> Any:
        """Return the answer to a request, or raise `TimeoutError`."""
        timer = self._loop.call_later(self._request_timeout, _give_up, answer)
        try:
            return await answer
        finally:
            timer.cancel()

    def _handle_frame(self, resp: Frame) -> None:
        """Do the same as aiokafka's, which copies the frame, and decodes it field by field."""
        number, request, answer = self._requests[0]
        kind: Any = None if number is None else request.RESPONSE_TYPE
        of_session = isinstance(kind, SessionAnswer)
        decode = ANSWERS.get(kind.kind if of_session else kind)
        if decode is None or NUMBER.unpack_from(resp) != (number,):
            super()._handle_frame(resp)
            return
        if not answer.done():
            response = decode(resp)
            if of_session:
                kind.note(response)
            answer.set_result(response)
        self._last_action = time.monotonic()
        self._requests.popleft()

    @staticmethod
    async def _read(self_ref: Any) -> None:
        """Wait for the end of the connection. Frames come by `_take`, without a turn of the loop in between."""
        this = self_ref()
        if this is not None:
            frames = this._reader
            del this  # a connection without other references is closed
            await frames.frame()


def _take(self_ref: weakref.ref[SwiftConnection], frame: Frame) -> None:
    this = self_ref()
    if this is not None:
        this._handle_frame(frame)


def produced(request: Any) -> list[bytes]:
    """Return a produce request without its header, in pieces: the unchanged RecordBatches, and the bytes between them.

    Args:
        request: of a version with the schema of version 3.
    """
    transaction = request.transactional_id
    before = text(transaction) + _HEAD.pack(request.required_acks, request.timeout, len(request.topics))
    pieces: list[bytes] = []
    for topic, partitions in request.topics:
        before += text(topic) + _LENGTH.pack(len(partitions))
        for partition, batch in partitions:
            pieces += [before + _PARTITION.pack(partition, len(batch)), batch]
            before = b""
    return [*pieces, before] if before else pieces


def _give_up(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())


# This applies to all clients of the process, because the class cannot be injected.
conn.AIOKafkaConnection = SwiftConnection
