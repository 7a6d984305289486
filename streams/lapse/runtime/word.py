"""Words between the shards of an entity, as records of its commands topic (Q18)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from lapse.core.retirement import Asker, Cause, Retirement, Saying, Verdict, Word
from lapse.protocol import topic
from lapse.protocol.answer import Answer
from lapse.protocol.command import Command, Encoding
from lapse.runtime.doorkeeper import Doorkeeper
from lapse.runtime.producer import Output

logger = logging.getLogger(__name__)

WORD_KEY: Final = b"\x00word"
"""Key of a record that one shard writes for another; clients' commands have any other key, or none."""


def written(entity: str, words: Iterable[Word], doorkeeper: Doorkeeper | None = None) -> list[Output]:
    """The records that carry words; sealed, where users could write some (X4)."""
    commands = topic.commands(entity)
    outputs: list[Output] = []
    for word in words:
        value = word.encode()
        seal = [] if doorkeeper is None else doorkeeper.seal(word.to, value)
        outputs.append(Output(commands, word.to, WORD_KEY, value, seal))
    return outputs


def read(entity: str, record: Any, doorkeeper: Doorkeeper | None = None) -> Word | None:
    """The word in a record; None if there is none that can be read or trusted, which the log tells."""
    if doorkeeper is not None and not doorkeeper.is_sealed(record):
        logger.warning("%s, offset %d: a word that no shard has sealed, or not lately", entity, record.offset)
        return None
    try:
        return Word.decode(record.value)
    except ValueError as error:
        logger.warning("%s, offset %d: %s", entity, record.offset, error)
        return None


def must_arrive(words: Iterable[Word]) -> bool:
    """Whether words have to be safe before the shard goes on: with GONE it writes its last."""
    return any(word.saying is Saying.GONE for word in words)


def asker(command: Command, encoding: Encoding) -> Asker:
    """Who sent a command, so that the answer can come later."""
    silent = command.answer == "none"
    return Asker(command.id, command.subscription, command.client, encoding, silent)


def deleted(entity: str, retirement: Retirement) -> str:
    """What a command to a deleted entity is answered; the word in front is what clients go by."""
    why = "it was idle" if retirement.cause is Cause.IDLE else "by command"
    return f"deleted: {entity} is no more ({why}). `lapse apply` creates it anew; workers then have to be started again"


def answer(verdict: Verdict, partition: int, at_ms: int) -> Answer:
    """The answer to whom asked for a deletion."""
    return Answer(
        id=verdict.asker.command_id,
        command="delete",
        status="error" if verdict.error else "ok",
        error=verdict.error,
        partition=partition,
        at_ms=at_ms,
        counts=dict(verdict.counts),
    )


def encoding(verdict: Verdict) -> Encoding:
    """How that answer is to be written: as the command was."""
    known: dict[str, Encoding] = {"avro": "avro", "confluent": "confluent"}
    return known.get(verdict.asker.encoding, "json")


def refusal(command: Command, error: str, partition: int, at_ms: int) -> Answer:
    """The answer to a command that is not carried out."""
    return Answer(id=command.id, command=command.command, status="error", error=error, partition=partition, at_ms=at_ms)
