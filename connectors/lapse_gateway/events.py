"""Server-sent events: answers that stay open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final

import orjson
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from lapse_gateway.gateway import Gateway

_QUIET_S: Final = 15.0
"""After this time without an event a comment is sent, in seconds, because proxies close silent streams."""

_NOTHING: Final = b": nothing for now\n\n"


def event(kind: str, content: object, name: str = "") -> bytes:
    """Encode one event, with its content as JSON.

    Args:
        kind: type of the event.
        content: data of the event.
        name: id of the event, such as a receipt; empty = none.
    """
    lines = [f"id: {name}".encode()] if name else []
    lines.append(f"event: {kind}".encode())
    # A payload that is embedded unchanged may have line ends, and a line of an event must not.
    lines += [b"data: " + line for line in orjson.dumps(content).replace(b"\r", b"\n").split(b"\n")]
    return b"\n".join(lines) + b"\n\n"


class _Stream(StreamingResponse):
    """A response of events that always runs its clean-up, even if no event was read."""

    def __init__(self, events: AsyncGenerator[bytes, None], end: Callable[[], Awaitable[None]]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._events = events
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()
            await self._end()


def stream(
    gateway: Gateway, events: AsyncGenerator[bytes, None], end: Callable[[], Awaitable[None]]
) -> StreamingResponse:
    """Return a response of events. It ends when the gateway stops, or when the caller disconnects.

    Args:
        gateway: the gateway.
        events: the encoded events. A generator that was never started does not run its `finally`.
        end: the clean-up, called once in any case.
    """
    return _Stream(_with_keep_alive(gateway, events), end)


async def _with_keep_alive(gateway: Gateway, events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    yield b"retry: 2000\n\n"
    ending: asyncio.Future[Any] = asyncio.ensure_future(gateway.stopping.wait())
    following: asyncio.Future[bytes] | None = None
    try:
        while not gateway.stopping.is_set():
            if following is None:
                following = asyncio.ensure_future(anext(events))
            await asyncio.wait({following, ending}, timeout=_QUIET_S, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                if not ending.done():
                    yield _NOTHING
                continue
            try:
                event = following.result()
            except StopAsyncIteration:
                return
            following = None
            yield event
    finally:
        ending.cancel()
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        await events.aclose()
