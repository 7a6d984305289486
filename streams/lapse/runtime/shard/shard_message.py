"""Messages between the shards of an entity, as records of its commands topic (Q18)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from lapse.core.error_code import ErrorCode, Refusal
from lapse.core.shard.answer import CommandAnswer
from lapse.core.shard.retirement import Asker, Cause, Retirement, ShardMessage, ShardMessageKind, Verdict
from lapse.protocol import topic
from lapse.protocol.command import Command, Encoding
from lapse.runtime.kafka.output import Output
from lapse.runtime.shard.command_authorizer import CommandAuthorizer

logger = logging.getLogger(__name__)

SHARD_MESSAGE_KEY: Final = b"\x00shard"
"""Key of a record that one shard writes for another; clients' commands have any other key, or none."""


def written(
    entity: str, shard_messages: Iterable[ShardMessage], authorizer: CommandAuthorizer | None = None
) -> list[Output]:
    """The records that carry shard messages; sealed, where users could write some (X4)."""
    commands = topic.commands(entity)
    outputs: list[Output] = []
    for message in shard_messages:
        value = message.encode()
        seal = [] if authorizer is None else authorizer.seal(message.to, value)
        outputs.append(Output(commands, message.to, SHARD_MESSAGE_KEY, value, seal))
    return outputs


def read(entity: str, record: Any, authorizer: CommandAuthorizer | None = None) -> ShardMessage | None:
    """The message in a record; None if there is none that can be read or trusted, which the log tells."""
    if authorizer is not None and not authorizer.is_sealed(record):
        logger.warning("%s, offset %d: a message that no shard has sealed, or not lately", entity, record.offset)
        return None
    try:
        return ShardMessage.decode(record.value)
    except ValueError as error:
        logger.warning("%s, offset %d: %s", entity, record.offset, error)
        return None


def must_arrive(shard_messages: Iterable[ShardMessage]) -> bool:
    """Whether shard messages have to be safe before the shard goes on: with GONE it writes its last."""
    return any(message.kind is ShardMessageKind.GONE for message in shard_messages)


def asker(command: Command, encoding: Encoding) -> Asker:
    """Who sent a command, so that the answer can come later."""
    silent = command.answer == "none"
    return Asker(command.id, command.subscription, command.client, encoding, silent)


def deleted(entity: str, retirement: Retirement) -> Refusal:
    """What a command to a deleted entity is answered."""
    why = "it was idle" if retirement.cause is Cause.IDLE else "by command"
    text = f"deleted: {entity} is no more ({why}). `lapse apply` creates it anew, if lapse.toml still has it"
    return Refusal(ErrorCode.DELETED, text)


def answer(verdict: Verdict, at_ms: int) -> CommandAnswer:
    """The answer to whom asked for a deletion."""
    asker = verdict.asker
    counts = tuple(verdict.counts.items())
    return CommandAnswer(asker.command_id, "delete", asker.subscription, at_ms, verdict.refusal, counts)


def encoding(verdict: Verdict) -> Encoding:
    """How that answer is to be written: as the command was."""
    known: dict[str, Encoding] = {"avro": "avro", "confluent": "confluent"}
    return known.get(verdict.asker.encoding, "json")
