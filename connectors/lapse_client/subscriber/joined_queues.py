"""The queues of a subscription: named at the start, joined later, or deleted meanwhile (Q3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from confluent_kafka import TopicPartition

from lapse_client.kafka.clock import elapsed_ms

CLEANUP_MS: Final = 10_000.0
"""How long the topics of a deleted queue may still exist, in ms. The queue is not joined again before."""


class JoinedQueues:
    """The names of a subscription's queues. Every method may be called from any thread.

    Args:
        names: the queues that are subscribed to from the start.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names)
        self._left_at_ms: dict[str, float] = {}
        self._waiting: deque[tuple[str, Sequence[TopicPartition]]] = deque()

    def may_join(self, queue: str) -> bool:
        """Return whether a queue is new, or was deleted at least `CLEANUP_MS` ago."""
        left_at_ms = self._left_at_ms.get(queue)
        return queue not in self._names and (left_at_ms is None or elapsed_ms() - left_at_ms >= CLEANUP_MS)

    def join(self, queue: str, ends: Sequence[TopicPartition]) -> None:
        """Have the channel's thread join a queue, whose deliveries are read from the offsets `ends` on."""
        if queue not in self._names:
            self._names.add(queue)
            self._waiting.append((queue, ends))

    def waiting(self) -> Iterator[tuple[str, Sequence[TopicPartition]]]:
        """Remove and yield the queues that are to be joined, one by one."""
        while self._waiting:
            yield self._waiting.popleft()

    def remove(self, queue: str) -> None:
        """Remove a deleted queue."""
        self._names.discard(queue)
        self._left_at_ms[queue] = elapsed_ms()
