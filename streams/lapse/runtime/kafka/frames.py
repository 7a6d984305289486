"""The frames of a connection to Kafka, read from the socket into their final buffers.

Kafka's answers are frames: four bytes with the length, then the content. asyncio's streams copy a fetch of a megabyte
four times, and stop and resume reading for every 256 KiB. Meanwhile no other thread can run Python. Here the kernel
writes a large frame into its final buffer, and a small one is copied once.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, cast

_LENGTH: Final = struct.Struct(">i")

_SMALL_BYTES: Final = 16 << 10
"""Size of the buffer for bytes whose frame's length is not known yet. A frame that fits in is copied out of it."""


class Frames(asyncio.BufferedProtocol):
    """One connection: reads frames, and writes bytes.

    Args:
        closed: set when the connection is lost.
        take: called with each frame as soon as it is here; None to keep frames for `frame`. An error that it raises
            ends the connection.
    """

    def __init__(self, closed: asyncio.Future[None], take: Callable[[bytes | bytearray], None] | None = None) -> None:
        self._closed = closed
        self._take = take
        self._transport: asyncio.Transport | None = None
        self._small = bytearray(_SMALL_BYTES)
        self._small_view = memoryview(self._small)
        self._held = 0
        """How many bytes of `_small` were read and belong to no complete frame yet."""
        self._large: bytearray | None = None
        self._filled = 0
        """How many bytes of the large frame were read."""
        self._frames: deque[bytes | bytearray] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._error: Exception | None = None
        self._may_write: asyncio.Future[None] | None = None

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport for writing."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is lost."""
        self._end(exc)
        self.resume_writing()
        if not self._closed.done():
            self._closed.set_result(None)

    def eof_received(self) -> bool:
        """Note that the other side has closed its end; the transport then closes."""
        self._end(None)
        return False

    def get_buffer(self, sizehint: int) -> memoryview:  # signature of asyncio
        """Return the buffer for the next bytes, which ends with a large frame."""
        if self._large is not None:
            return memoryview(self._large)[self._filled :]
        return self._small_view[self._held :]

    def buffer_updated(self, nbytes: int) -> None:
        """Process bytes that were read into the buffer."""
        if self._large is None:
            self._held += nbytes
            self._take_apart()
            return
        self._filled += nbytes
        if self._filled == len(self._large):
            frame, self._large = self._large, None
            self._arrived(frame)
            self._wake()

    def pause_writing(self) -> None:
        """Make writers wait, because the socket's buffer is full."""
        self._may_write = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """Let writers go on."""
        waiting, self._may_write = self._may_write, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    # Called by a connection

    async def frame(self) -> bytes | bytearray:
        """Return the next frame, without its length.

        Raises:
            EOFError: there is none, and the other side has closed the connection.
            OSError: the connection is broken.
        """
        while not self._frames:
            if self._ended:
                raise self._error or EOFError("the broker has closed the connection")
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._frames.popleft()

    def at_eof(self) -> bool:
        """Return whether no further frame comes."""
        return self._ended and not self._frames

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if self._transport is not None:
            self._transport.write(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        """Send several pieces of bytes, without joining them first."""
        if self._transport is not None:
            self._transport.writelines(parts)

    async def drain(self) -> None:
        """Wait until the socket's buffer has room.

        Raises:
            OSError: the connection is broken.
        """
        if self._error is not None:
            raise self._error
        while self._may_write is not None:
            await asyncio.shield(self._may_write)

    def close(self) -> None:
        """Close the connection, once everything is sent. Frames that still come are dropped."""
        self._end(None)
        if self._transport is not None:
            self._transport.close()

    def _take_apart(self) -> None:
        """Extract the frames from the bytes that were read; begin a large one."""
        at, held, small = 0, self._held, self._small_view
        while held - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(small, at)
            begin = at + _LENGTH.size
            if length <= held - begin:
                self._arrived(bytes(small[begin : begin + length]))
                at = begin + length
                continue
            if length > _SMALL_BYTES - _LENGTH.size:
                self._large, self._filled = bytearray(length), held - begin
                self._large[: self._filled] = small[begin:held]
                at = held
            break
        self._held = held - at
        if at and self._held:
            self._small[: self._held] = small[at:held].tobytes()
        self._wake()

    def _arrived(self, frame: bytes | bytearray) -> None:
        if self._take is None:
            self._frames.append(frame)
        elif not self._ended:
            try:
                self._take(frame)
            except Exception as error:  # noqa: BLE001  # the reader raises it
                self._end(error)

    def _wake(self) -> None:
        if self._frames and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end(self, error: Exception | None) -> None:
        self._ended, self._error = True, self._error or error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
