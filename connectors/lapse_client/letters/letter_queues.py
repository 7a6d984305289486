"""Queues over dead-letter topics, at which redriven letters are acknowledged (C75)."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from lapse_client.error import LapseError
from lapse_client.kafka.connection import Connection
from lapse_client.letters.dead_letter import DeadLetter
from lapse_client.queue.queue import Queue

log = logging.getLogger("lapse_client")

_TIMEOUT_S: Final = 10.0
_LEASED: Final = "not_holder"


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

    def settle(self, letters: Iterable[DeadLetter]) -> int:
        """Acknowledge letters at their queues, and return how many this call settled."""
        places: defaultdict[str, list[str]] = defaultdict(list)
        for letter in letters:
            for queue in self._queues_reading(letter.bookmark.topic):
                places[queue].append(str(letter.bookmark))
        return sum(self._settle(queue, bookmarks) for queue, bookmarks in places.items() if queue not in self._untold)

    def _settle(self, name: str, bookmarks: list[str]) -> int:
        try:
            with Queue(name, connection=self._connection, timeout_s=_TIMEOUT_S) as queue:
                outcomes = queue.acknowledge(bookmarks)
        except LapseError as error:
            self._untold.add(name)
            log.warning("queue %s could not be told which letters were sent back, and still has them: %s", name, error)
            return 0
        if leased := sum(len(one.messages) for one in outcomes if one.result == _LEASED):
            log.warning(
                "%d letters that were sent back are leased at queue %s: their consumers settle them", leased, name
            )
        return sum(len(one.messages) for one in outcomes if one.settled)

    def _queues_reading(self, topic: str) -> list[str]:
        known = self._over.get(topic)
        if known is None:
            there = self._connection.queues()
            known = [name for name in there if name == topic or name in self._readers.get(topic, ())]
            self._over[topic] = known
        return known
