"""Queues over dead-letter topics, at which redriven letters are acknowledged (C75)."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from lapse.protocol.bookmark import Bookmark
from lapse_client.error import LapseError
from lapse_client.kafka.connection import Connection
from lapse_client.letters.dead_letter import DeadLetter
from lapse_client.queue.queue import Queue
from lapse_client.subscriber.settlement import STALE, SettlementResult

log = logging.getLogger("lapse_client")

_TIMEOUT_S: Final = 10.0
_LEASED: Final = "not_holder"
_UNLEASED: Final = "not_leased"
_MOST_NAMED: Final = 500
"""The most offsets in a filter, whose text may have 16,384 characters."""


class LetterQueues:
    """Acknowledges letters at the queues over their topics.

    If a queue does not answer, a warning names it. Its consumers get the letters, although they were redriven.

    Args:
        connection: connection to the cluster.
        readers: names of queues by the topics that they read. A queue with the topic's name is always included.
    """

    def __init__(self, connection: Connection, readers: Mapping[str, Collection[str]] | None = None) -> None:
        self._connection = connection
        self._readers = readers or {}
        self._over: dict[str, list[str]] = {}
        self._untold: set[str] = set()

    def settle(self, letters: Iterable[DeadLetter], *, sent_now: bool = False) -> int:
        """Acknowledge letters at their queues.

        Args:
            letters: letters that were sent back.
            sent_now: whether they were sent just now. Then what a rewind of a queue has brought back of them counts as
                settled, too. What it brings back of letters that were sent long ago is there because somebody asked.

        Returns:
            The number of messages that this call settled.
        """
        places: defaultdict[str, list[Bookmark]] = defaultdict(list)
        for letter in letters:
            for queue in self._queues_reading(letter.bookmark.topic):
                places[queue].append(letter.bookmark)
        reported = {queue: some for queue, some in places.items() if queue not in self._untold}
        return sum(self._settle(queue, bookmarks, sent_now) for queue, bookmarks in reported.items())

    def _settle(self, name: str, bookmarks: Sequence[Bookmark], sent_now: bool) -> int:
        try:
            with Queue(name, connection=self._connection, timeout_s=_TIMEOUT_S) as queue:
                outcomes = queue.acknowledge(bookmarks)
                if sent_now and any(one.result == STALE for one in outcomes):
                    outcomes += _acknowledge_rewound(queue, bookmarks)
                # Under `strict` nobody can acknowledge what nobody holds.
                unleased = [each for one in outcomes if one.result == _UNLEASED for each in one.messages]
                purged = sum(queue.purge(filter=text)["removed"] for text in _filters(unleased))
        except LapseError as error:
            self._untold.add(name)
            log.warning("queue %s could not be told which letters were sent back, and still has them: %s", name, error)
            return 0
        if leased := sum(len(one.messages) for one in outcomes if one.result == _LEASED):
            log.warning(
                "%d letters that were sent back are leased at queue %s: their consumers settle them", leased, name
            )
        return purged + sum(len(one.messages) for one in outcomes if one.settled)

    def _queues_reading(self, topic: str) -> list[str]:
        known = self._over.get(topic)
        if known is None:
            there = self._connection.queues()
            known = [name for name in there if name == topic or name in self._readers.get(topic, ())]
            self._over[topic] = known
        return known


def _acknowledge_rewound(queue: Queue, bookmarks: Sequence[Bookmark]) -> list[SettlementResult]:
    """Acknowledge what a rewind has brought back of letters. It has names of its own, with a generation (C61)."""
    there = [one.bookmark for text in _filters(bookmarks) for one in queue.peek(top_n=_MOST_NAMED, filter=text)]
    return queue.acknowledge(there) if there else []


def _filters(bookmarks: Iterable[Bookmark]) -> Iterator[str]:
    """Yield filters that select the messages at bookmarks, of all generations."""
    offsets: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for bookmark in bookmarks:
        offsets[bookmark.topic, bookmark.partition].append(bookmark.log_offset)
    for (topic, partition), some in offsets.items():
        for first in range(0, len(some), _MOST_NAMED):
            named = ", ".join(map(str, some[first : first + _MOST_NAMED]))
            yield f"TOPIC() = '{topic}' AND PARTITION() = {partition} AND OFFSET() IN ({named})"
