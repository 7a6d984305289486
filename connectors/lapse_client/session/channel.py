"""A channel: reads the answers and deliveries of entities' shards, and sends them commands.

One thread reads the deliveries topics, matches answers with commands, measures the broker's clock, and calls its
listener. `ChannelThread` has what only this thread may do. Commands may be sent from any thread (`CommandSender`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic

from confluent_kafka import Consumer, KafkaException, Message, Producer

from lapse.core.error_code import ErrorCode
from lapse.protocol import answer as answers
from lapse.protocol import header
from lapse.protocol.codec import CodecError
from lapse_client.error import EntityDeleted, LapseError
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.fault import NOT_THERE, unreadable
from lapse_client.kafka.log_offsets import assign_ends
from lapse_client.kafka.metadata import METADATA_TIMEOUT_S
from lapse_client.session.answer_code import is_deletion
from lapse_client.session.backpressure import Backpressure
from lapse_client.session.channel_thread import ChannelThread
from lapse_client.session.command_sender import CommandSender
from lapse_client.session.listener import Fields, Listener, T
from lapse_client.session.shard import Shard

log = logging.getLogger("lapse_client")

MOST_AT_ONCE: Final = 5_000
"""The most records that are taken from librdkafka at once."""

_ANSWER: Final = b"answer"
_EPOCH: Final = b"epoch"


class Channel(Generic[T]):
    """Sends commands to the shards of some entities, and reads what they send back.

    Args:
        connection: the cluster.
        entities: names of queues or SOW topics, each with its number of shards.

    Attributes:
        clock: the broker's clock.
        ours: names of subscriptions, and ids of commands, whose records go to the listener.
        shards: the shards, by their numbers.
        backpressure: how fast deliveries are read.
        sender: sends the commands.
        thread: reads; None before `start`.
    """

    def __init__(self, connection: Connection, entities: Sequence[tuple[str, int]]) -> None:
        self.clock = connection.clock
        self.ours: set[bytes] = set()
        places = ((entity, partition) for entity, count in entities for partition in range(count))
        self.shards: list[Shard] = [Shard(number, *place) for number, place in enumerate(places)]
        self.backpressure = Backpressure()
        self.sender = CommandSender(connection, self.backpressure)
        self.thread: threading.Thread | None = None
        self._connection = connection
        self._by_partition = {(connection.deliveries(shard.entity), shard.partition): shard for shard in self.shards}
        self._stopping = threading.Event()
        self._closing = threading.Lock()
        self._closed = self._ends_itself = False
        self._flush_s = METADATA_TIMEOUT_S
        self._name = f"lapse {entities[0][0]}"
        self._consumer = connection.consumer()

    @property
    def endpoints(self) -> tuple[Producer, Consumer]:
        """The producer of its commands, and the consumer of the deliveries topics."""
        return self.sender.producer, self._consumer

    @property
    def is_started(self) -> bool:
        """Whether the channel has begun to read."""
        return self.thread is not None

    def start(self, listener: Listener[T], failed: Callable[[BaseException], None]) -> None:
        """Begin to read at the end of every partition.

        Args:
            listener: receives answers and deliveries.
            failed: called by the channel's thread with the error after which the channel cannot go on.

        Raises:
            ConnectionFailed: no broker answered.
        """
        assign_ends(self._consumer, self._by_partition, self._connection.bootstrap_servers)
        self.thread = threading.Thread(target=self._run, args=(listener, failed), name=self._name, daemon=True)
        self.thread.start()

    def close(self, flush_s: float = METADATA_TIMEOUT_S) -> None:
        """Stop reading, and send the commands that are still queued. May be called twice, from any thread.

        Args:
            flush_s: how long to wait for Kafka to have them, in seconds.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._flush_s = 0.0 if self._stopping.is_set() else flush_s
        self._stopping.set()
        self.sender.end()
        self._connection.transport.wake()
        if threading.current_thread() is self.thread:
            self._ends_itself = True  # after `_run`: in a delivery report librdkafka would wait for the report's end
            return
        if self.thread is not None:
            self.thread.join()
        self._disconnect()

    def _disconnect(self) -> None:
        self.sender.close(self._flush_s)
        self._consumer.close()

    def _run(self, listener: Listener[T], failed: Callable[[BaseException], None]) -> None:
        thread = ChannelThread(self._connection, self.shards, self._by_partition, self._consumer)
        try:
            while not self._stopping.is_set():
                wait_s = listener.on_tick(thread)
                self.backpressure.keep(self._consumer, full=listener.is_full())
                self.sender.poll(self.shards[0].entity)
                while self.sender.vanished:
                    shard = self.sender.vanished.popleft()
                    if not shard.gone:
                        listener.on_deleted(thread, shard.entity)
                # Wait for one record, then take all that came with it without waiting.
                first = self._consumer.poll(wait_s)
                if first is not None:
                    self._take([first, *self._consumer.consume(MOST_AT_ONCE, 0)], listener, thread)
        except BaseException as error:  # callers that wait for the channel must learn why it stopped
            self._stopping.set()
            self.sender.fail(error)
            failed(error)
            if not isinstance(error, LapseError | KafkaException):
                raise
        finally:
            if self._ends_itself:
                self._disconnect()

    def _take(self, messages: list[Message], listener: Listener[T], thread: ChannelThread) -> None:
        """Pass records on to callers and the listener. This is the hot path: a few hundred ns per record matter."""
        ours = self.ours
        by_partition = self._by_partition
        kept: list[T] = []
        read = listener.on_record
        for message in messages:
            if message.error() is not None:
                self._faulty(message, listener, thread)
                continue
            headers: Any = message.headers()
            if headers is None:
                continue
            fields: Fields = dict(headers)
            if len(fields) != len(headers):
                fields = dict(reversed(headers))
            shard = by_partition[message.topic(), message.partition()]  # type: ignore[index]
            epoch = fields.get(header.EPOCH)
            if epoch != shard.epoch_text and not shard.enters(epoch):
                continue
            kind = fields.get(header.KIND)
            if kind == _EPOCH:
                self.sender.resend_unanswered(shard)
                listener.on_taken_over(shard)
                if (shards := fields.get(header.SHARDS) or b"").isdigit():  # a worker's record has digits here
                    listener.on_size(shard.entity, int(shards))
            elif kind == _ANSWER:
                if kept:  # an answer must not overtake earlier deliveries
                    listener.on_received(kept)
                    kept = []
                self._answered(shard, message, fields, listener, thread)
            elif fields.get(header.SUBSCRIPTION) in ours or fields.get(header.COMMAND_ID) in ours:
                # Convert at once: the headers of many records cost the garbage collector more than all else here.
                kept.append(read(shard, message, fields))
        if kept:
            listener.on_received(kept)

    def _answered(
        self, shard: Shard, message: Message, fields: Fields, listener: Listener[T], thread: ChannelThread
    ) -> None:
        future = self.sender.awaiting(fields.get(header.COMMAND_ID, b""))
        if future is None and fields.get(header.SUBSCRIPTION) not in self.ours:
            return
        try:
            answer = answers.decode(message.value() or b"")
        except (CodecError, ValueError) as error:
            log.warning("%s, shard %d: an answer that cannot be read: %s", shard.entity, shard.partition, error)
            return
        if future is None:
            if not is_deletion(answer):
                listener.on_refused(shard, answer)
            elif not (shard.gone or listener.awaits_others(shard) or listener.on_deleted(thread, shard.entity)):
                raise EntityDeleted(shard.entity, answer.error)
        elif answer.code == ErrorCode.SIGNATURE_EXPIRED and self.sender.resend_signed(
            fields[header.COMMAND_ID], future
        ):
            log.info("%s: this machine's clock is wrong; the command is signed by the broker's", shard.entity)
        elif future.set_running_or_notify_cancel():
            future.set_result(answer)

    def _faulty(self, message: Message, listener: Listener[T], thread: ChannelThread) -> None:
        error = message.error()
        assert error is not None
        shard = self._by_partition.get((message.topic() or "", message.partition() or 0))
        if (
            shard is not None
            and error.code() in NOT_THERE
            and (shard.gone or listener.on_deleted(thread, shard.entity))
        ):
            return
        if shard is not None and error.code() in NOT_THERE and self._connection.is_removed(shard.entity):
            raise EntityDeleted.by_topics(shard.entity)
        hopeless = unreadable(message.topic() or "deliveries", error)
        if hopeless is not None:
            raise hopeless
        log.info("Kafka: %s", error)
