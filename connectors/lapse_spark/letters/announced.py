"""Announces which letters a redrive is about to send, so that no other one sends them meanwhile (C58).

`lapse dlq redrive` sends in transactions, and of two commands with one dead-letter topic the later one ends the earlier
one. A job begins to send as such a command does: it ends the commands that are sending, and looks for what they have
sent since it read the notes. Then it notes that it has begun. As long as that note is there, commands and other jobs
refuse to send letters of that topic.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final

import orjson
from confluent_kafka import KafkaException, Producer, TopicPartition

from lapse.protocol.bookmark import Bookmark
from lapse_client import Connection
from lapse_client.kafka.fault import FENCED
from lapse_client.kafka.log_offsets import log_bounds
from lapse_client.kafka.span import span
from lapse_client.letters import redrive, unfinished_redrive
from lapse_client.letters.letter_sender import commit_notes, open_producer
from lapse_client.letters.redriven import TOPIC, Redriven
from lapse_client.letters.unfinished_redrive import UnfinishedRedrive
from lapse_spark.stream.output import Output

_FILE: Final = "audit.json"
"""The file with the id of an audit, beside its tables."""


class Overtaken(Exception):
    """Another redrive has sent letters of the same topics since the notes were read."""


class AnnouncedRedrive:
    """A redrive by Spark, which announces itself on `lapse.redriven`.

    Args:
        connection: connection to the cluster, of lapse's own client.
        audit: id of the job's directory.
        directory: the job's directory.
        begun_at_ms: the instant of the run, ms since the epoch.

    Raises:
        LapseError: the cluster cannot be reached.
    """

    def __init__(self, connection: Connection, audit: str, directory: str, begun_at_ms: int) -> None:
        self._connection = connection
        self._audit, self._directory, self._begun_at_ms = audit, directory, begun_at_ms
        self._read_to = _end(connection)
        self._own: dict[str, UnfinishedRedrive] = {}
        self._unfinished = frozenset[str]()
        self._others: list[UnfinishedRedrive] = []

    def take(self, noted: Sequence[UnfinishedRedrive]) -> None:
        """Take in the redrives that had begun and not ended when the notes were read."""
        self._own = {one.letters: one for one in noted if one.audit == self._audit}
        self._unfinished = frozenset(self._own)
        self._others = [one for one in noted if one.audit != self._audit]

    @property
    def unfinished(self) -> Collection[str]:
        """The dead-letter topics of earlier runs with the same directory that have begun and not ended."""
        return self._unfinished

    def begin(self, letters: Collection[str], *, end_unfinished: bool) -> None:
        """Announce that letters of some topics are about to be sent, and end all commands that send them.

        Args:
            letters: the dead-letter topics.
            end_unfinished: whether other redrives by Spark that have not ended count as ended.

        Raises:
            Overtaken: letters of these topics were sent since the notes were read.
            LapseError: another redrive by Spark has not ended, or the cluster cannot be reached.
        """
        if not letters:
            return
        others = [one for one in self._others if one.letters in letters]
        if not end_unfinished:
            unfinished_redrive.refuse(others)
        mine = {
            one: UnfinishedRedrive(
                letters=one, audit=self._audit, directory=self._directory, begun_at_ms=self._begun_at_ms
            )
            for one in sorted(letters)
        }
        try:
            Redriven(self._connection).make_topic()
            producers = {one: open_producer(self._connection, one) for one in mine}
            self._check_not_overtaken(letters)
            for name, note in mine.items():
                ended = [(one.key, None) for one in others if one.letters == name]
                _commit(producers[name], [(note.key, note.value), *ended])
                self._own[name] = note
        except KafkaException as error:
            raise redrive.failure(error, self._connection) from error

    def end(self, letters: Collection[str]) -> None:
        """Take announcements back, after each letter that was sent has a note of its own.

        Args:
            letters: the dead-letter topics.

        Raises:
            LapseError: the cluster cannot be reached, or refuses.
        """
        try:
            for name in sorted(letters):
                note = self._own[name]
                commit_notes(open_producer(self._connection, name), [(note.key, None)])
        except KafkaException as error:
            raise redrive.failure(error, self._connection) from error

    def _check_not_overtaken(self, letters: Collection[str]) -> None:
        """Look for notes of letters that were sent since the notes were read."""
        topics = self._connection.partitions()
        for message in span(self._connection, {TOPIC: topics[TOPIC]}, whole=True, first_offset=self._read_to):
            with suppress(ValueError, TypeError, KeyError):
                facts = orjson.loads(message.value() or b"")
                noted = facts["letters"] if "letters" in facts else Bookmark.parse(facts["letter"]).topic
                if noted in letters:
                    raise Overtaken


def refusal_of_others(noted: Sequence[UnfinishedRedrive], output: Output, letters: Collection[str]) -> str:
    """Return why `begin` would refuse; empty if it would not. Nothing is written.

    Args:
        noted: the redrives that have begun and not ended.
        output: the audit.
        letters: the dead-letter topics.
    """
    own = _known_id(output)
    return unfinished_redrive.refusal(one for one in noted if one.audit != own and one.letters in letters)


def audit_id(output: Output) -> str:
    """Return the id of an audit; give it one if it has none."""
    if known := _known_id(output):
        return known
    made = uuid.uuid4().hex
    output.put_text(_FILE, orjson.dumps({"id": made}).decode())
    return made


def _known_id(output: Output) -> str:
    """Return the id of an audit; empty if it has none."""
    return str(orjson.loads(output.text(_FILE))["id"]) if output.names(".", _FILE) else ""


def _commit(producer: Producer, notes: Sequence[tuple[bytes, bytes | None]]) -> None:
    try:
        commit_notes(producer, notes)
    except KafkaException as error:
        if error.args[0].code() in FENCED:  # a command has begun since
            raise Overtaken from error
        raise


def _end(connection: Connection) -> int:
    """Return the present end of the notes; 0 if there is no topic."""
    if TOPIC not in connection.partitions():
        return 0
    consumer = connection.consumer()
    try:
        return log_bounds(consumer, TopicPartition(TOPIC, 0))[1]
    finally:
        consumer.close()
