"""librdkafka's part for the client, in memory: a producer, a consumer and an administrator's connection."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from itertools import count
from types import SimpleNamespace
from typing import Any, NoReturn

from confluent_kafka import OFFSET_END, KafkaError, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it lists none of its names in __all__
    BrokerMetadata,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)

from lapse.core.sow.keys.home import murmur2
from lapse.testing.cluster import Cluster
from lapse.testing.record import Headers, MemoryMessage, MemoryRecord

SourceKey = tuple[str, int]
Report = Callable[[KafkaError | None, Any], None]


class _InMemory:
    """Refuses every part of librdkafka that is not implemented here."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{name}: not in lapse.testing; test what needs it with a broker (`lapse kafka start`)")


class MemoryProducer(_InMemory):
    """Writes to a cluster in memory, at once.

    Args:
        cluster: the cluster.

    Attributes:
        cut_off: whether no record gets through. Records are kept meanwhile, and written by `reconnect`.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cut_off = False
        self._cluster = cluster
        self._turn = count()
        self._reports: deque[tuple[Report, KafkaError | None, MemoryMessage]] = deque()
        self._held: list[tuple[str, int, bytes | None, bytes | None, Headers, Report | None]] = []
        self._open: list[tuple[str, int, bytes | None, bytes | None, Headers]] | None = None
        """The records of the open transaction, which nobody sees before it is committed."""

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        on_delivery: Report | None = None,
        headers: Any = None,
    ) -> None:
        """Write a record, or keep it while the producer is cut off."""
        data, name = _bytes(value), _bytes(key)
        listed = headers.items() if isinstance(headers, dict) else headers or ()
        encoded: Headers = [(one, _bytes(content)) for one, content in listed]  # type: ignore[misc]
        with self._cluster.changed:
            if partition < 0:
                partition = self._partition(topic, name)
            if self._open is not None:
                self._write_in_transaction(topic, partition, name, data, encoded, on_delivery)
            elif self.cut_off:
                self._held.append((topic, partition, name, data, encoded, on_delivery))
            else:
                self._write(topic, partition, name, data, encoded, on_delivery)

    def _write(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        on_delivery: Report | None,
    ) -> None:
        error = None
        if self._cluster.has(topic, partition):
            record = self._cluster.append(topic, partition, key, value, headers)
        else:
            error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
            record = MemoryRecord(topic, partition, -1, self._cluster.now_ms, key, value, headers)
        if on_delivery is not None:
            self._reports.append((on_delivery, error, MemoryMessage(record)))
            self._cluster.changed.notify_all()

    def _write_in_transaction(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        report: Report | None,
    ) -> None:
        assert self._open is not None
        there = self._cluster.has(topic, partition)
        if there:
            self._open.append((topic, partition, key, value, headers))
        if report is not None:
            record = MemoryRecord(topic, partition, -1, self._cluster.now_ms, key, value, headers)
            error = None if there else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
            self._reports.append((report, error, MemoryMessage(record)))

    def init_transactions(self, timeout: float = -1) -> None:
        """Do nothing, because no earlier transaction is open."""

    def begin_transaction(self) -> None:
        """Hide the records that are written from now on."""
        self._open = []

    def commit_transaction(self, timeout: float = -1) -> None:
        """Show all records of the transaction at once."""
        with self._cluster.changed:
            written, self._open = self._open or [], None
            for topic, partition, key, value, headers in written:
                self._cluster.append(topic, partition, key, value, headers)

    def abort_transaction(self, timeout: float = -1) -> None:
        """Drop the records of the transaction."""
        self._open = None

    def reconnect(self) -> None:
        """Write the records that were kept, and write at once from now on."""
        with self._cluster.changed:
            self.cut_off = False
            held, self._held = self._held, []
            for one in held:
                self._write(*one)

    def _partition(self, topic: str, key: bytes | None) -> int:
        partitions = max(1, self._cluster.partitions().get(topic, 0))
        if key is None:
            return next(self._turn) % partitions
        return (murmur2(key) & 0x7FFFFFFF) % partitions

    def poll(self, timeout: float = 0.0) -> int:
        """Wait for a delivery report; hand out all that are there, and return how many."""
        if timeout > 0 and not self._reports:
            with self._cluster.changed:
                self._cluster.changed.wait_for(lambda: self._reports, timeout)
        reported = 0
        while self._reports:
            try:
                report, error, message = self._reports.popleft()
            except IndexError:  # another thread was faster
                break
            report(error, message)
            reported += 1
        return reported

    def flush(self, timeout: float = 0.0) -> int:
        """Hand out all reports; return how many records could not be written."""
        self.poll()
        return len(self._held) + (len(self._open or ()) if self.cut_off else 0)

    def purge(self) -> None:
        """Drop the records that were kept."""
        with self._cluster.changed:
            for topic, partition, key, value, headers, report in self._held:
                if report is not None:
                    record = MemoryRecord(topic, partition, -1, self._cluster.now_ms, key, value, headers)
                    self._reports.append((report, KafkaError(KafkaError._PURGE_QUEUE), MemoryMessage(record)))
            self._held = []

    def close(self) -> None:
        """Do nothing."""

    def __len__(self) -> int:
        return len(self._reports) + len(self._held)


class MemoryConsumer(_InMemory):
    """Reads from a cluster in memory.

    A consumer of deliveries belongs to a channel of the client. The cluster is at rest when the channel's thread has
    looked since the last change, and found nothing.

    Args:
        cluster: the cluster.
        reports_end: whether to report the end of a partition (`enable.partition.eof`).
        is_channel: returns whether channels read a topic.
    """

    def __init__(self, cluster: Cluster, reports_end: bool, is_channel: Callable[[str], bool]) -> None:
        self._cluster = cluster
        self._reports_end = reports_end
        self._is_channel = is_channel
        self._next: dict[SourceKey, int] = {}
        self._paused: set[SourceKey] = set()
        self._ends_reported: dict[SourceKey, int] = {}
        self._waits = False
        self._cut_off = False
        self._thread: threading.Thread | None = None
        self._looked = cluster.ticks
        """The last tick whose work the thread has done when it calls again."""
        self._rested = -1
        """The last tick at which the thread found nothing to do; -1 while it works."""

    # Reading

    def assign(self, tps: Iterable[TopicPartition]) -> None:
        """Read these partitions and no others."""
        with self._cluster.changed:
            self._next = {}
            self._paused.clear()
            self.incremental_assign(tps)

    def incremental_assign(self, tps: Iterable[TopicPartition]) -> None:
        """Read these partitions as well."""
        with self._cluster.changed:
            for tp in tps:
                name = tp.topic, tp.partition
                end = len(self._cluster.log(*name))
                self._next[name] = end if tp.offset == OFFSET_END else max(0, tp.offset)
                self._ends_reported.pop(name, None)
                if not self._waits and self._is_channel(tp.topic):
                    self._waits = True
                    self._cluster.waiters.append(self)

    def incremental_unassign(self, tps: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions."""
        with self._cluster.changed:
            for tp in tps:
                self._next.pop((tp.topic, tp.partition), None)

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that are read."""
        return [TopicPartition(*name) for name in self._next]

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """Hand out no records of these partitions."""
        with self._cluster.changed:
            self._paused.update((tp.topic, tp.partition) for tp in tps)

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        """Hand out records of these partitions again."""
        with self._cluster.changed:
            self._paused.difference_update((tp.topic, tp.partition) for tp in tps)

    def seek(self, tp: TopicPartition) -> None:
        """Continue at an offset."""
        with self._cluster.changed:
            self._next[tp.topic, tp.partition] = tp.offset

    def cut_off(self, cut_off: bool) -> None:
        """Let no records through, or let them through again."""
        with self._cluster.changed:
            self._cut_off = cut_off
            self._cluster.changed.notify_all()

    def poll(self, timeout: float = -1) -> MemoryMessage | None:
        """Return a message, waiting for it; None after the timeout, or when the thread must look elsewhere."""
        got = self.consume(1, timeout)
        return got[0] if got else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[MemoryMessage]:
        """Return up to `num_messages` messages, waiting for the first."""
        give_up = None if timeout < 0 else time.monotonic() + timeout
        cluster = self._cluster
        with cluster.changed:
            self._thread = threading.current_thread()
            while True:
                cluster.run()
                got = self._take(num_messages)
                if got:
                    return self._back(got)
                if timeout == 0:
                    return []
                if self._rested != self._looked:
                    self._rested = self._looked
                    cluster.changed.notify_all()
                left = None if give_up is None else give_up - time.monotonic()
                if (self._waits and self._looked != cluster.ticks) or (left is not None and left <= 0):
                    return self._back([])
                cluster.changed.wait(left)

    def _back(self, got: list[MemoryMessage]) -> list[MemoryMessage]:
        """Return to the thread, which then does all work up to now."""
        self._looked = self._cluster.ticks
        self._rested = -1
        return got

    def is_busy(self) -> bool:
        """Return whether its thread still has something to look at. A thread does not wait for itself."""
        thread = self._thread
        if thread is not None and (thread is threading.current_thread() or not thread.is_alive()):
            return False
        return self._rested != self._cluster.ticks or self._has_more()

    def _has_more(self) -> bool:
        return not self._cut_off and any(
            at < len(self._cluster.log(*name)) or (not self._cluster.has(*name) and self._ends_reported.get(name) != -1)
            for name, at in self._next.items()
            if name not in self._paused
        )

    def _take(self, most: int) -> list[MemoryMessage]:
        got: list[MemoryMessage] = []
        if self._cut_off:
            return got
        for name, at in self._next.items():
            if name in self._paused:
                continue
            if not self._cluster.has(*name):
                got += self._gone(name)
                continue
            log = self._cluster.log(*name)
            records = log[at : at + most - len(got)] if at < len(log) else ()
            got += map(MemoryMessage, records)
            at += len(records)
            self._next[name] = at
            if self._reports_end and at >= len(log) and self._ends_reported.get(name) != at and len(got) < most:
                self._ends_reported[name] = at
                end = MemoryRecord(*name, at, self._cluster.now_ms, None, None, [])
                got.append(MemoryMessage(end, KafkaError(KafkaError._PARTITION_EOF)))
        return got

    def _gone(self, name: SourceKey) -> list[MemoryMessage]:
        """Return an error, once, for a partition whose topic was deleted."""
        if self._ends_reported.get(name) == -1:
            return []
        self._ends_reported[name] = -1
        there_was = MemoryRecord(*name, -1, self._cluster.now_ms, None, None, [])
        return [MemoryMessage(there_was, KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))]

    def close(self) -> None:
        """Stop reading."""
        with self._cluster.changed:
            if self._waits:
                self._waits = False
                self._cluster.waiters.remove(self)
            self._next = {}
            self._cluster.changed.notify_all()

    # Offsets

    def get_watermark_offsets(
        self, tp: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int] | Any:
        """Return where a partition begins and ends, once everything is written that can be at this instant."""
        self._cluster.settle()
        with self._cluster.changed:
            return 0, len(self._cluster.log(tp.topic, tp.partition))

    def offsets_for_times(self, tps: Sequence[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """Return the first offset of each partition at or after an instant; `OFFSET_END` if there is none."""
        found: list[TopicPartition] = []
        with self._cluster.changed:
            for tp in tps:
                at = self._cluster.offset_at(tp.topic, tp.partition, tp.offset)
                end = len(self._cluster.log(tp.topic, tp.partition))
                found.append(TopicPartition(tp.topic, tp.partition, at if at < end else OFFSET_END))
        return found


class MemoryAdmin(_InMemory):
    """Lists the topics of a cluster in memory, and creates some.

    Args:
        cluster: the cluster.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Return the metadata of all topics."""
        found: Any = ClusterMetadata()  # confluent-kafka's own, whose attributes have no types
        found.cluster_id, found.brokers = "memory", {0: BrokerMetadata()}
        for name, partitions in self._cluster.partitions().items():
            known: Any = TopicMetadata()
            known.topic, known.partitions = name, {number: PartitionMetadata() for number in range(partitions)}
            found.topics[name] = known
        return found

    def create_topics(self, new_topics: Iterable[Any], **_options: float) -> dict[str, Future[None]]:
        """Create topics."""
        made: dict[str, Future[None]] = {}
        for new in new_topics:
            self._cluster.create(new.topic, new.num_partitions)
            made[new.topic] = Future()
            made[new.topic].set_result(None)
        return made

    def describe_configs(self, resources: Iterable[Any], **_options: float) -> dict[Any, Future[dict[str, Any]]]:
        """Return the settings of topics: all have the broker's timestamps."""
        reported: dict[Any, Future[dict[str, Any]]] = {}
        for resource in resources:
            reported[resource] = Future()
            reported[resource].set_result({"message.timestamp.type": SimpleNamespace(value="LogAppendTime")})
        return reported

    def poll(self, timeout: float = 0.0) -> int:
        """Return 0, because nothing is ever reported."""
        return 0


def _bytes(value: object) -> bytes | None:
    """Return the bytes that librdkafka's client would send, or raise its error."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise TypeError(f"a bytes-like object is required, not {type(value).__name__!r}")
