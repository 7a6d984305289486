"""Publishes records with lifetimes, to topics and to entities (L2 to L5, S2, X6)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message

from lapse.protocol.bookmark import Bookmark
from lapse_client.argument import check_timeout, several
from lapse_client.error import InvalidPublication, LapseError, PublishFailed
from lapse_client.kafka.connection import Connection
from lapse_client.payload.serde import SerializerLike, check_serde, write
from lapse_client.publisher.publication import BuiltHeaders, Headers, payload
from lapse_client.publisher.publication import headers as build_headers
from lapse_client.publisher.publication_batch import Outcome, Publication, PublicationBatch, built_headers
from lapse_client.publisher.publish_targets import PublishTargets
from lapse_client.session.client import Client
from lapse_client.session.lifecycle import Phase
from lapse_client.tracing import tracing

log = logging.getLogger("lapse_client")

_IDLE_S: Final = 1.0
"""How long the thread that serves delivery reports waits for further records before it stops, in seconds."""

_POLL_S: Final = 0.1
"""The longest wait for delivery reports at a time, in seconds."""

_PROPAGATION_MS: Final = 10_000
"""How long all brokers may take to learn of a topic, in ms. A topic that is missing after that was deleted.

It is shorter than the usual timeouts, so that the cause is raised, and not that there is no answer.
"""

_ENDED: Final = frozenset({KafkaError._FATAL, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
"""Errors of records that were dropped because the producer has failed. The cause is reported separately."""

_CAUSE_S: Final = 1.0
"""How long to wait for that cause, in seconds. It usually comes within milliseconds."""

Payload = str | bytes | None
_OnOutcome = Callable[[Bookmark | PublishFailed], None]


class RecordPublisher(Client[None]):
    """Publishes records with lifetimes; a context manager that flushes at its end.

    Records are sent in the background, idempotently and with `acks=all`. If Kafka refuses one, the next call of
    `publish`, `flush` or `close` raises the error.

    Args:
        connection: connection to the cluster; from the environment by default.
        timeout_s: how long to wait for room in the local buffer, and for `flush`, in seconds.
        serializer: converts payloads to bytes: a `JsonSerde`, an `AvroSerde`, one of Confluent's serializers, or a
            function.
    """

    def __init__(
        self,
        connection: Connection | None = None,
        *,
        timeout_s: float = 30.0,
        serializer: SerializerLike | None = None,
    ) -> None:
        super().__init__("the publisher", connection, timeout_s)
        check_serde("serializer", serializer)
        self._serializer = serializer
        self._tracing = tracing(self._connection.tracer_provider)
        self._producer = self._connection.producer(
            linger_ms=5, **{"topic.metadata.propagation.max.ms": _PROPAGATION_MS}
        )
        self._fatal: KafkaError | None = None
        """The error after which nothing can be sent any more: brokers refuse it, or have lost the producer's state."""
        self._unexplained: list[tuple[_OnOutcome, Message, KafkaError]] = []
        """Records of `submit` that were dropped before the cause was known."""
        self._failure: tuple[Message, KafkaError] | None = None
        self._failures = 0
        self._targets = PublishTargets(self._connection, timeout_s)
        self._of_thread = threading.local()
        self._lock = threading.Lock()
        self._wanted = threading.Condition(self._lock)
        self._awaited = 0
        self._server: threading.Thread | None = None
        self.start()

    def publish(
        self,
        to: str,
        value: Any,
        key: Payload = None,
        *,
        ttl_ms: int | None = None,
        expires_at_ms: int | None = None,
        enqueue_at_ms: int | None = None,
        message_id: str | None = None,
        headers: Headers | None = None,
        delta: bool = False,
    ) -> None:
        """Publish a record in the background.

        Args:
            to: name of a topic or a queue. A queue's messages go to its `default_publish_target` (Q2).
            value: the payload: bytes, text (sent as UTF-8), or an object that the serializer takes. None deletes the
                key's record from a SOW topic (S3).
            key: the record's key: bytes, or text (sent as UTF-8). It decides the partition.
            ttl_ms: lifetime from arrival, or from `enqueue_at_ms`, in ms; 0 = never expires.
            expires_at_ms: deadline, ms since the epoch; not together with `ttl_ms`.
            enqueue_at_ms: the message is invisible before this instant, ms since the epoch.
            message_id: id of the message. A second message with it within the entity's window is dropped.
            headers: further headers.
            delta: whether to merge into the stored record of a SOW topic, instead of replacing it.

        Raises:
            InvalidPublication: a value is out of range, there are two lifetimes, or only lapse writes to the topic;
                nothing was sent.
            UnknownEntity: no topic or queue has this name.
            PublishFailed: an *earlier* record was not accepted, or there is no room for this one.
        """
        built = build_headers(
            value,
            headers,
            ttl_ms=ttl_ms,
            expires_at_ms=expires_at_ms,
            enqueue_at_ms=enqueue_at_ms,
            message_id=message_id,
            delta=delta,
        )
        self._send(to, value, key, built, self._reported)
        if self._failure is not None:
            self._raise_failure()

    def submit(
        self,
        to: str,
        value: Any,
        key: Payload = None,
        *,
        ttl_ms: int | None = None,
        expires_at_ms: int | None = None,
        enqueue_at_ms: int | None = None,
        message_id: str | None = None,
        headers: Headers | None = None,
        delta: bool = False,
    ) -> Future[Bookmark]:
        """Publish as `publish` does, and return a future of the record's bookmark, or of its `PublishFailed`.

        The future may be waited for at once: no call of `flush` or `poll` is needed.
        """
        built = build_headers(
            value,
            headers,
            ttl_ms=ttl_ms,
            expires_at_ms=expires_at_ms,
            enqueue_at_ms=enqueue_at_ms,
            message_id=message_id,
            delta=delta,
        )
        future: Future[Bookmark] = Future()

        def set_outcome(outcome: Bookmark | PublishFailed) -> None:
            if not future.set_running_or_notify_cancel():
                return
            if isinstance(outcome, PublishFailed):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self._send(to, value, key, built, self._delivery_callback(set_outcome))
        self._await(1)
        return future

    def submit_all(self, to: str, publications: Iterable[Publication]) -> Future[list[Outcome]]:
        """Publish records in their order, each as `submit` does, and return one future of all outcomes.

        Args:
            to: see `publish`.
            publications: value, key, headers and further options of each record.

        Returns:
            A future of the bookmark or the error of each record, in their order.

        Raises:
            InvalidPublication: a record does not consist of these four, or has an unknown option; nothing was sent.
            UnknownEntity: no topic or queue has this name.
            Closed: the publisher is closed.
        """
        publications = list(several("publications", publications))
        built = built_headers(publications)  # of all, before any is sent
        batch = PublicationBatch(len(publications))
        sent = 0
        try:
            for at, (value, key, _, _) in enumerate(publications):
                own = built[at]
                if isinstance(own, LapseError):
                    batch.set_outcome(at, own)
                    continue
                try:
                    self._send(to, value, key, own, self._delivery_callback(partial(batch.set_outcome, at)))
                    sent += 1
                except (InvalidPublication, PublishFailed) as error:
                    batch.set_outcome(at, error)
        finally:
            self._await(sent)
        return batch.future

    def _delivery_callback(self, set_outcome: _OnOutcome) -> Callable[[KafkaError | None, Message], None]:
        """Return a callback for a record's delivery report that passes the outcome to `set_outcome`."""

        def reported(error: KafkaError | None, message: Message) -> None:
            with self._lock:
                self._awaited -= 1
                if error is not None and error.code() in _ENDED and self._fatal is None:
                    self._unexplained.append((set_outcome, message, error))
                    return
            self._of_thread.reports = True
            try:
                if error is None:
                    set_outcome(Bookmark(message.topic() or "", message.partition() or 0, message.offset() or 0))
                else:
                    set_outcome(_failed(message, self._fatal or error))
            finally:
                self._of_thread.reports = False

        return reported

    def _await(self, count: int) -> None:
        """Have a thread serve delivery reports, including those of `count` further records."""
        with self._lock:
            self._awaited += count
            if self._server is None and (self._awaited or self._unexplained):
                self._server = threading.Thread(target=self._serve, name="lapse publisher", daemon=True)
                self._server.start()
            else:
                self._wanted.notify()

    def poll(self, timeout_s: float = 0.0) -> int:
        """Wait up to `timeout_s` seconds for delivery reports, and return their number.

        Raises:
            ValueError: it is no number of seconds from 0 on; Kafka's client would wait without end for a negative one.
            Closed: the publisher is closed.
        """
        check_timeout("timeout_s", timeout_s)
        return self._poll(timeout_s)

    def _poll(self, timeout_s: float = 0.0) -> int:
        try:
            return self._producer.poll(timeout_s)
        except RuntimeError as error:
            raise self._end_error(error) from error
        except KafkaException as error:  # the producer has failed: all waiting records fail
            with self._lock:
                self._fatal = error.args[0]
            self._explain()
            self._producer.purge()
            return self._producer.poll(0)

    def _cause(self, error: object) -> object:
        """Return why a record was not accepted. If it was dropped, wait briefly for the cause."""
        if isinstance(error, KafkaError) and error.code() in _ENDED:
            give_up = time.monotonic() + self._connection.transport.patience(_CAUSE_S)
            while self._fatal is None and time.monotonic() < give_up:
                self._poll(_POLL_S)
        return self._fatal or error

    def _explain(self) -> None:
        """Report the cause for records that were dropped before it was known."""
        with self._lock:
            unexplained, self._unexplained = self._unexplained, []
        for set_outcome, message, error in unexplained:
            set_outcome(_failed(message, self._fatal or error))

    def _serve(self) -> None:
        """Serve delivery reports as long as futures wait for them. This thread runs `_serve` only."""

        def is_needed() -> bool:
            return self._awaited > 0 or bool(self._unexplained) or self._lifecycle.phase is not Phase.RUNNING

        while True:
            with self._lock:
                needed = self._wanted.wait_for(is_needed, _IDLE_S)  # a new thread for each batch would cost more
                if not needed or self._lifecycle.phase is not Phase.RUNNING:
                    self._server = None
                    return
            self._poll(_POLL_S)

    def flush(self) -> None:
        """Wait until Kafka has all records.

        Raises:
            PublishFailed: a record was not accepted, or not within the publisher's timeout.
            OtherProcess: the publisher was opened before a fork.
        """
        if self._lifecycle.error is not None:
            raise self._lifecycle.error
        give_up = time.monotonic() + self._timeout_s
        # Poll instead of calling `flush`, which raises SystemError after a fatal error.
        while (left := len(self._producer)) and time.monotonic() < give_up:
            self._poll(_POLL_S)
        self._raise_failure()
        if left:
            raise PublishFailed("", None, f"{left} records are still unsent after {self._timeout_s:g} s", left)

    def topic_of(self, to: str) -> str:
        """Return the topic that a publish to a topic or queue goes to.

        Raises:
            UnknownEntity: no topic or queue has this name.
            InvalidPublication: the queue has no `default_publish_target`, or only lapse writes to the topic.
        """
        return self._targets.topic_of(to)

    def forget_topics(self) -> None:
        """Drop the cached topics, because topics or queues may have been deleted."""
        self._targets.forget()

    def close(self) -> None:
        """Flush and close. Later calls raise `Closed`.

        If a callback of a future calls this method, the flush goes on in another thread, and its error is logged:
        librdkafka hands out further reports only when the callback has returned.

        Raises:
            PublishFailed: see `flush`.
        """
        if not getattr(self._of_thread, "reports", False):
            super().close()
            return
        self._lifecycle.stop()
        threading.Thread(target=self._close_aside, name="lapse close").start()

    def _close_aside(self) -> None:
        try:
            self.close()
        except LapseError as error:
            log.warning("%s", error)

    def _open(self) -> None:
        """Do nothing: the producer connects by itself."""

    def _leave(self, timeout_s: float) -> None:
        try:
            self.flush()
        finally:
            with self._lock:
                self._wanted.notify()
            if (server := self._server) is not None:
                server.join()
            if len(self._producer):  # `close` would wait for them without end, whatever the publisher's timeout
                self._producer.purge()
            self._producer.close()
            self._explain()

    def _send(
        self,
        to: str,
        value: Any,
        key: Payload,
        built: BuiltHeaders,
        reported: Callable[[KafkaError | None, Message], None],
    ) -> None:
        if self._lifecycle.phase is not Phase.RUNNING:
            raise self._lifecycle.end_error()
        target = self._targets.topic_of(to)
        if self._serializer is not None:
            value = write(self._serializer, value, target)
        if self._tracing is None:
            self._produce(target, value, key, built, reported)
            return
        sending = self._tracing.sending(target, key, built, reported)
        try:
            self._produce(target, value, key, sending.headers, sending.reported)
        except (PublishFailed, InvalidPublication) as error:
            sending.failed(error)
            raise

    def _produce(
        self,
        target: str,
        value: Any,
        key: Payload,
        built: BuiltHeaders,
        reported: Callable[[KafkaError | None, Message], None],
    ) -> None:
        give_up = time.monotonic() + self._timeout_s
        while True:
            try:
                self._producer.produce(target, value, key, headers=built, on_delivery=reported)
            except BufferError as error:
                self._poll(_POLL_S)
                if time.monotonic() >= give_up:
                    raise PublishFailed(target, _bytes(key), error) from error
            except (UnicodeEncodeError, TypeError):
                payload("value", value)
                payload("key", key)
                raise
            except RuntimeError as error:
                raise self._end_error(error) from error
            except KafkaException as error:
                raise PublishFailed(target, _bytes(key), self._cause(error.args[0])) from error
            else:
                if self._server is None:  # else that thread serves the reports: a call here costs more than the record
                    self._poll()
                return

    def _end_error(self, error: RuntimeError) -> BaseException:
        """Return the error for a call while another thread closes the publisher, whose producer takes nothing then."""
        return error if self._lifecycle.phase is Phase.RUNNING else self._lifecycle.end_error()

    def _reported(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failures += 1
            self._failure = self._failure or (message, error)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            (message, error), failures = self._failure, self._failures
            self._failure, self._failures = None, 0
            raise PublishFailed(message.topic() or "", message.key(), self._cause(error), failures)


def _failed(message: Message, cause: object) -> PublishFailed:
    return PublishFailed(message.topic() or "", message.key(), cause)


def _bytes(key: Payload) -> bytes | None:
    return key.encode() if isinstance(key, str) else key
