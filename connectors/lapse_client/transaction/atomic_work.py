"""Atomic work of a subscription: commits outputs and acknowledgments together (X9).

The order makes it atomic. First, an open transaction writes the outputs, and a claim for each message. Then the shard
confirms that the messages are still leased to this subscription. A subscription that gets one of them later finds the
claim, and waits for its outcome. Then the transaction is committed, which decides. The acknowledgments follow. If they
are lost, the next subscription that gets a message finds it committed, and acknowledges it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol
from uuid import uuid4

import orjson
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from lapse_client.error import Closed, InvalidPublication, LapseError, TransactionFailed
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.fault import FENCED, flushed
from lapse_client.kafka.produced import produce
from lapse_client.publisher.record_publisher import RecordPublisher
from lapse_client.subscriber.refusals import Refusals
from lapse_client.subscriber.settlement import SettlementResult
from lapse_client.subscriber.settler import Settling
from lapse_client.tracing import Reported, Tracing
from lapse_client.transaction.decision_log import Claim, DecisionLog, Verdict, claim
from lapse_client.transaction.transaction import Output, Transaction

log = logging.getLogger("lapse_client")

_OPEN_MS: Final = 10_000
"""How long a transaction of a vanished client stays open, in ms. Kafka checks every ten seconds by default."""

_CONTROL_S: Final = 30.0
_AGAIN_S: Final = 0.2


class Settles(Protocol):
    """The parts of a subscription's settler that atomic work needs.

    Attributes:
        refusals: reports refused settlements to the application.
        tracing: makes the spans of publications; None = no spans.
    """

    refusals: Refusals
    tracing: Tracing | None

    def acknowledge(self, deliveries: Sequence[Any]) -> None:
        """Acknowledge deliveries."""

    def command(
        self, how: Settling, deliveries: Sequence[Any], *, delay_ms: int | None = None, lease_ms: int | None = None
    ) -> object:
        """Settle deliveries by another action than an acknowledgment."""

    def flush(self) -> None:
        """Send all acknowledgments now."""

    def settled(self, how: Settling, deliveries: Sequence[Any], timeout_s: float) -> list[SettlementResult]:
        """Settle deliveries, wait for the answers, and return the results."""


class AtomicWork:
    """Commits the transactions of a subscription, one at a time. Every method may be called from any thread.

    Args:
        connection: connection to the cluster.
        settler: settler of the subscription.
        shards: returns the number of shards of a queue.
        transactional_id: Kafka's `transactional.id`; None = a unique one.
        begun: called when a queue's decision log is first used.
    """

    def __init__(
        self,
        connection: Connection,
        settler: Settles,
        shards: Callable[[str], int],
        transactional_id: str | None,
        begun: Callable[[], None],
    ) -> None:
        self._begun = begun
        self._connection = connection
        self._settler = settler
        self._shards = shards
        self._named = transactional_id
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._targets: RecordPublisher | None = None
        self._logs: dict[str, DecisionLog] = {}
        self._fenced = self._closed = False
        self._unknown: set[Claim] = set()
        """Claims of transactions whose outcome was unknown when they failed."""

    def begin(self, deliveries: Sequence[Any]) -> Transaction:
        """Return a transaction over deliveries; of one that is named twice the first counts (C16).

        Raises:
            InvalidPublication: a delivery has no lease, because it is at most once, or a barrier.
        """
        for delivery in deliveries:
            if delivery.is_barrier or delivery.lease_until_ms is None:
                what = "is a barrier" if delivery.is_barrier else "was delivered at most once"
                raise InvalidPublication(f"{delivery.bookmark} {what}, so there is nothing to acknowledge with outputs")
        return Transaction(list({id(delivery): delivery for delivery in deliveries}.values()), self)

    def commit(self, transaction: Transaction) -> bool:
        """Commit the outputs, and acknowledge the deliveries.

        Returns:
            False if outputs for one of the messages were committed before. Then the new outputs are dropped, that
            message is acknowledged, and the others return to their queues.

        Raises:
            TransactionFailed: nothing was committed, and messages that are still leased return to their queues; or
                the outcome is unknown, and the client that gets the messages next finds it out.
            AlreadySettled: a delivery was settled in the block; nothing was committed.
            Closed: the subscriber is closed; nothing was committed.
        """
        with self._settler.refusals.held_back(), self._lock:
            is_decided = False
            try:
                if self._closed:  # a producer opened now would end the transactions of a later subscriber (X9)
                    raise Closed("the subscriber")
                for delivery in transaction.deliveries:
                    delivery.check_unsettled()
                if self._decided_before(transaction.deliveries):
                    return False
                self._commit(transaction)
                is_decided = True
                # Before the next transaction, because its renewals must not overtake this.
                self._acknowledge(transaction.deliveries)
            except (KafkaException, LapseError) as error:
                if isinstance(error, TransactionFailed) and error.outcome_unknown:
                    self._unknown.update(map(claim, transaction.deliveries))
                else:
                    self.give_up(transaction, None)
                if isinstance(error, LapseError):
                    raise
                raise TransactionFailed(f"{self._failure_text(error.args[0])}. Nothing of it counts") from error
            except Exception:  # return the messages now, instead of at the ends of their leases
                if not is_decided:
                    self.give_up(transaction, None)
                raise
            except BaseException:  # Ctrl-C: Kafka may have committed
                self._producer = None
                self._unknown.update(map(claim, transaction.deliveries))
                raise
        return True

    def give_up(self, transaction: Transaction, delay_ms: int | None) -> None:
        """Cancel the deliveries that are not settled."""
        left = [delivery for delivery in transaction.deliveries if not delivery.settled_as]
        if left:
            self._settler.command("cancel", left, delay_ms=delay_ms)

    def close(self) -> None:
        """Disconnect, and commit nothing any more."""
        with self._lock:
            self._closed = True
            for one in self._logs.values():
                one.close()
            self._logs.clear()
            if self._targets is not None:
                self._targets.close()
            if self._producer is not None:
                self._producer.close()
            self._targets = self._producer = None

    # Step by step

    def _decided_before(self, deliveries: Sequence[Any]) -> bool:
        """Return whether outputs for a message were committed before. Such messages are acknowledged, others cancelled.

        Raises:
            TransactionFailed: an earlier transaction stays open for too long.
        """
        again = [one for one in deliveries if one.delivery_count > 1 or claim(one) in self._unknown]
        done = [one for one, verdict in zip(again, self._verdicts(again), strict=True) if verdict is Verdict.DONE]
        if not done:
            return False
        for delivery in done:
            log.info("%s had been committed before: its outputs are there, and these are dropped", delivery.bookmark)
        self._acknowledge(done)
        if others := [delivery for delivery in deliveries if not delivery.settled_as]:
            self._settler.command("cancel", others, delay_ms=0)
        return True

    def _verdicts(self, again: Sequence[Any]) -> list[Verdict]:
        """Return the outcomes of earlier transactions, after waiting until none of them is open."""
        give_up = time.monotonic() + _CONTROL_S
        queues = [self._log(queue) for queue in dict.fromkeys(one.queue for one in again)]
        while True:
            found = {
                id(one): verdict
                for decisions in queues
                for of_queue in [[one for one in again if one.queue == decisions.queue]]
                for one, verdict in zip(of_queue, decisions.verdicts(of_queue), strict=True)
            }
            still_open = [one for one in again if found[id(one)] is Verdict.OPEN]
            if not still_open:
                return [found[id(one)] for one in again]
            if time.monotonic() >= give_up:
                raise TransactionFailed(
                    f"{still_open[0].bookmark}: an earlier transaction over it is still open after {_CONTROL_S:g} s. "
                    "Nothing of this one counts"
                )
            time.sleep(_AGAIN_S)

    def _commit(self, transaction: Transaction) -> None:
        producer = self._opened()
        targets = self._names()
        topics = [targets.topic_of(output.to) for output in transaction.outputs]
        failures: list[tuple[KafkaError, Message]] = []

        def reported(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append((error, message))

        decisions = {queue: self._log(queue) for queue in {delivery.queue for delivery in transaction.deliveries}}
        producer.begin_transaction()
        try:
            for name, output in zip(topics, transaction.outputs, strict=True):
                self._produce(producer, name, output, reported)
            for delivery in transaction.deliveries:
                facts = {"delivery_count": delivery.delivery_count, "transactional_id": self._id}
                place, value = (decisions[delivery.queue].topic, delivery.shard.partition), orjson.dumps(facts)
                _produce_claim(producer, place, value, claim(delivery), reported)
            self._written(producer, failures)
            self._hold(transaction.deliveries)
        except BaseException:
            self._abort(producer)
            if failures and self._producer is producer:  # its next transaction would fail: the sequence has a gap
                self._producer = None
                producer.close()
            raise
        self._decide(producer)

    def _produce(self, producer: Producer, topic: str, output: Output, reported: Reported) -> None:
        if self._settler.tracing is None:
            produce(producer, topic, output.value, output.key, headers=output.headers, on_delivery=reported)
            return
        sending = self._settler.tracing.sending(topic, output.key, output.headers, reported)
        try:
            produce(producer, topic, output.value, output.key, headers=sending.headers, on_delivery=sending.reported)
        except KafkaException as error:
            sending.failed(error)
            raise

    def _written(self, producer: Producer, failures: list[tuple[KafkaError, Message]]) -> None:
        """Wait until outputs and claims are in Kafka. The shards may only be asked after that."""
        left = flushed(producer, _CONTROL_S)
        if failures:
            error, message = failures[0]
            raise (
                KafkaException(error)
                if error.code() in FENCED
                else TransactionFailed(f"{message.topic()}: not published: {error}. Nothing of it counts")
            )
        if left:
            raise TransactionFailed(f"{left} records are not in Kafka after {_CONTROL_S:g} s. Nothing of it counts")

    def _hold(self, deliveries: Sequence[Any]) -> None:
        """Have the shards confirm, by a renewal, that the messages are still leased to this subscription."""
        lost = [one for one in self._settler.settled("renew", deliveries, _CONTROL_S) if not one.settled]
        if lost:
            raise TransactionFailed(
                f"{lost[0].messages} is {lost[0].result}: its lease was lost before the outputs were committed. "
                "Nothing of it counts; take a longer lease_period for longer work"
            )

    def _decide(self, producer: Producer) -> None:
        """Commit the transaction. Until Kafka answers, the outcome is unknown."""
        give_up = time.monotonic() + _CONTROL_S
        while True:
            try:
                producer.commit_transaction(_CONTROL_S)
            except KafkaException as error:
                cause = error.args[0]
                if cause.txn_requires_abort():
                    self._abort(producer)
                    raise
                if cause.code() in FENCED or cause.fatal():
                    self._lost(cause)
                    raise TransactionFailed(f"{self._failure_text(cause)}. Nothing of it counts") from error
                if not cause.retriable() or time.monotonic() >= give_up:
                    self._producer = None
                    raise TransactionFailed(
                        f"the outcome is not known: {cause}. Whoever gets the messages next will know it",
                        outcome_unknown=True,
                    ) from error
            except BaseException:  # Ctrl-C before or after the call; after a commit, an abort does nothing
                self._abort(producer)
                raise
            else:
                return

    def _abort(self, producer: Producer) -> None:
        try:
            producer.abort_transaction(_CONTROL_S)
        except KafkaException as error:  # Kafka aborts it after its timeout; readers never see its records
            self._lost(error.args[0])
            log.info("a transaction is left to Kafka to abort: %s", error)

    def _lost(self, cause: KafkaError) -> None:
        """Drop the producer. The next transaction makes a new one, unless another process has fenced this id."""
        self._producer = None
        self._fenced = self._fenced or (self._named is not None and cause.code() in FENCED)

    def _failure_text(self, cause: KafkaError) -> str:
        if cause.code() in FENCED and self._named is not None:
            return f"another process uses the transactional_id {self._named}, and goes on; this one ends"
        return str(cause)

    def _acknowledge(self, deliveries: Sequence[Any]) -> None:
        self._settler.acknowledge(deliveries)
        self._settler.flush()

    # Connections

    def _opened(self) -> Producer:
        if self._fenced:
            raise TransactionFailed(f"another process uses the transactional_id {self._named}. Nothing of it counts")
        if self._producer is None:
            self._id = self._named or f"lapse-{uuid4().hex}"
            producer = self._connection.producer(
                linger_ms=0, **{"transactional.id": self._id, "transaction.timeout.ms": _OPEN_MS}
            )
            producer.init_transactions(_CONTROL_S)
            self._producer = producer
        return self._producer

    def _names(self) -> RecordPublisher:
        if self._targets is None:
            self._targets = RecordPublisher(self._connection)
        return self._targets

    def _log(self, queue: str) -> DecisionLog:
        found = self._logs.get(queue)
        if found is None:
            found = DecisionLog(self._connection, queue, self._shards(queue))
            found.make()
            self._begun()
            self._logs[queue] = found
        return found


def _produce_claim(
    producer: Producer,
    place: tuple[str, int],
    value: bytes,
    key: Claim,
    reported: Callable[[KafkaError | None, Message], None],
) -> None:
    """Produce a claim to a topic and partition.

    The producer refuses the partition of a shard that the queue got since, because it looks for new partitions every
    five minutes only. Then it is made to look (C81).
    """
    name, partition = place
    try:
        produce(producer, name, value, key, partition=partition, on_delivery=reported)
    except KafkaException as error:
        if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
            raise
        producer.list_topics(name, timeout=_CONTROL_S)
        produce(producer, name, value, key, partition=partition, on_delivery=reported)
