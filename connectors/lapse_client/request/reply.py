"""Replies to requests, received and awaited ones (Q27, C75)."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from lapse.protocol.bookmark import Bookmark
from lapse_client.error import NoReply
from lapse_client.kafka.headers import Headers
from lapse_client.kafka.transport import Transport
from lapse_client.payload.serde import DeserializerLike, payload_of

_LOOK_S: Final = 0.001
"""How often threads of a test are looked for, s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back to a request.

    Attributes:
        value: the payload.
        key: the key.
        headers: the reply's own headers in order, `correlation_id` included.
        bookmark: where it stands in the topic of replies.
        expires_at_ms: its deadline, which is the request's, ms since the epoch; None without one.
        deserializer: reads the value for `payload`; None = nothing does.
    """

    value: bytes | None
    key: bytes | None
    headers: Headers
    bookmark: Bookmark
    expires_at_ms: int | None
    deserializer: DeserializerLike | None = field(default=None, repr=False, compare=False)

    @property
    def payload(self) -> Any:
        """What the publisher's deserializer makes of the value, anew each time; the value where there is none.

        Raises:
            InvalidPayload: it does not fit.
        """
        return payload_of(self.deserializer, self.value, self.bookmark.topic, f"the reply {self.bookmark}")


class PendingReply:
    """A reply to come; a context manager that ends the wait for it.

    Args:
        to: whom the request went to.
        timeout_s: how long it is waited for from now on, in seconds.
        transport: of the connection.
        now_ms: the broker's clock, ms since the epoch.
        forget: called once nobody waits any more.

    Attributes:
        future: ends with the reply, or with what went wrong; not with the timeout.
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
        """How long it is still waited for, in seconds."""
        return max(0.0, self._give_up - time.monotonic())

    def result(self) -> Reply:
        """Wait for the reply.

        Raises:
            NoReply: none came in time.
            PublishFailed: Kafka did not take the request.
            Closed: the publisher was closed meanwhile.
        """
        while self.waits_for_a_test():
            pass
        try:
            return self.future.result(self.left_s)
        except TimeoutError:
            raise self.nothing() from None
        finally:
            self._forget()

    def nothing(self) -> NoReply:
        """What says that none came in time."""
        return NoReply(self._to, self._timeout_s)

    def cancel(self) -> None:
        """Wait no longer; a reply that comes all the same is dropped."""
        self._forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()

    def waits_for_a_test(self) -> bool:
        """Wait a moment for threads of a test; returns whether to go on, which the test's clock may end."""
        if not self._transport.settles or self.future.done():
            return False
        self._transport.settle()
        if self._now_ms() - self._began_ms >= self._timeout_s * 1000:
            self._give_up = time.monotonic()
        time.sleep(_LOOK_S)
        return bool(self.left_s)
