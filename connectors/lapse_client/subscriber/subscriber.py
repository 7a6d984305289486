"""The queue subscriber: it hands out deliveries by iterator, in batches, or to a callback (X3)."""

from __future__ import annotations

import inspect
import logging
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CoroutineType
from typing import ClassVar, Final

from confluent_kafka import KafkaException, TopicPartition

from lapse.protocol import topic
from lapse_client.argument import check_count, check_handler, check_wait
from lapse_client.delivery.arrivals import LONGEST_WAIT_S
from lapse_client.delivery.delivery import Delivery
from lapse_client.delivery.lot import Lot
from lapse_client.delivery.referenced import Referenced
from lapse_client.delivery.typed_delivery import TypedDelivery
from lapse_client.error import LapseError, UnknownEntity
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.log_offsets import log_end
from lapse_client.payload.serde import DeserializerLike, SerializerLike, check_serde
from lapse_client.session.client import Client
from lapse_client.subscriber.settlement import SettlementResult
from lapse_client.subscriber.settler import Settling
from lapse_client.subscriber.subscription import Subscription
from lapse_client.subscriber.terms import Payload, Terms
from lapse_client.transaction.transaction import Transaction

log = logging.getLogger("lapse_client")

LOOK_EVERY_S: Final = 5.0
"""How often a subscriber with a regular expression looks for new queues, in seconds."""

_COROUTINE: Final = (
    "run: the handler is a coroutine function, which nobody would await. Use lapse_client.aio, or a plain function"
)

Handler = Callable[[Delivery], object]


class QueueSubscriber(Client[Lot | Referenced | None]):
    """Receives a queue's messages under leases; a context manager and an iterator.

    ::

        with QueueSubscriber("orders", max_backlog=100) as subscriber:
            for delivery in subscriber:
                with delivery:          # acknowledges, or cancels on an exception
                    handle(delivery.value)

    It sends heartbeats by itself, subscribes again if a worker has forgotten it, and drops prefetched messages whose
    lease is over. `close` returns unsettled messages at once. If `max_backlog` is less than the queue's number of
    partitions, the partitions take turns in delivering, which costs latency.

    Args:
        queue: name of the queue, or a compiled regular expression for all queues whose whole names match. At least
            one must exist at the start. New ones are joined within seconds. When one is deleted, the subscriber goes
            on with the others, or waits for new ones.
        max_backlog: most unsettled deliveries at once, over all partitions; 0 = barriers only.
        connection: connection to the cluster; from the environment by default.
        name: name of the subscription, as shown by peeks; unique by default. Two open subscribers must not have the
            same name: they would be one subscription, and each would get all of its messages.
        filter: an expression. Only messages that match are delivered.
        payload: `packed`: many messages come in one record. `inline`: each comes in a record of its own, as for
            clients in other languages. `reference`: the queue sends bookmarks only, and the client reads the records
            from the underlying topics, which requires the right to do so.
        heartbeat_timeout_ms: time without heartbeats after which the messages return, in ms; None = the queue's
            `heartbeat_timeout`.
        ack_batch_size: the greatest number of acknowledgments in one command.
        ack_interval_ms: how long an acknowledgment may wait for others, in ms.
        deserializer: converts values for `delivery.payload`: a `JsonSerde`, an `AvroSerde`, one of Confluent's
            deserializers, or a function of bytes. A message whose value does not fit is not handed out, and becomes
            a dead letter.
        serializer: converts the payloads of replies to bytes: a serde, one of Confluent's serializers, or a function.
        transactional_id: Kafka's `transactional.id` for `delivery.transaction()`. A later subscriber with the same id
            aborts the open transaction of an earlier one. Unique by default.
        timeout_s: how long to wait for answers to subscribe, to unsubscribe and to `settle`, in seconds.
        on_refused: called with each refused settlement that no call waits for, by a background thread.

    Attributes:
        delivery_types: the classes of the application's deliveries, without a deserializer and with one.

    Raises:
        ValueError: a number is out of range, or a serde cannot be one; the text names it.
    """

    _warns: ClassVar[bool] = True

    def __init__(
        self,
        queue: str | re.Pattern[str],
        max_backlog: int = 1,
        *,
        connection: Connection | None = None,
        name: str | None = None,
        filter: str | None = None,  # noqa: A002  # the command's word
        payload: Payload = "packed",
        heartbeat_timeout_ms: int | None = None,
        ack_batch_size: int = 1_000,
        ack_interval_ms: int = 50,
        deserializer: DeserializerLike | None = None,
        serializer: SerializerLike | None = None,
        transactional_id: str | None = None,
        timeout_s: float = 30.0,
        on_refused: Callable[[SettlementResult], None] | None = None,
    ) -> None:
        given: object = queue
        if not isinstance(given.pattern if isinstance(given, re.Pattern) else given, str):
            raise TypeError(f"queue = {given!r}: expected a name, or a compiled regular expression for names")
        check_serde("deserializer", deserializer)
        check_serde("serializer", serializer)
        self.queue = queue
        self.terms = Terms(
            max_backlog=max_backlog,
            name=name or Terms.unique_name(),
            filter=filter,
            payload=payload,
            heartbeat_timeout_ms=heartbeat_timeout_ms,
            ack_batch_size=ack_batch_size,
            ack_interval_ms=ack_interval_ms,
        )
        super().__init__(
            f"the subscriber of {queue if isinstance(queue, str) else queue.pattern}", connection, timeout_s
        )
        self.delivery_types: tuple[type[Delivery], type[TypedDelivery]] = (Delivery, TypedDelivery)
        self._on_refused = on_refused
        self._deserializer = deserializer
        self._serializer = serializer
        self._transactional_id = transactional_id
        self._subscription: Subscription | None = None
        self._inherited: Subscription | None = None
        """The subscription of the parent process, which is kept, because it holds clients of Kafka."""
        self._handlers: set[int] = set()
        self._runs = 0
        """How many calls of `run` are under way. The lock of `_idle` guards it."""
        self._idle = threading.Condition()
        self._stopping = threading.Event()

    @property
    def name(self) -> str:
        """The subscription's name."""
        return self.terms.name

    def stop(self) -> None:
        """Stop receiving and handing out messages. `close` is still needed.

        Messages handed out before can be settled until then. The others that were sent return to the queue as soon as
        its shards have confirmed that they send no more; in a queue with `max_cancels` with `close`.
        """
        self._stopping.set()
        self._lifecycle.stop()
        if (subscription := self._subscription) is not None:
            subscription.stop()

    def close(self) -> None:
        """Send acknowledgments, return all other messages, and wait for answers. Callable twice, from any thread.

        Running handlers of `run` finish first. If a handler calls this method, `run` stops, and then closes.
        A `start` under way in another thread raises `Closed`, and leaves no subscription behind. Later settlements
        are not sent: they are logged and go to `on_refused`, and `settle(wait=True)` raises `Closed`.
        """
        self.stop()
        if threading.get_ident() not in self._handlers:
            with self._idle:
                while self._runs:
                    self._idle.wait(LONGEST_WAIT_S)
            super().close()

    def __iter__(self) -> Iterator[Delivery]:
        return self.messages()

    def messages(self, timeout: float | None = None) -> Iterator[Delivery]:
        """Iterate over deliveries.

        Args:
            timeout: time without a delivery after which the iteration stops, in seconds; None = only `stop` or
                `close` stops it.

        Raises:
            EntityDeleted: the queue was deleted.
            LapseError: another error ended the subscription, such as `CommandFailed` or `ConnectionFailed`.
            Closed: the subscriber was never started.
        """
        check_wait(timeout)
        while (delivery := self.receive(timeout)) is not None:
            yield delivery

    def batches(self, max_size: int = 1_000, timeout: float | None = None) -> Iterator[list[Delivery]]:
        """Iterate over lists of the deliveries that have arrived. This is the fast way, together with `acknowledge`.

        Raises the errors of `messages`.

        Args:
            max_size: most deliveries in one list.
            timeout: time without a delivery after which the iteration stops, in seconds; None = only `stop` or
                `close` stops it.
        """
        check_count("max_size", max_size)
        while batch := self.subscription.take(max_size, timeout):
            yield batch

    def receive(self, timeout: float | None = None) -> Delivery | None:
        """Wait for one delivery. Raises the errors of `messages`.

        Args:
            timeout: how long to wait, in seconds; None = until a delivery comes, or `stop` or `close` is called.

        Returns:
            The delivery; None after the timeout, `stop` or `close`.
        """
        check_wait(timeout)  # before a message that is there is taken: a wrong argument is always refused
        return self.subscription.receive(timeout)

    def run(self, handler: Handler, threads: int = 1) -> None:
        """Call a handler with every delivery until `stop` or `close` is called, and then close the subscriber.

        A delivery that the handler leaves unsettled is acknowledged when the handler returns, and cancelled when it
        raises. The exception is logged, unless it is `Retry`, and the next delivery follows. Errors that end the
        subscription are raised here, as in `messages`.

        Args:
            handler: called with each delivery, by any of the threads; its result is ignored.
            threads: number of threads. At most `max_backlog` of them have work at the same time.

        Raises:
            TypeError: the handler is no function, or a coroutine function, which `lapse_client.aio` runs.
        """
        check_count("threads", threads)
        check_handler(handler)
        if inspect.iscoroutinefunction(handler):
            raise TypeError(_COROUTINE)
        subscription = self.subscription
        failures: list[BaseException] = []

        def work() -> None:
            self._handlers.add(threading.get_ident())
            try:
                while (delivery := subscription.receive(None)) is not None:
                    _handle(handler, delivery)
            except BaseException as error:  # noqa: BLE001  # raised again by the caller's thread
                failures.append(error)
                subscription.arrivals.end(error)
            finally:
                self._handlers.discard(threading.get_ident())

        others = [threading.Thread(target=work, name=f"lapse handler {number}") for number in range(1, threads)]
        with self._idle:
            self._runs += 1
        try:
            for thread in others:
                thread.start()
            work()
            for thread in others:
                while thread.is_alive():
                    thread.join(LONGEST_WAIT_S)
        except BaseException as error:  # a second Ctrl-C, or too many threads: `close` then waits for no handler
            subscription.arrivals.end(error)
            raise
        finally:
            self._handlers.discard(threading.get_ident())
            with self._idle:
                self._runs -= 1
                self._idle.notify_all()
        self.close()
        if failures:
            raise failures[0]

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge many deliveries, which is cheaper than one by one.

        Raises:
            ValueError: a delivery is another subscriber's. Nothing is acknowledged.
            AlreadySettled: a delivery was settled before. The deliveries in front of it are acknowledged.
        """
        settler = self.subscription.settler
        settler.acknowledge(settler.own(deliveries))

    def settle(
        self,
        how: Settling,
        deliveries: Sequence[Delivery],
        *,
        wait: bool = False,
        delay_ms: int | None = None,
        lease_ms: int | None = None,
        fault: str = "",
    ) -> list[SettlementResult]:
        """Settle many deliveries at once, and return the results if `wait` is set.

        Args:
            how: `acknowledge`, `cancel`, `expire` or `renew`.
            deliveries: the deliveries to settle.
            wait: whether to wait for the answers. Otherwise the list is empty, and refusals go to `on_refused`.
            delay_ms: for cancel: delay before the next delivery, in ms; None = the message's or the queue's delay.
            lease_ms: for renew: length of the lease from now, in ms; None = the queue's lease period.
            fault: for expire: what is wrong with the messages, for their dead letters.

        Returns:
            One result for each range of messages; empty without `wait`.

        Raises:
            ValueError: there is no such way to settle, an option is out of range, or a delivery is another
                subscriber's. Nothing is settled.
            AlreadySettled: a delivery was settled before.
            AnswerTimeout: a shard did not answer. It is unknown whether it has settled the messages.
            CommandFailed: a shard refused the whole command.
            EntityDeleted: the queue was deleted.
            Closed: with `wait`, after `close`. The deliveries are not settled then. If another thread closes before
                the answers come, it is unknown whether they are.
        """
        settler = self.subscription.settler
        deliveries = settler.own(deliveries)
        if wait:
            return settler.settled(how, deliveries, self._timeout_s, delay_ms=delay_ms, lease_ms=lease_ms, fault=fault)
        settler.command(how, deliveries, delay_ms=delay_ms, lease_ms=lease_ms, fault=fault)
        return []

    def transaction(self, deliveries: Sequence[Delivery]) -> Transaction:
        """Return a transaction that commits outputs and the acknowledgments of many deliveries together (X9).

        Raises:
            ValueError: a delivery is another subscriber's.
            InvalidPublication: a delivery has no lease, because it is at most once, or a barrier.
        """
        settler = self.subscription.settler
        return settler.transaction(settler.own(deliveries))

    def flush(self) -> None:
        """Send all waiting acknowledgments now."""
        self.subscription.settler.flush()

    @property
    def subscription(self) -> Subscription:
        """The subscription of the started subscriber.

        Raises:
            Closed: the subscriber was never started.
            OtherProcess: it was started before a fork.
        """
        if (subscription := self._subscription) is None:
            raise self._lifecycle.end_error()
        return subscription

    def forked(self) -> None:
        """Close the object in a child process, where no handlers run. No check of each `receive` is needed for this."""
        super().forked()
        self._idle, self._runs, self._stopping = threading.Condition(), 0, threading.Event()
        self._inherited, self._subscription = self._subscription, None

    def _open(self) -> None:
        by_pattern = isinstance(self.queue, re.Pattern)
        queues = self._queues()
        subscription = Subscription(
            self._connection,
            queues,
            self.terms,
            self._lifecycle,
            self._on_refused,
            by_pattern,
            self._deserializer,
            self.delivery_types,
            self._transactional_id,
            self._serializer,
        )
        self._subscription, self._session = subscription, subscription.session
        subscription.open(self._timeout_s)
        if isinstance(self.queue, re.Pattern):
            looking = (weakref.ref(self), self.queue, self._stopping)
            threading.Thread(target=_watch_for_queues, args=looking, name="lapse look-out", daemon=True).start()

    def _undo(self) -> None:
        if (subscription := self._subscription) is not None:
            self._subscription = self._session = None
            subscription.undo()

    def _leave(self, timeout_s: float) -> None:
        self.subscription.leave(timeout_s)

    def _abandoned(self) -> Callable[[float], None]:
        self._stopping.set()
        return self.subscription.leave

    def _queues(self) -> list[tuple[str, int]]:
        if isinstance(self.queue, str):
            return [(self.queue, self._connection.shards("queue", self.queue))]
        known = self._connection.queues()
        matching = [name for name in known if self.queue.fullmatch(name)]
        if not matching:
            blind = None if known else self._connection.blind("queues", topic.PREFIX)
            raise blind or UnknownEntity("queue that matches", self.queue.pattern, known)
        return [(name, self._connection.shards("queue", name)) for name in matching]

    def look_for(self, pattern: re.Pattern[str]) -> None:
        """Join new queues that match the regular expression (Q3)."""
        found: list[str] = []
        with _noted("could not look for further queues"):
            found = [name for name in self._connection.queues() if pattern.fullmatch(name)]
        for name in filter(self.subscription.queues.may_join, found):
            with _noted(f"{name} cannot be joined yet"):  # the others can
                self.subscription.queues.join(name, self._delivery_ends(name))

    def _delivery_ends(self, queue: str) -> list[TopicPartition]:
        """Return the present ends of a queue's deliveries, by a consumer of its own, because it may wait long."""
        consumer = self._connection.consumer()
        try:
            shards = self._connection.shards("queue", queue)
            return [log_end(consumer, self._connection.deliveries(queue), partition) for partition in range(shards)]
        finally:
            consumer.close()


@contextmanager
def _noted(what: str) -> Iterator[None]:
    """Log an error of the cluster instead of raising it."""
    try:
        yield
    except (LapseError, KafkaException) as error:
        log.info("%s: %s", what, error)


def _watch_for_queues(
    looked_for: weakref.ref[QueueSubscriber], pattern: re.Pattern[str], stopping: threading.Event
) -> None:
    """Look for new queues until the subscriber is closed or garbage-collected."""
    while not stopping.wait(LOOK_EVERY_S):
        subscriber = looked_for()
        if subscriber is None:
            return
        subscriber.look_for(pattern)
        del subscriber


def _handle(handler: Handler, delivery: Delivery) -> None:
    made: object = None
    try:
        with delivery:
            made = handler(delivery)
            if isinstance(made, CoroutineType):  # of a lambda, or of an object
                raise TypeError(_COROUTINE)  # the message returns to its queue
    except Exception:
        if isinstance(made, CoroutineType):
            made.close()
            raise
        log.exception("the handler failed on %s; it is cancelled", delivery.bookmark)
