"""The notes of redriven letters on a compacted topic, so that each letter is sent once (C58).

A note is written in the transaction that sends the letter's message, so that either both exist or neither.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import orjson

from lapse.protocol import header
from lapse.protocol.redrive import REDRIVEN, parse_message_id
from lapse_client.kafka import compacted_topic
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.span import span
from lapse_client.letters.dead_letter import DeadLetter
from lapse_client.letters.unfinished_redrive import PREFIX, UnfinishedRedrive

TOPIC: Final = "lapse.redriven"


class Redriven:
    """The letters that were sent, and how often each message was sent.

    A redriven message that becomes a dead letter again has another letter. All its letters lead back to the first one
    by the message id that a redrive sets. The loop limit counts all of them together.

    Args:
        connection: connection to the cluster.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._first: dict[str, str] = {}
        self._times: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self._unfinished: dict[bytes, UnfinishedRedrive] = {}

    def read(self, *, whole: bool = False) -> Redriven:
        """Read the topic to its end, and return self. If there is no topic, nothing was sent.

        Args:
            whole: whether no note may be missing, so that open transactions are waited for.

        Raises:
            LapseError: the topic cannot be read, or a transaction stays open.
        """
        topics = self._connection.partitions()
        if TOPIC in topics:
            for message in span(self._connection, {TOPIC: topics[TOPIC]}, whole=whole):
                self.take(message.key(), message.value())
        return self

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Apply a record of the topic. A record that is not a note is ignored."""
        if key is not None and key.startswith(PREFIX.encode()):
            self._unfinished.pop(key, None)
            with contextlib.suppress(ValueError):
                self._unfinished[key] = UnfinishedRedrive.parse(value or b"")
            return
        with contextlib.suppress(ValueError, TypeError, KeyError):
            facts: dict[str, Any] = orjson.loads(value or b"{}")
            first, times = facts["first"], facts["times"]
            if isinstance(first, str) and type(times) is int:
                self._take((key or b"").decode(), first, times)

    def unfinished(self, letters: str) -> list[UnfinishedRedrive]:
        """Return the redrives by Spark of a dead-letter topic that have begun and not ended."""
        return [one for one in self._unfinished.values() if one.letters == letters]

    def forget(self, ended: Iterable[UnfinishedRedrive]) -> None:
        """Forget redrives that were ended. Called after Kafka has committed that."""
        for one in ended:
            self._unfinished.pop(one.key, None)

    def make_topic(self) -> None:
        """Create the topic if it is missing.

        Raises:
            KafkaException: the broker refuses.
        """
        compacted_topic.make(self._connection, TOPIC)

    def __contains__(self, letter: object) -> bool:
        """Return whether a letter was sent."""
        return isinstance(letter, DeadLetter) and self.sent(letter) > 0

    def sent(self, letter: DeadLetter) -> int:
        """Return how often this letter was sent."""
        return self._sent[letter_name(letter)]

    def times(self, letter: DeadLetter) -> int:
        """Return how often the letter's message was sent, by this letter or others."""
        return max(self._times[self._first_letter(letter)], letter.redriven_count)

    def note(self, letter: DeadLetter) -> tuple[bytes, bytes]:
        """Return key and value of a note that a letter is sent once more."""
        name, first = letter_name(letter), self._first_letter(letter)
        times = self._sent[name] + 1
        return name.encode(), orjson.dumps({"first": first, "times": times, "letter": str(letter.bookmark)})

    def count(self, letter: DeadLetter) -> None:
        """Count a letter as sent once more. Called after Kafka has committed the note."""
        name = letter_name(letter)
        self._take(name, self._first_letter(letter), self._sent[name] + 1)

    def _take(self, name: str, first: str, times: int) -> None:
        self._times[first] += times - self._sent[name]
        self._sent[name] = times
        self._first[name] = first

    def _first_letter(self, letter: DeadLetter) -> str:
        """Return the name of the first letter of its message."""
        for title, value in letter.headers:
            if title == header.MESSAGE_ID and value is not None and value.startswith(REDRIVEN):
                before = parse_message_id(value.decode("utf-8", "replace"))
                return self._first.get(before, before)
        return letter_name(letter)


def letter_name(letter: DeadLetter) -> str:
    """Return the name of a letter in notes: its id, or its bookmark."""
    return letter.lapse_id or str(letter.bookmark)
