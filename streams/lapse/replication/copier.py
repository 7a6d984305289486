"""The copier of one session of `lapse replicate`: a batch from upstream becomes a transaction downstream (S10)."""

from __future__ import annotations

import time
from typing import Any, Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, KafkaException, Message, Producer

from lapse.protocol import topic as names
from lapse.replication import progress
from lapse.replication.link import Link
from lapse.replication.link_error import GRANT, LinkError
from lapse.replication.progress import Progress
from lapse.replication.translation import Downstream, Translation, Upstream
from lapse.runtime.timers.clock import WorkerClock
from lapse_client.kafka.fault import BEHIND_REFUSAL, abort, flushed, written_or_refused
from lapse_client.kafka.produced import produce

_BATCH: Final = 2_000
_WAIT_S: Final = 0.1
_PATIENCE_S: Final = 30.0
_RETRY_S: Final = 1.0


class Copier:
    """Copies what comes upstream, batch by batch.

    Args:
        consumer: reads the compacted topics upstream.
        producer: writes downstream, in transactions.
        translation: makes records for downstream.
        reached: how far the topics are copied.
        link: the link.
        breadths: for each compacted topic its number of partitions, and that of the underlying topic downstream.

    Attributes:
        progress_end: the offset behind the last record that was written to the progress topic.
    """

    def __init__(
        self,
        consumer: Consumer,
        producer: Producer,
        translation: Translation,
        reached: Progress,
        link: Link,
        breadths: dict[str, tuple[int, int]],
    ) -> None:
        self._consumer = consumer
        self._producer = producer
        self._translation = translation
        self._reached = reached
        self._targets = {names.sow(name): underlying for name, underlying in link.topics.items()}
        self._same_breadth = {topic: above == below for topic, (above, below) in breadths.items()}
        self._clock = WorkerClock()
        self.progress_end = 0

    def open(self) -> bool:
        """Measure the broker's clock, which shows how late an expiry is read; return whether it could be measured.

        Raises:
            KafkaException: the downstream does not answer.
        """
        self._producer.begin_transaction()
        self._produce_progress(*self._reached.opening())
        flushed(self._producer, _PATIENCE_S)
        self._producer.commit_transaction(_PATIENCE_S)
        if not self.progress_end:
            raise KafkaException(KafkaError(KafkaError._FAIL, "the broker has not said where it wrote the progress"))
        return self._clock.is_measured

    def step(self) -> int:
        """Copy the records that have arrived; return how many were written.

        Raises:
            KafkaException: one side does not answer, and nothing of the batch counts.
            LinkError: a topic may not be read.
        """
        batch = self._consumer.consume(_BATCH, _WAIT_S)
        if not batch:
            return 0
        now_ms = self._clock.stamp_ms()
        rows: list[tuple[Message, Downstream]] = []
        ends: dict[tuple[str, int], int] = {}
        for message in batch:
            error = message.error()
            if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise LinkError(f"{message.topic()}: {error.str().rstrip('.')}. {GRANT}")
            if error is not None:
                raise KafkaException(error)
            topic, partition, offset = _place(message)
            ends[topic, partition] = offset + 1
            row = self._translation.translate(_upstream(message), now_ms)
            if row is not None:
                rows.append((message, row))
        self._write(rows, ends)
        return len(rows)

    def _write(self, rows: list[tuple[Message, Downstream]], ends: dict[tuple[str, int], int]) -> None:
        if self._transact(rows, ends):
            return
        # Perhaps only the batch is too large, because brokers check its size. So send the records one by one.
        try:
            self._transact(rows, ends, one_by_one=True)
        except KafkaException as error:
            if error.args[0].code() not in BEHIND_REFUSAL:
                raise
            abort(self._producer, _PATIENCE_S)
            self._transact(rows, ends, one_by_one=True)

    def _transact(
        self, rows: list[tuple[Message, Downstream]], ends: dict[tuple[str, int], int], *, one_by_one: bool = False
    ) -> bool:
        """Write records and progress in one transaction; return False if a record was too large.

        Raises:
            KafkaException: a record that was sent alone is too large, or one side does not answer.
        """
        producer, refused = self._producer, list[str]()

        def written(error: KafkaError | None, message: Message) -> None:
            if error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                size = len(message.value() or b"") + len(message.key() or b"")
                refused.append(
                    f"{message.topic()} downstream takes no record of {size:,} bytes, that of key {message.key()!r}: "
                    "raise its max.message.bytes"
                )

        producer.begin_transaction()
        try:
            for message, row in rows:
                topic, partition, _ = _place(message)
                # A downstream producer with Kafka's own partitioner then chooses the same partition for the key.
                where: dict[str, Any] = {"partition": partition} if self._same_breadth[topic] else {}
                options = {"headers": row.headers, "on_delivery": written, **where}
                produce(producer, self._targets[topic], row.value, row.key, **options)
                if one_by_one:
                    written_or_refused(producer, refused, _PATIENCE_S)
                if refused:
                    break
            for (topic, partition), offset in ends.items():
                key, value = self._reached.record(topic, partition, offset)
                self._produce_progress(key, value)
            written_or_refused(producer, refused, _PATIENCE_S)
            if not refused:
                producer.commit_transaction(_PATIENCE_S)
                return True
        except KafkaException:
            written_or_refused(producer, refused, _RETRY_S)  # to learn which record it is
            if not refused:
                raise
        abort(producer, _PATIENCE_S)
        if one_by_one:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, refused[0]))
        return False

    def _produce_progress(self, key: bytes, value: bytes | None) -> None:
        """Write a record of the progress topic, which then measures the broker's clock."""
        sent = time.monotonic()

        def written(error: KafkaError | None, message: Message) -> None:
            kind, stamp_ms = message.timestamp()
            offset = message.offset()
            if error is None and offset is not None and offset >= 0:  # after a lost answer, it may be unknown
                self.progress_end = offset + 1
            if error is None and kind == TIMESTAMP_LOG_APPEND_TIME:
                self._clock.measured(sent, time.monotonic(), stamp_ms)

        produce(self._producer, progress.TOPIC, value, key, partition=0, on_delivery=written)


def _place(message: Message) -> tuple[str, int, int]:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return topic, partition, offset


def _upstream(message: Message) -> Upstream:
    value = message.value()
    headers: Any = message.headers() or []  # a list of pairs
    return Upstream(message.key() or b"", value, headers, message.timestamp()[1])
