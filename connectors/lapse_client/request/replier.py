"""The replier: it sends replies to a request's address, with its correlation id and deadline (Q27, C75)."""

from __future__ import annotations

import threading
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Any, Final

from lapse.core.lifetime import NAMES
from lapse.protocol import header, topic
from lapse.protocol.bookmark import Bookmark
from lapse_client.error import InvalidPublication, PublishFailed
from lapse_client.kafka.connection import Connection
from lapse_client.payload.serde import SerializerLike
from lapse_client.publisher.publication import Headers, items
from lapse_client.publisher.record_publisher import Payload, RecordPublisher

if TYPE_CHECKING:
    from lapse_client.delivery.delivery import Delivery

_TIMEOUT_S: Final = 30.0
_OWN: Final = NAMES | {header.CORRELATION_ID}


class Replier:
    """Sends the replies of a subscription. It connects at the first one. Every method may be called from any thread.

    Args:
        connection: connection to the cluster.
        serializer: converts payloads to bytes; None = payloads are bytes or text.
    """

    def __init__(self, connection: Connection, serializer: SerializerLike | None = None) -> None:
        self._connection = connection
        self._serializer = serializer
        self._lock = threading.Lock()
        self._publisher: RecordPublisher | None = None

    def reply(self, request: Delivery, value: Any, key: Payload, headers: Headers | None) -> Bookmark:
        """Send a reply, and wait until Kafka has it; the arguments are those of `Delivery.reply`."""
        to, ident = _address(request)
        own = [*items(headers)]
        if taken := sorted(_OWN.intersection(name for name, _ in own)):
            raise InvalidPublication(f"header {taken[0]}: the reply has the request's; leave it out")
        if ident is not None:
            own.append((header.CORRELATION_ID, ident))
        publisher = self._opened()
        future = publisher.submit(to, value, key, expires_at_ms=request.expires_at_ms, headers=own)
        try:
            return future.result(_TIMEOUT_S)
        except (PublishFailed, FutureTimeout) as error:
            publisher.forget_topics()  # the target may be gone; the next reply finds that out at once
            if isinstance(error, PublishFailed):
                raise
            raise PublishFailed(to, None, f"no report from Kafka within {_TIMEOUT_S:g} s") from error

    def close(self) -> None:
        """Disconnect."""
        with self._lock:
            publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()

    def _opened(self) -> RecordPublisher:
        with self._lock:
            if self._publisher is None:
                self._publisher = RecordPublisher(self._connection, timeout_s=_TIMEOUT_S, serializer=self._serializer)
            return self._publisher


def _address(request: Delivery) -> tuple[str, bytes | None]:
    """Return the target of a reply, and its correlation id.

    Raises:
        InvalidPublication: the request names no target, or a topic that replies must not go to.
    """
    named: dict[str, bytes | None] = {}
    for name, value in request.headers:
        named.setdefault(name, value)
    if (address := named.get(header.REPLY_TO)) is None:
        raise InvalidPublication(f"{request.bookmark} has no header {header.REPLY_TO}: nobody waits for a reply to it")
    to = address.decode("utf-8", "replace")
    if not topic.NAME.match(to) or to.startswith((topic.PREFIX, "__")) or to.endswith("-changelog"):
        raise InvalidPublication(
            f"{request.bookmark}: {header.REPLY_TO} = {to[:200]!r}: no queue or topic that replies may go to"
        )
    return to, named.get(header.CORRELATION_ID)
