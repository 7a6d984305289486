"""The reply queue of a publisher: temporary, without dead letters, and created again if it was deleted (Q27, C75)."""

from __future__ import annotations

import functools
import logging
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from confluent_kafka import KafkaException

from lapse.core.error_code import ErrorCode
from lapse.core.lifetime import NEVER
from lapse.protocol import header, topic
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.command import Command
from lapse_client.admin import Admin
from lapse_client.delivery.delivery import Delivery
from lapse_client.error import (
    AnswerTimeout,
    Closed,
    CommandFailed,
    EntityDeleted,
    InvalidPublication,
    LapseError,
    UnknownEntity,
)
from lapse_client.kafka.connection import Connection
from lapse_client.payload.serde import DeserializerLike
from lapse_client.publisher.publication import Headers, items
from lapse_client.request.reply import PendingReply, Reply
from lapse_client.session.conversation import Conversation
from lapse_client.subscriber.subscriber import QueueSubscriber

if TYPE_CHECKING:
    from lapse_client.publisher.record_publisher import Payload, RecordPublisher

log = logging.getLogger("lapse_client")

PREFIX: Final = "replies."
"""The prefix of reply queues' names, unless a program names its own."""

_SETTINGS: Final = {"expiration": "enabled", "dead_letter": False, "auto_delete_on_idle": "5m"}
_BACKLOG: Final = 1_000
_AGAIN_S: Final = 0.2
_SUBSCRIBE_S: Final = 5.0
_BELIEVED_S: Final = 60.0
"""How long the check that a queue enforces lifetimes is cached, in seconds."""

_OWN: Final = frozenset({header.REPLY_TO, header.CORRELATION_ID})
_GOING: Final = frozenset({ErrorCode.DELETE_IN_PROGRESS, ErrorCode.SHARD_UNAVAILABLE})
"""Codes of answers about a queue that is just being deleted."""


class ReplyQueue:
    """Receives a publisher's replies, and hands them to waiting requests. Every method may be called from any thread.

    Args:
        connection: connection to the cluster.
        deployment: `app_id` of its workers.
        name: name of the queue; None = a unique one.
        timeout_s: how long to wait for workers, in seconds.
        deserializer: converts the values of replies; None = the payload is the value.
    """

    def __init__(
        self,
        connection: Connection,
        deployment: str,
        name: str | None,
        timeout_s: float,
        deserializer: DeserializerLike | None = None,
    ) -> None:
        user = f"{connection.user}." if connection.user else ""
        self.name = name or f"{PREFIX}{user}{uuid4().hex}"
        self._connection = connection
        self._deployment = deployment
        self._timeout_s = timeout_s
        self._deserializer = deserializer
        self._opening = threading.Lock()
        self._lock = threading.Lock()
        self._pending: dict[str, Future[Reply]] = {}
        self._subscriber: QueueSubscriber | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._gone = False
        self._believed_until: dict[str, float] = {}

    def request(
        self,
        publisher: RecordPublisher,
        to: str,
        value: Any,
        key: Payload,
        timeout_s: float,
        message_id: str | None,
        headers: Headers | None,
    ) -> PendingReply:
        """Publish a request, and return its pending reply; the arguments are those of `Publisher.request`."""
        ttl_ms = _ttl_ms(timeout_s)
        own = [*items(headers)]
        if taken := sorted(_OWN.intersection(name for name, _ in own)):
            raise InvalidPublication(f"header {taken[0]}: a request sets it by itself; leave it out")
        self._check_lifetimes(to)
        publisher.topic_of(to)  # no reply queue is made if the target does not exist
        self._open()
        ident = uuid4().hex
        pending = PendingReply(
            to,
            timeout_s,
            self._connection.transport,
            self._connection.clock.now_ms,
            functools.partial(self._pending.pop, ident, None),
        )
        with self._lock:
            if self._closed:
                raise Closed("the publisher")
            self._pending[ident] = pending.future
        own += [(header.REPLY_TO, self.name), (header.CORRELATION_ID, ident)]
        try:
            sent = publisher.submit(to, value, key, ttl_ms=ttl_ms, message_id=message_id, headers=own)
        except BaseException:
            pending.cancel()
            raise
        sent.add_done_callback(functools.partial(_sent, pending.future))
        return pending

    def close(self) -> None:
        """Stop waiting for replies. The queue deletes itself when it has been idle for long enough."""
        with self._lock:
            self._closed = True
            waiting = list(self._pending.values())
            self._pending.clear()
        for future in waiting:
            _fail(future, Closed("the publisher"))
        with self._opening:
            subscriber, thread = self._subscriber, self._thread
        if subscriber is not None:
            subscriber.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _check_lifetimes(self, to: str) -> None:
        """Check that requests expire in a queue. A plain topic is not checked.

        Raises:
            InvalidPublication: the queue ignores lifetimes, or the entity is a SOW topic.
        """
        if time.monotonic() < self._believed_until.get(to, 0.0):
            return
        existing = self._connection.partitions(to, topic.commands(to))
        if topic.sow(to) in existing:
            raise InvalidPublication(f"{to} is a SOW topic, where nobody answers: send requests to a queue")
        if topic.commands(to) in existing:
            with Conversation(self._connection, to, self._connection.shards("queue", to)) as conversation:
                (answer,) = conversation.ask([0], Command(command="depth", top_n=0), self._timeout_s)
            if answer.counts.get("lifetimes") == 0:
                raise InvalidPublication(
                    f"{to} ignores lifetimes, so a request would be worked on when nobody waits any more: set "
                    'expiration = "enabled" for it. Nothing was sent'
                )
        self._believed_until[to] = time.monotonic() + _BELIEVED_S

    # The queue

    def _open(self) -> None:
        """Create the queue if it is missing, and start to read it.

        Raises:
            CommandFailed: the queue was refused.
            AnswerTimeout: no worker answered, in spite of retries.
            LapseError: the deployment creates no queues at run time.
        """
        with self._opening:
            if self._closed:
                raise Closed("the publisher")
            if self._subscriber is not None:
                return
            self._subscriber = subscriber = self._subscribed()
            self._thread = threading.Thread(
                target=self._read, args=(subscriber,), name=f"lapse {self.name}", daemon=True
            )
            self._thread.start()

    def _subscribed(self) -> QueueSubscriber:
        give_up = time.monotonic() + self._timeout_s
        if self._gone:
            self._await_end()
        while True:
            try:
                with Admin(self._deployment, connection=self._connection, timeout_s=self._timeout_s) as admin:
                    admin.create_queue(self.name, **_SETTINGS)
                return self._started()
            except (EntityDeleted, UnknownEntity, AnswerTimeout, CommandFailed) as error:
                going = not isinstance(error, CommandFailed) or error.code in _GOING
                if not going or self._closed or time.monotonic() >= give_up:
                    raise
                time.sleep(_AGAIN_S)

    def _started(self) -> QueueSubscriber:
        # If its topics are just being deleted, no answer comes: a shorter timeout leaves time to create it again.
        patience_s = min(self._timeout_s, _SUBSCRIBE_S)
        return QueueSubscriber(self.name, _BACKLOG, connection=self._connection, timeout_s=patience_s).start()

    def _await_end(self) -> None:
        """Wait until the topics of the former queue are gone, because it cannot be created again before."""
        give_up = time.monotonic() + _SUBSCRIBE_S
        while self._connection.existing([topic.commands(self.name)]) and time.monotonic() < give_up:
            time.sleep(_AGAIN_S)

    def _read(self, subscriber: QueueSubscriber) -> None:
        """Hand out replies until the close. Create the queue again if it was deleted and a request waits."""
        while True:
            try:
                subscriber.run(self._take)
            except (LapseError, KafkaException) as error:
                log.info("%s, the queue of replies, is gone: %s", self.name, error)
            with self._opening:
                self._subscriber, self._gone = None, True
                if self._closed or not self._pending:
                    return
                try:
                    self._subscriber = subscriber = self._subscribed()
                except (LapseError, KafkaException) as error:
                    log.warning("%s, the queue of replies, could not be created again: %s", self.name, error)
                    self._give_up(error)
                    return

    def _give_up(self, error: BaseException) -> None:
        with self._lock:
            waiting = list(self._pending.values())
            self._pending.clear()
        for future in waiting:
            _fail(future, error)

    def _take(self, delivery: Delivery) -> None:
        """Hand the first reply of a request to its future. Drop later ones."""
        ident = next((value for name, value in delivery.headers if name == header.CORRELATION_ID), None)
        future = self._pending.pop((ident or b"").decode("utf-8", "replace"), None)
        if future is None:
            log.debug("%s: no request waits for it any more", delivery)
        elif future.set_running_or_notify_cancel():
            future.set_result(
                Reply(
                    value=delivery.value,
                    key=delivery.key,
                    headers=delivery.headers,
                    bookmark=delivery.bookmark,
                    expires_at_ms=delivery.expires_at_ms,
                    deserializer=self._deserializer,
                )
            )


def _ttl_ms(timeout_s: Any) -> int:
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s * 1000 < NEVER:
        raise InvalidPublication(f"timeout = {timeout_s!r}: expected seconds, more than 0")
    return max(1, int(timeout_s * 1000))


def _sent(waiting: Future[Reply], sent: Future[Bookmark]) -> None:
    if not sent.cancelled() and (error := sent.exception()) is not None:
        _fail(waiting, error)


def _fail(future: Future[Reply], error: BaseException) -> None:
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_exception(error)
