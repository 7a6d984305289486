"""The queues that a subscription is to: named at the start, joined later, or deleted meanwhile (Q3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from confluent_kafka import TopicPartition

from lapse_client.kafka.clock import elapsed_ms

CLEANUP_MS: Final = 10_000.0
"""How long the topics of a deleted queue may still be there; it is not joined again before."""


class JoinedQueues:
    """Names of queues. Every method may be called from any thread; queues are taken in by the channel's thread.

    Args:
        names: those that are subscribed to from the start.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names)
        self._left_at_ms: dict[str, float] = {}
        self._waiting: deque[tuple[str, Sequence[TopicPartition]]] = deque()

    def may_join(self, queue: str) -> bool:
        """Whether a queue is new; one that was deleted is, once its topics had the time to go."""
        left_at_ms = self._left_at_ms.get(queue)
        return queue not in self._names and (left_at_ms is None or elapsed_ms() - left_at_ms >= CLEANUP_MS)

    def join(self, queue: str, ends: Sequence[TopicPartition]) -> None:
        """Ask for one more queue, whose deliveries end there."""
        if queue not in self._names:
            self._names.add(queue)
            self._waiting.append((queue, ends))

    def waiting(self) -> Iterator[tuple[str, Sequence[TopicPartition]]]:
        """Remove and yield the queues that are to be joined, one by one."""
        while self._waiting:
            yield self._waiting.popleft()

    def left(self, queue: str) -> None:
        """A queue was deleted."""
        self._names.discard(queue)
        self._left_at_ms[queue] = elapsed_ms()
