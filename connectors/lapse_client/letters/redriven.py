"""Redriven letters, remembered on a compacted topic, so that each letter is sent once (C58).

A record of the topic is written in the transaction that sends the letter's message: either both are there, or neither.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any, Final

import orjson

from lapse.protocol import header
from lapse.protocol.redrive import REDRIVEN, lapse_id_of
from lapse_client.kafka import compacted_topic
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.span import span
from lapse_client.letters.dead_letter import DeadLetter

TOPIC: Final = "lapse.redriven"


class Redriven:
    """The letters that were sent, and how often each message was.

    A message that is redriven and dies again has another letter. All its letters lead back to the first one, by the
    message id that the redrive gave; the loop limit counts what was sent of all of them.

    Args:
        connection: the cluster.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._first: dict[str, str] = {}
        self._times: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()

    def read(self) -> Redriven:
        """Read the topic to its end; where there is none, nothing was sent.

        Raises:
            LapseError: it cannot be read.
        """
        topics = self._connection.partitions()
        if TOPIC in topics:
            for message in span(self._connection, {TOPIC: topics[TOPIC]}):
                self.take(message.key(), message.value())
        return self

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Take in a record of the topic; what is no note of a redrive says nothing."""
        with contextlib.suppress(ValueError, TypeError, KeyError):
            told: dict[str, Any] = orjson.loads(value or b"{}")
            first, times = told["first"], told["times"]
            if isinstance(first, str) and type(times) is int:
                self._take((key or b"").decode(), first, times)

    def make_topic(self) -> None:
        """Create the topic where it is missing.

        Raises:
            KafkaException: the broker refuses.
        """
        compacted_topic.make(self._connection, TOPIC)

    def __contains__(self, letter: object) -> bool:
        """Whether a letter was sent."""
        return isinstance(letter, DeadLetter) and self.sent(letter) > 0

    def sent(self, letter: DeadLetter) -> int:
        """How often this letter was sent."""
        return self._sent[name_of(letter)]

    def times(self, letter: DeadLetter) -> int:
        """How often the letter's message was sent, by this letter or another one."""
        return max(self._times[self._first_of(letter)], letter.redriven_count)

    def note(self, letter: DeadLetter) -> tuple[bytes, bytes]:
        """Key and value of the record which says that a letter was sent once more."""
        name, first = name_of(letter), self._first_of(letter)
        times = self._sent[name] + 1
        return name.encode(), orjson.dumps({"first": first, "times": times, "letter": str(letter.bookmark)})

    def count(self, letter: DeadLetter) -> None:
        """Count a letter as sent once more, after Kafka has the record that remembers it."""
        name = name_of(letter)
        self._take(name, self._first_of(letter), self._sent[name] + 1)

    def _take(self, name: str, first: str, times: int) -> None:
        self._times[first] += times - self._sent[name]
        self._sent[name] = times
        self._first[name] = first

    def _first_of(self, letter: DeadLetter) -> str:
        """The first letter of its message."""
        for title, value in letter.headers:
            if title == header.MESSAGE_ID and value is not None and value.startswith(REDRIVEN):
                before = lapse_id_of(value.decode("utf-8", "replace"))
                return self._first.get(before, before)
        return name_of(letter)


def name_of(letter: DeadLetter) -> str:
    """What a letter is remembered by: its id, or where it stands."""
    return letter.lapse_id or str(letter.bookmark)
