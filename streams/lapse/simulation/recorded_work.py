"""The recorded work of consumers: how many there were, and how long each worked on a message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lapse.core.shard.event import EventKind
from lapse.protocol.event import Event
from lapse.runtime.queue.unwritten import Row, take
from lapse.simulation.arrival import Arrival, Arrivals
from lapse.simulation.recording import Recording

_DONE: Final = frozenset({EventKind.ACKNOWLEDGED, EventKind.CANCELLED})

BookmarkKey = tuple[str, int, int]
"""Topic, partition and offset of a message."""


@dataclass(frozen=True, slots=True)
class RecordedWork:
    """The work of consumers.

    Attributes:
        took_ms: how long a consumer worked on each acknowledged or cancelled message, the first time, ms.
        subscribers: the most consumers at once.
        backlog: the most unsettled deliveries of one of them at once.
    """

    took_ms: dict[BookmarkKey, int]
    subscribers: int
    backlog: int


def recorded_arrivals(
    recording: Recording, topics: Sequence[str], since_ms: int | None, until_ms: int | None
) -> Arrivals:
    """Return the messages of underlying topics, with the instants of the log.

    Args:
        recording: the recording with the topics.
        topics: the underlying topics.
        since_ms: leave out earlier messages, ms since the epoch; None for all.
        until_ms: leave out later messages, ms since the epoch; None for all.
    """
    found: list[Arrival] = []
    partitions = recording.partitions()
    for topic in topics:
        for partition in range(partitions.get(topic, 0)):
            latest_ms = 0
            for record in recording.log(topic, partition)[:]:
                latest_ms = max(latest_ms, record.timestamp)  # producers' clocks may go back, the log does not
                if latest_ms >= (since_ms or 0) and (until_ms is None or latest_ms <= until_ms):
                    found.append(Arrival(latest_ms, topic, partition, record))
    return Arrivals(found, max((partitions.get(topic, 0) for topic in topics), default=1))


def recorded_work(deliveries: Iterable[Any], events: Iterable[Event]) -> RecordedWork:
    """Compute the work from the topics of a queue.

    A consumer works on one message at a time. It begins with a delivery when that arrives, or when the one before is
    done.

    Args:
        deliveries: records of the deliveries topic, and of those of users.
        events: the queue's events.
    """
    moments: list[tuple[int, int, Any]] = []
    epochs: dict[tuple[str, int], int] = {}
    for record in deliveries:
        rows: set[Row] = set()
        source = record.topic, record.partition
        epochs[source] = take(record, epochs.get(source, 0), rows)
        moments += [(record.timestamp, 1, row) for row in sorted(rows)]
    moments += [(event.at_ms, 0 if event.event == EventKind.SUBSCRIBED else 2, event) for event in events]
    moments.sort(key=lambda moment: moment[:2])
    collector = _WorkCollector()
    for at_ms, kind, what in moments:
        if kind == 1:
            collector.on_delivery(at_ms, what)
        else:
            collector.on_event(at_ms, what)
    return RecordedWork(collector.took_ms, collector.subscribers, collector.backlog)


class _WorkCollector:
    """Processes deliveries and events in the order of time."""

    def __init__(self) -> None:
        self.took_ms: dict[BookmarkKey, int] = {}
        self.subscribers = self.backlog = 0
        self._subscribed: set[str] = set()
        self._handed: dict[BookmarkKey, tuple[int, str]] = {}
        self._done_ms: dict[str, int] = {}
        self._holds: dict[str, set[BookmarkKey]] = {}

    def on_delivery(self, at_ms: int, row: Row) -> None:
        name, topic, partition, offset, _ = row
        bookmark, consumer = (topic, partition, offset), name.decode("utf-8", "replace")
        self._end_delivery(bookmark)
        self._handed[bookmark] = (at_ms, consumer)
        holds = self._holds.setdefault(consumer, set())
        holds.add(bookmark)
        self.backlog = max(self.backlog, len(holds))

    def on_event(self, at_ms: int, event: Event) -> None:
        if event.event == EventKind.SUBSCRIBED:
            self._subscribed.add(event.subscription)
            self.subscribers = max(self.subscribers, len(self._subscribed))
        elif event.event == EventKind.UNSUBSCRIBED:
            self._subscribed.discard(event.subscription)
        elif event.event == EventKind.DELETED:  # later events are of another queue with this name
            self._subscribed.clear()
        for some in event.messages:
            for offset in range(some.first, some.last + 1):
                bookmark = (some.topic, some.partition, offset)
                handed = self._end_delivery(bookmark)
                if handed is not None and event.event in _DONE:
                    handed_ms, consumer = handed
                    begun_ms = max(handed_ms, self._done_ms.get(consumer, 0))
                    self._done_ms[consumer] = max(at_ms, begun_ms)
                    self.took_ms.setdefault(bookmark, max(0, at_ms - begun_ms))

    def _end_delivery(self, bookmark: BookmarkKey) -> tuple[int, str] | None:
        handed = self._handed.pop(bookmark, None)
        if handed is not None:
            self._holds[handed[1]].discard(bookmark)
        return handed
