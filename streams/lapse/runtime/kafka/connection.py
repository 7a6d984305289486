"""A connection to a broker like aiokafka's, with fewer copies of requests and responses."""

from __future__ import annotations

import asyncio
import struct
import weakref
from typing import Any, Final

from aiokafka import conn, errors
from aiokafka.protocol.produce import ProduceRequest, ProduceRequest_v3
from aiokafka.util import wait_for

from lapse.runtime.kafka.frames import Frames

_LENGTH: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">hii")
_PARTITION: Final = struct.Struct(">ii")
_STRING: Final = struct.Struct(">h")


class SwiftConnection(conn.AIOKafkaConnection):
    """Reads responses with `Frames`, and sends produce requests in pieces."""

    async def connect(self) -> None:
        """Do the same as aiokafka's, with `Frames` as the protocol."""
        loop = self._loop
        self._closed_fut = loop.create_future()
        ssl = self._ssl_context if self._security_protocol in ("SSL", "SASL_SSL") else None
        frames = Frames(self._closed_fut)
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
        frames = self._writer
        if not isinstance(request, ProduceRequest) or not expect_response or frames is None:
            return super().send(request, expect_response)
        struct = request.prepare(self._versions)
        if struct.SCHEMA is not ProduceRequest_v3.SCHEMA:
            return super().send(request, expect_response)
        number = self._next_correlation_id()
        header = struct.build_request_header(correlation_id=number, client_id=self._client_id).encode()
        parts = [header, *produced(struct)]
        try:
            frames.writelines([_LENGTH.pack(sum(map(len, parts))), *parts])
        except OSError as error:
            self.close(reason=conn.CloseReason.CONNECTION_BROKEN)
            raise errors.KafkaConnectionError(f"Connection at {self.host}:{self.port} broken: {error}") from error
        answer = self._loop.create_future()
        self._requests.append((number, struct, answer))
        return wait_for(answer, self._request_timeout)

    @staticmethod
    async def _read(self_ref: Any) -> None:
        """Do the same as aiokafka's. A connection without other references ends this task."""
        this = self_ref()
        if this is None:
            return
        frames = this._reader
        del this
        while True:
            frame = await frames.frame()
            this = self_ref()
            if this is None:
                return
            this._handle_frame(frame)
            del this


def produced(request: Any) -> list[bytes]:
    """Return a produce request without its header, in pieces: the unchanged RecordBatches, and the bytes between them.

    Args:
        request: of a version with the schema of version 3.
    """
    transaction = request.transactional_id
    named = _STRING.pack(-1) if transaction is None else _text(transaction)
    before = named + _HEAD.pack(request.required_acks, request.timeout, len(request.topics))
    pieces: list[bytes] = []
    for topic, partitions in request.topics:
        before += _text(topic) + _LENGTH.pack(len(partitions))
        for partition, batch in partitions:
            pieces += [before + _PARTITION.pack(partition, len(batch)), batch]
            before = b""
    return [*pieces, before] if before else pieces


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _STRING.pack(len(encoded)) + encoded


# This applies to all clients of the process, because the class cannot be injected.
conn.AIOKafkaConnection = SwiftConnection
