"""The cluster of a test: topics in memory, and the rule that says when nothing more can happen by itself.

Everything happens under one lock. A thread that waits for a record lets the shards work first, so they need no thread.
The threads of the client's channels are at rest when they have looked after the last change and found nothing.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from typing import Final, Protocol

from lapse.testing.record import Headers, MemoryRecord

REST_S: Final = 30.0
"""How long the client's threads may take to come to rest, s. No busy machine needs longer."""

_LOOK_S: Final = 0.05


class NotAtRest(RuntimeError):
    """A thread of the client did not come to rest: something in the test keeps it busy, or it waits for the test."""


class Waiter(Protocol):
    """A consumer whose thread must look after each change."""

    def is_busy(self) -> bool:
        """Return whether its thread still has something to look at."""


class Cluster:
    """Topics and their records.

    Args:
        now_ms: the first instant, ms since the epoch.

    Attributes:
        now_ms: the instant, ms since the epoch, which is the timestamp of every new record.
        topics_changed: how often topics were created or deleted.
        changed: the lock for everything here, notified of changes.
        ticks: how often the client's threads were asked to look.
        awaited: deleted entities for whose end somebody waits.
        waiters: consumers whose threads must come to rest.
        work: lets the shards do all their work; called under the lock.
        epochs: the last epoch of each shard. That of an entity's namesake is higher, as with workers (C13).
        fault: the error that ended the shards; raised in every thread that uses the cluster.
    """

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.changed = threading.Condition(threading.RLock())
        self.ticks = 0
        self.topics_changed = 0
        self.awaited: set[str] = set()
        self.waiters: list[Waiter] = []
        self.work: Callable[[], None] = lambda: None
        self.epochs: dict[tuple[str, int], int] = {}
        self.fault: BaseException | None = None
        self._topics: dict[str, list[list[MemoryRecord]]] = {}
        self._dirty = False
        self._worked_ms = -1
        """The instant up to which the shards have worked."""

    # Topics

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic; do nothing if it exists."""
        with self.changed:
            if topic not in self._topics:
                self._topics[topic] = [[] for _ in range(partitions)]
                self.topics_changed += 1

    def delete(self, topic: str) -> None:
        """Delete a topic and its records."""
        with self.changed:
            self._topics.pop(topic, None)
            self.topics_changed += 1

    def finish_deletion(self, entity: str) -> None:
        """Have the topics of a deleted entity removed at this instant, once all of its messages have left."""
        with self.changed:
            self.awaited.add(entity)
            self.touch()
        self.settle()

    def partitions(self) -> dict[str, int]:
        """Return every topic with its number of partitions."""
        with self.changed:
            return {topic: len(logs) for topic, logs in self._topics.items()}

    def has(self, topic: str, partition: int) -> bool:
        """Return whether a partition exists."""
        return partition < len(self._topics.get(topic, ()))

    def log(self, topic: str, partition: int) -> list[MemoryRecord]:
        """Return the records of a partition by their offsets; empty if there is none.

        Callers must not change the list.
        """
        logs = self._topics.get(topic, [])
        return logs[partition] if partition < len(logs) else []

    def offset_at(self, topic: str, partition: int, instant_ms: int) -> int:
        """Return the first offset at or after an instant, ms since the epoch; the end of the log if there is none."""
        return bisect_left(self.log(topic, partition), instant_ms, key=lambda record: record.timestamp)

    def append(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> MemoryRecord:
        """Write a record.

        Raises:
            KeyError: the partition does not exist.
        """
        with self.changed:
            if not self.has(topic, partition):
                raise KeyError(f"{topic}:{partition}")
            log = self._topics[topic][partition]
            record = MemoryRecord(topic, partition, len(log), self.now_ms, key, value, headers)
            log.append(record)
            if not self._dirty:
                self._dirty = True
                self.changed.notify_all()
            return record

    # Time and rest

    def run(self) -> None:
        """Let the shards do all their work; call it under the lock."""
        if self.fault is not None:
            raise self.fault
        while self._dirty:
            self._dirty, self._worked_ms = False, self.now_ms
            try:
                self.work()
            except BaseException as fault:
                self.fault = fault
                self.changed.notify_all()
                raise

    def touch(self) -> None:
        """Let the shards look, although no record was written."""
        with self.changed:
            self._dirty = True
            self.changed.notify_all()

    def tick(self) -> None:
        """Let every waiting thread of the client look once."""
        with self.changed:
            self.ticks += 1
            self.changed.notify_all()

    def settle(self) -> None:
        """Wait until shards and client have done everything that they can do at this instant.

        The test's own threads are not waited for.

        Raises:
            NotAtRest: a thread of the client was still busy after half a minute.
        """
        give_up = time.monotonic() + REST_S
        with self.changed:
            self.ticks += 1
            self._dirty |= self._worked_ms < self.now_ms
            self.changed.notify_all()
            while True:
                self.run()
                if not any(waiter.is_busy() for waiter in self.waiters) and not self._dirty:
                    return
                left = give_up - time.monotonic()
                if left <= 0:
                    raise NotAtRest(
                        f"a thread of the client was still busy after {REST_S:g} s: does on_refused wait for the test?"
                    )
                self.changed.wait(min(left, _LOOK_S))  # a thread that ends notifies nobody
