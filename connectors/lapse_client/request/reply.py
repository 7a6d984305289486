"""Replies to requests, received and pending ones (Q27, C75)."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import TIMEOUT_MAX
from types import TracebackType
from typing import Any, Final, Self

from lapse.protocol.bookmark import Bookmark
from lapse_client.error import NoReply
from lapse_client.kafka.headers import Headers
from lapse_client.kafka.transport import Transport
from lapse_client.payload.serde import DeserializerLike, payload_of

_LOOK_S: Final = 0.001
"""How often to read the clock of `lapse.testing`, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply to a request.

    Attributes:
        value: value of the reply.
        key: key of the reply.
        headers: the reply's own headers in order, `correlation_id` included.
        bookmark: bookmark of the reply in the reply queue's topic.
        expires_at_ms: its deadline, which is the request's, ms since the epoch; None without one.
        deserializer: converts the value for `payload`; None = the payload is the value.
    """

    value: bytes | None
    key: bytes | None
    headers: Headers
    bookmark: Bookmark
    expires_at_ms: int | None
    deserializer: DeserializerLike | None = field(default=None, repr=False, compare=False)

    @property
    def payload(self) -> Any:
        """The value, deserialized at each access; the value itself if the publisher has no deserializer.

        Raises:
            InvalidPayload: the value does not fit.
        """
        return payload_of(self.deserializer, self.value, self.bookmark.topic, f"the reply {self.bookmark}")


class PendingReply:
    """A reply that has not come yet; a context manager that stops waiting at its end.

    Args:
        to: target of the request.
        timeout_s: how long to wait from now on, in seconds.
        transport: transport of the connection.
        now_ms: returns the broker's time, ms since the epoch.
        forget: called when the request no longer waits for a reply.

    Attributes:
        future: gets the reply or an error. The timeout does not end it.
    """

    def __init__(
        self, to: str, timeout_s: float, transport: Transport, now_ms: Callable[[], float], forget: Callable[[], object]
    ) -> None:
        self.future: Future[Reply] = Future()
        self._to = to
        self._timeout_s = timeout_s
        self._give_up = time.monotonic() + timeout_s
        self._transport = transport
        self._now_ms = now_ms
        self._began_ms = now_ms()
        self._forget = forget

    @property
    def left_s(self) -> float:
        """The rest of the timeout, in seconds, as far as a lock can wait."""
        return min(max(0.0, self._give_up - time.monotonic()), TIMEOUT_MAX)

    def result(self) -> Reply:
        """Wait for the reply.

        Raises:
            NoReply: no reply came in time.
            PublishFailed: Kafka did not accept the request.
            Closed: the publisher was closed meanwhile.
        """
        while self.wait_for_test_threads():
            pass
        try:
            return self.future.result(self.left_s)
        except TimeoutError:
            raise self.timeout_error() from None
        finally:
            self._forget()

    def timeout_error(self) -> NoReply:
        """Return the error for a reply that did not come in time."""
        return NoReply(self._to, self._timeout_s)

    def cancel(self) -> None:
        """Stop waiting. A reply that comes later is dropped."""
        self._forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()

    def wait_for_test_threads(self) -> bool:
        """Wait a moment for a test's threads; return whether to call again. Outside of tests, return False at once."""
        if not self._transport.settles or self.future.done():
            return False
        self._transport.settle()
        if self._now_ms() - self._began_ms >= self._timeout_s * 1000:
            self._give_up = time.monotonic()
        time.sleep(_LOOK_S)
        return bool(self.left_s)
