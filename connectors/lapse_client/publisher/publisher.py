"""The publisher: it publishes records with lifetimes, and requests that get replies (L2 to L5, S2, X6, Q27)."""

from __future__ import annotations

from typing import Any

from lapse_client.admin import DEFAULT_DEPLOYMENT
from lapse_client.kafka.connection import Connection
from lapse_client.payload.serde import DeserializerLike, SerializerLike, check_serde
from lapse_client.publisher.publication import Headers
from lapse_client.publisher.record_publisher import Payload, RecordPublisher
from lapse_client.request.reply import PendingReply, Reply
from lapse_client.request.reply_queue import ReplyQueue


class Publisher(RecordPublisher):
    """Publishes records with lifetimes, and requests; a context manager that flushes at its end.

    ::

        with Publisher() as publisher:
            publisher.publish("orders", b'{"id": 1}', key=b"1", ttl_ms=60_000)
            reply = publisher.request("quotes", b'{"symbol": "A"}', timeout=5)

    Records are sent in the background, idempotently and with `acks=all`. If Kafka refuses one, the next call of
    `publish`, `flush` or `close` raises the error.

    Args:
        connection: connection to the cluster; from the environment by default.
        timeout_s: how long to wait for room in the local buffer, for `flush`, and for the creation of the reply
            queue, in seconds.
        serializer: converts payloads to bytes: a `JsonSerde`, an `AvroSerde`, one of Confluent's serializers, or a
            function.
        deserializer: for requests: converts the values of replies for `reply.payload`.
        deployment: for requests: `app_id` of the workers that create the reply queue.
        reply_queue: for requests: name of the reply queue, unique by default. No other publisher may use it at the
            same time.
    """

    def __init__(
        self,
        connection: Connection | None = None,
        *,
        timeout_s: float = 30.0,
        serializer: SerializerLike | None = None,
        deserializer: DeserializerLike | None = None,
        deployment: str = DEFAULT_DEPLOYMENT,
        reply_queue: str | None = None,
    ) -> None:
        check_serde("deserializer", deserializer)
        super().__init__(connection, timeout_s=timeout_s, serializer=serializer)
        self._replies = ReplyQueue(self._connection, deployment, reply_queue, timeout_s, deserializer)

    def request(
        self,
        to: str,
        value: Any,
        key: Payload = None,
        *,
        timeout: float,
        message_id: str | None = None,
        headers: Headers | None = None,
    ) -> Reply:
        """Publish a request, and wait for its reply.

        The first request creates a temporary queue for the replies, which takes a second or more.

        Args:
            to: name of a queue that enforces lifetimes, or of a topic of such a queue.
            value: the payload: bytes, text (sent as UTF-8), or an object that the serializer takes.
            key: the record's key: bytes, or text (sent as UTF-8). It decides the partition.
            timeout: lifetime of the request and of its reply, and how long to wait for the reply, in seconds.
            message_id: id of the request. A second request with it within the queue's window is dropped, and never
                answered.
            headers: further headers.

        Raises:
            NoReply: no reply came in time.
            InvalidPublication: a value is out of range, or the queue ignores lifetimes; nothing was sent.
            UnknownEntity: no topic or queue has this name.
            PublishFailed: Kafka did not accept the request.
            CommandFailed: the reply queue was refused; `code` and the text say why.
            LapseError: the deployment creates no queues at run time.
        """
        with self.submit_request(to, value, key, timeout=timeout, message_id=message_id, headers=headers) as pending:
            return pending.result()

    def submit_request(
        self,
        to: str,
        value: Any,
        key: Payload = None,
        *,
        timeout: float,
        message_id: str | None = None,
        headers: Headers | None = None,
    ) -> PendingReply:
        """Publish a request as `request` does, and return at once, so that many requests can be under way."""
        self._lifecycle.check()
        return self._replies.request(self, to, value, key, timeout, message_id, headers)

    def _leave(self, timeout_s: float) -> None:
        self._replies.close()
        super()._leave(timeout_s)
