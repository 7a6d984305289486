"""Redrives letters, in transactions with the records that note it. Letters that Kafka refuses are left out (D5)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from lapse_client.error import LapseError, PublishFailed
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.fault import FENCED, LACKS_RIGHT, PURGED, flushed
from lapse_client.kafka.produced import produce
from lapse_client.letters.letter_queues import LetterQueues
from lapse_client.letters.redrive_line import Line
from lapse_client.letters.redriven import TOPIC, Redriven
from lapse_client.letters.unfinished_redrive import UnfinishedRedrive

_FLUSH_S: Final = 60.0
_CONTROL_S: Final = 30.0
_LOOK_S: Final = 0.5
_NO_ANSWER: Final = "no answer in time"
_OPTIONS: Final = {
    "transaction.timeout.ms": int(_FLUSH_S * 1000),
    "message.max.bytes": 1_000_000_000,  # the topic's own limit decides
}

_OF_THE_LETTER: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
    }
)
"""Errors that concern one letter only. The other letters are still sent."""


class LetterSender:
    """Sends the letters of a plan, in one transaction after the other.

    Args:
        connection: connection to the cluster.
        redriven: notes the letters that are sent.
        queues: acknowledges letters that are sent (C75).
        sent: called with each line, and with an empty text if its letter is committed, else with the error.
        letters: the dead-letter topic of the letters. Of two senders for one topic the later one fences the earlier one
            (C58); senders for different topics do not disturb each other.

    Attributes:
        queues: see above.
        untaken: letters that Kafka refused, with its errors.

    Raises:
        KafkaException: Kafka cannot be reached.
    """

    def __init__(
        self,
        connection: Connection,
        redriven: Redriven,
        queues: LetterQueues,
        sent: Callable[[Line, str], None],
        *,
        letters: str,
    ) -> None:
        self.untaken: list[tuple[Line, KafkaError]] = []
        self.queues = queues
        self._connection = connection
        self._redriven = redriven
        self._sent = sent
        self._letters = letters
        self._producer = self._opened()

    def send(self, lines: Sequence[Line]) -> int:
        """Send letters in one transaction. If Kafka refuses some, find these by halving, and send the others.

        Returns:
            The number of letters that were sent.

        Raises:
            PublishFailed: the transaction failed for another reason than a single letter.
            KafkaException: the transaction could not be begun or committed.
        """
        if not lines:
            return 0
        try:
            failures = self._commit(lines)
            if failures:
                del self._producer  # its next transaction would fail: this one left a gap in the sequence numbers
                self._producer = self._opened()
        except PublishFailed:
            raise  # each line has the reason
        except (KafkaException, LapseError) as error:
            self._note_outcome(lines, f"not sent: {error.args[0]}")
            raise
        if not failures:
            self._note_outcome(lines, "")
            self.queues.settle((line.letter for line in lines), sent_now=True)
            return len(lines)
        if len(lines) > 1:
            half = len(lines) // 2
            try:
                sent = self.send(lines[:half])
            except (KafkaException, LapseError) as error:
                self._note_outcome(lines[half:], f"not sent, for others could not be: {error.args[0]}")
                raise
            return sent + self.send(lines[half:])
        self._sent(lines[0], str(failures[0][1]))
        self.untaken += failures
        return 0

    def _note_outcome(self, lines: Sequence[Line], text: str) -> None:
        for line in lines:
            self._sent(line, text)

    def end(self, unfinished: Sequence[UnfinishedRedrive]) -> None:
        """Note that redrives by Spark have ended, which were killed or lost.

        Raises:
            KafkaException: the note could not be committed.
        """
        if unfinished:
            commit_notes(self._producer, [(one.key, None) for one in unfinished])
            self._redriven.forget(unfinished)

    def _opened(self) -> Producer:
        return open_producer(self._connection, self._letters)

    def _commit(self, lines: Sequence[Line]) -> list[tuple[Line, KafkaError]]:
        """Send letters, and the notes that they are sent, in one transaction.

        Returns:
            The letters that Kafka refused, with its errors. If there are any, the transaction is aborted.
        """
        producer, failures = self._producer, list[tuple[Line, KafkaError]]()

        def reported(line: Line) -> Callable[[KafkaError | None, Message], None]:
            def report(error: KafkaError | None, _: Message) -> None:
                if error is not None:
                    failures.append((line, error))

            return report

        producer.begin_transaction()
        with _leave_on_refusal():
            for line in lines:
                options: dict[str, Any] = {} if line.partition is None else {"partition": line.partition}
                letter, report = line.letter, reported(line)
                options |= {"headers": list(line.headers), "on_delivery": report}
                produce(producer, line.topic, letter.value, letter.key, **options)
                key, value = self._redriven.note(letter)
                produce(producer, TOPIC, value, key)
        give_up = time.monotonic() + _FLUSH_S
        while (unsent := flushed(producer, _LOOK_S)) and not failures and time.monotonic() < give_up:
            pass  # after a failure nothing more of the transaction is sent
        if failures or unsent:
            first: Line = failures[0][0] if failures else lines[0]
            cause: object = _cause(producer, failures[0][1]) if failures else _NO_ANSWER
            with suppress(KafkaException):  # a broker that let nothing in refuses to abort it; the failure counts
                producer.abort_transaction(_CONTROL_S)
            if untaken := [(line, error) for line, error in failures if error.code() in _OF_THE_LETTER]:
                return untaken
            if isinstance(cause, KafkaError) and cause.code() in LACKS_RIGHT:  # Kafka does not tell to which topic
                self._connection.check_allowed({TOPIC, *(line.topic for line in lines)}, "Write")
            if isinstance(cause, KafkaError) and cause.code() in FENCED:
                raise KafkaException(cause)
            self._note_outcome(lines, f"not sent, for another one was not taken: {cause}")
            raise PublishFailed(first.topic, first.letter.key, cause, len(lines))
        producer.commit_transaction(_FLUSH_S)
        for line in lines:
            self._redriven.count(line.letter)
        return []


def open_producer(connection: Connection, letters: str) -> Producer:
    """Return a producer for redrives of a dead-letter topic, and end all others of that topic (C58).

    Raises:
        KafkaException: Kafka cannot be reached, or refuses.
    """
    producer = connection.producer(**{"transactional.id": f"{TOPIC}.{letters}"}, **_OPTIONS)
    producer.init_transactions(_CONTROL_S)
    return producer


def commit_notes(producer: Producer, notes: Sequence[tuple[bytes, bytes | None]]) -> None:
    """Write notes, as keys and values, in one transaction.

    Raises:
        KafkaException: another producer has taken over, or the transaction failed.
    """
    producer.begin_transaction()
    for key, value in notes:
        produce(producer, TOPIC, value, key)
    producer.commit_transaction(_FLUSH_S)


def _cause(producer: Producer, failure: KafkaError) -> KafkaError:
    """Return why a transaction failed. Reports of records that were purged then do not tell, and its commit does."""
    if failure.code() in PURGED:
        try:
            producer.commit_transaction(_CONTROL_S)
        except KafkaException as error:
            return error.args[0]  # type: ignore[no-any-return]
    return failure


@contextmanager
def _leave_on_refusal() -> Iterator[None]:
    """Leave the block quietly if a record has failed: the transaction takes no more, and the report has the cause."""
    try:
        yield
    except KafkaException as error:
        if error.args[0].code() != KafkaError._STATE:
            raise
