"""Asks the brokers for the ids of topics, and names topics that are deleted while Spark reads them (C42).

Spark waits minutes for the records of a deleted topic, without a word. Then it fails with a timeout of Kafka's client.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from confluent_kafka import KafkaException, TopicCollection

from lapse_client.error import LapseError
from lapse_client.kafka.fault import NOT_THERE
from lapse_spark.connection import Connection

log = logging.getLogger("lapse_spark")

_PATIENCE_S: Final = 2.5
_LOOK_EVERY_S: Final = 2.0

_DELETED: Final = (
    "deleted, or hidden from this user, while it is read: %s. If a batch is reading it, the batch waits some minutes "
    "for the records that it had, and then fails"
)


class TopicIds:
    """The ids of topics, as the brokers tell them to this user.

    Args:
        connection: connection to the cluster. If it has options that only Java's client knows, no topic is found, and
            none is missing.

    Attributes:
        absent: topics that the brokers did not know when they were asked last.
    """

    def __init__(self, connection: Connection) -> None:
        self.absent: frozenset[str] = frozenset()
        self._reported: frozenset[str] = frozenset()
        self._admin: Any = None
        try:
            self._admin = connection.of_lapse().admin()
        except (ValueError, LapseError) as error:
            log.info("deleted and recreated topics are not noticed: %s", error)

    def find(self, names: Collection[str]) -> dict[str, str]:
        """Return the ids of those topics that the brokers describe now."""
        self.absent = frozenset()
        if self._admin is None or not names:
            return {}
        found, absent = {}, set()
        asked = self._admin.describe_topics(TopicCollection(sorted(names)), request_timeout=_PATIENCE_S)
        for name, answer in asked.items():
            try:
                found[name] = str(answer.result().topic_id)
            except KafkaException as error:  # or hidden, or no broker answers: the next look may tell
                if error.args[0].code() in NOT_THERE:
                    absent.add(name)
        self.absent = frozenset(absent)
        return found

    def matching(self, pattern: str) -> list[str]:
        """Return the names of the present topics that a regular expression matches; an empty one matches none."""
        if self._admin is None or not pattern:
            return []
        with suppress(re.error, KafkaException):
            matches = re.compile(pattern).fullmatch
            return [name for name in self._admin.list_topics(timeout=_PATIENCE_S).topics if matches(name)]
        return []

    def report(self, before: frozenset[str]) -> None:
        """Log topics that are missing twice in a row, each once, because one broker may not know a topic for a moment.

        Args:
            before: topics that were missing at the look before.
        """
        missing = self.absent & before
        if missing - self._reported:
            log.warning(_DELETED, ", ".join(sorted(missing - self._reported)))
        self._reported = missing


@contextmanager
def named_if_deleted(connection: Connection, names: Collection[str] = (), *, pattern: str = "") -> Iterator[None]:
    """Log within seconds which of some topics are deleted while the block reads them.

    Args:
        connection: connection to the cluster.
        names: the topics. Those that are missing from the beginning are not named.
        pattern: Java regular expression of further topics; empty = none. One that only Java understands finds none.
    """
    ended = threading.Event()

    def look() -> None:
        ids = TopicIds(connection)
        there = ids.find({*names, *ids.matching(pattern)})
        while there and not ended.wait(_LOOK_EVERY_S):
            before = ids.absent
            ids.find(there)
            ids.report(before)

    thread = threading.Thread(target=look, name="lapse-topics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_PATIENCE_S)
