"""The queue subscriber: deliveries by iterator, in batches, or to a callback (X3)."""

from __future__ import annotations

import logging
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Final

from confluent_kafka import KafkaException, TopicPartition

from lapse.protocol import topic
from lapse_client.delivery.delivery import Delivery
from lapse_client.delivery.lot import Lot
from lapse_client.delivery.referenced import Referenced
from lapse_client.delivery.typed_delivery import TypedDelivery
from lapse_client.error import Closed, LapseError, UnknownEntity
from lapse_client.kafka.connection import Connection, log_end
from lapse_client.payload.serde import DeserializerLike, SerializerLike
from lapse_client.session.client import Client
from lapse_client.subscriber.settlement import SettlementResult, results
from lapse_client.subscriber.settler import Settling
from lapse_client.subscriber.subscription import Subscription
from lapse_client.subscriber.terms import Payload, Terms
from lapse_client.transaction.transaction import Transaction

log = logging.getLogger("lapse_client")

LOOK_EVERY_S: Final = 5.0
"""How often queues are looked for that match a regular expression and came later."""

Handler = Callable[[Delivery], object]


class QueueSubscriber(Client[Lot | Referenced | None]):
    """Receives a queue's messages under leases; a context manager and an iterator.

    ::

        with QueueSubscriber("orders", max_backlog=100) as subscriber:
            for delivery in subscriber:
                with delivery:          # acknowledges, or cancels on an exception
                    handle(delivery.value)

    It sends heartbeats by itself, subscribes again if a worker has forgotten it, and drops prefetched messages whose
    lease is over. `close` returns unsettled messages at once. If `max_backlog` is below the queue's number of
    partitions, credits have to move between them, which costs latency.

    Args:
        queue: its name, or a compiled regular expression for all queues whose whole name matches. At least one has
            to exist at the start; others are joined within seconds. When one is deleted, the subscriber goes on with
            the others, or waits for new ones.
        max_backlog: the greatest number of unsettled deliveries, over all partitions; 0 = barriers only.
        connection: the cluster; from the environment by default.
        name: of the subscription, for people and for peeks; unique by default.
        filter: an expression; only messages that match are delivered.
        payload: `packed`: many messages come in one record; `inline`: each comes in a record of its own, as for
            clients in other languages; `reference`: the queue sends bookmarks only, and the client reads the records
            from the underlying topics, which requires the right to do so.
        heartbeat_timeout_ms: silence after which the leases return, in ms; None = the queue's
            `heartbeat_timeout`.
        ack_batch_size: the greatest number of acknowledgments in one command.
        ack_interval_ms: how long an acknowledgment may wait for others, in ms.
        deserializer: reads the payloads, for `delivery.payload`: a `JsonSerde`, an `AvroSerde`, one of Confluent's
            deserializers, or a function of bytes. A message that does not fit is not handed out; it becomes a dead
            letter.
        serializer: writes the payloads of replies, as `deserializer` reads those of messages.
        transactional_id: Kafka's name for the transactions of `delivery.transaction()`; a later subscriber with this
            name aborts those of an earlier one. Unique by default.
        timeout_s: how long to wait for answers to subscribe, to unsubscribe and to `settle`, in seconds.
        on_refused: called with refused settlements that nobody waits for, by a background thread.

    Attributes:
        delivery_types: the classes of the application's deliveries, without a deserializer and with one.

    Raises:
        ValueError: a number out of range; the text names it.
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
        self._handlers: set[int] = set()
        self._idle = threading.Event()
        self._idle.set()
        self._stopping = threading.Event()

    @property
    def name(self) -> str:
        """The subscription's name."""
        return self.terms.name

    def stop(self) -> None:
        """Hand out no more messages; those handed out can still be settled until `close`, which is still necessary."""
        self._stopping.set()
        self._lifecycle.stop()
        if (subscription := self._subscription) is not None:
            subscription.stop()

    def close(self) -> None:
        """Send what was acknowledged, give the rest back, wait for the answers; from any thread, twice if you like.

        Handlers of `run` that are at work finish first. Called by a handler, it lets `run` end, which then closes.
        A `start` that is under way in another thread ends with `Closed`, and leaves no subscription behind. What is
        settled later is not sent: the log and `on_refused` tell, and `settle(wait=True)` raises `Closed`.
        """
        self.stop()
        if threading.get_ident() not in self._handlers:
            self._idle.wait()
            super().close()

    def __iter__(self) -> Iterator[Delivery]:
        return self.messages()

    def messages(self, timeout: float | None = None) -> Iterator[Delivery]:
        """Iterate over deliveries.

        Args:
            timeout: the iteration ends after this time without one, s; None = only `close` ends it.
        """
        while (delivery := self.receive(timeout)) is not None:
            yield delivery

    def batches(self, max_size: int = 1_000, timeout: float | None = None) -> Iterator[list[Delivery]]:
        """Iterate over lists of deliveries, each what has arrived by then; the fast way together with `acknowledge`.

        Args:
            max_size: deliveries in one list at most.
            timeout: the iteration ends after this time without one, s; None = only `close` ends it.
        """
        while batch := self.subscription.take(max_size, timeout):
            yield batch

    def receive(self, timeout: float | None = None) -> Delivery | None:
        """Wait for one delivery.

        Args:
            timeout: for how many seconds; None = until there is one, or `close`.

        Returns:
            None after the timeout or `close`.
        """
        return self.subscription.receive(timeout)

    def run(self, handler: Handler, threads: int = 1) -> None:
        """Hand every delivery to a callback, until `close`; the subscriber is closed then.

        A delivery that the handler leaves unsettled is acknowledged when it returns, and cancelled when it raises;
        the exception is logged, unless it is `Retry`, and the next delivery follows.

        Args:
            handler: called with each delivery, by as many threads as asked for; its result is ignored.
            threads: how many; more than `max_backlog` never have work at the same time.
        """
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
        self._idle.clear()
        try:
            for thread in others:
                thread.start()
            work()
            for thread in others:
                thread.join()
        except BaseException as error:  # Ctrl-C once more, or no more threads: `close` waits for no handler then
            subscription.arrivals.end(error)
            raise
        finally:
            self._handlers.discard(threading.get_ident())
            self._idle.set()
        self.close()
        if failures:
            raise failures[0]

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge many deliveries; cheaper than one by one.

        Raises:
            AlreadySettled: one of them was settled before; those in front of it are acknowledged.
        """
        self.subscription.settler.acknowledge(deliveries)

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
        """Settle many deliveries at once, and learn what became of each if wanted.

        Args:
            how: acknowledge, cancel, expire or renew.
            deliveries: what to settle.
            wait: wait for the answers; without it the list is empty, and refusals go to `on_refused`.
            delay_ms: of cancel: how long the messages stay undeliverable, in ms; None = as they or the queue say.
            lease_ms: of renew: how long from now, in ms.
            fault: of expire: what is wrong with the messages, for their letters.

        Raises:
            AlreadySettled: one of them was settled before.
            AnswerTimeout: a shard did not answer; whether it settled is not known.
            CommandFailed: a shard refused the command as a whole.
            Closed: with `wait`, after `close`; the deliveries are not settled then.
        """
        subscription = self.subscription
        asked = subscription.settler.command(
            how, deliveries, delay_ms=delay_ms, lease_ms=lease_ms, fault=fault, answer=wait
        )
        if not asked:
            return []
        try:
            answers = subscription.channel.ask(asked, self._timeout_s)
        except Closed:
            for delivery in deliveries:
                delivery.settled_as = ""
            raise
        for answer in answers:
            subscription.settler.note_renewal(answer, deliveries)
        return [result for answer in answers for result in results(answer)]

    def transaction(self, deliveries: Sequence[Delivery]) -> Transaction:
        """Return a transaction over many deliveries: their acknowledgments and the outputs, all or none (X9).

        Raises:
            InvalidPublication: one has no lease: it was delivered at most once, or it is a barrier.
        """
        return self.subscription.settler.transaction(deliveries)

    def flush(self) -> None:
        """Send the acknowledgments that wait for others now."""
        self.subscription.settler.flush()

    @property
    def subscription(self) -> Subscription:
        """What runs behind it.

        Raises:
            Closed: it was never started.
        """
        if (subscription := self._subscription) is None:
            raise Closed(self._lifecycle.what)
        return subscription

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
            threading.Thread(target=_look_out, args=looking, name="lapse look-out", daemon=True).start()

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
        """Join queues that came later and match (Q3)."""
        try:
            for name in self._connection.queues():
                if pattern.fullmatch(name) and self.subscription.queues.may_join(name):
                    self.subscription.queues.join(name, self._ends(name))
        except (LapseError, KafkaException) as error:
            log.info("could not look for further queues: %s", error)

    def _ends(self, queue: str) -> list[TopicPartition]:
        """Where the deliveries of a queue end now; its topics may be about to go, so nobody else waits for this."""
        consumer = self._connection.consumer()
        try:
            shards = self._connection.shards("queue", queue)
            return [log_end(consumer, self._connection.deliveries(queue), partition) for partition in range(shards)]
        finally:
            consumer.close()


def _look_out(looked_for: weakref.ref[QueueSubscriber], pattern: re.Pattern[str], stopping: threading.Event) -> None:
    """Look for further queues until the subscriber is closed, or nobody has it any more."""
    while not stopping.wait(LOOK_EVERY_S):
        subscriber = looked_for()
        if subscriber is None:
            return
        subscriber.look_for(pattern)
        del subscriber


def _handle(handler: Handler, delivery: Delivery) -> None:
    try:
        with delivery:
            handler(delivery)
    except Exception:
        log.exception("the handler failed on %s; it is cancelled", delivery.bookmark)
