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
from lapse.runtime.authorization.command_authorizer import CommandAuthorizer
from lapse.runtime.kafka.output import Output

logger = logging.getLogger(__name__)

SHARD_MESSAGE_KEY: Final = b"\x00shard"
"""Key of a record that one shard writes for another. A client's command has another key, or none."""


def written(
    entity: str, shard_messages: Iterable[ShardMessage], authorizer: CommandAuthorizer | None = None
) -> list[Output]:
    """Return the records that carry shard messages, sealed if users are configured (X4)."""
    commands = topic.commands(entity)
    outputs: list[Output] = []
    for message in shard_messages:
        value = message.encode()
        seal = [] if authorizer is None else authorizer.seal(message.to, value)
        outputs.append(Output(commands, message.to, SHARD_MESSAGE_KEY, value, seal))
    return outputs


def read(entity: str, record: Any, authorizer: CommandAuthorizer | None = None) -> ShardMessage | None:
    """Decode the shard message in a record; log it and return None if it cannot be decoded or trusted."""
    if authorizer is not None and not authorizer.is_sealed(record):
        logger.warning("%s, offset %d: a message that no shard has sealed, or not lately", entity, record.offset)
        return None
    try:
        return ShardMessage.decode(record.value)
    except ValueError as error:
        logger.warning("%s, offset %d: %s", entity, record.offset, error)
        return None


def must_arrive(shard_messages: Iterable[ShardMessage]) -> bool:
    """Return whether shard messages must be safe before the shard goes on: `GONE` is its last record."""
    return any(message.kind is ShardMessageKind.GONE for message in shard_messages)


def asker(command: Command, encoding: Encoding) -> Asker:
    """Return the sender of a command, so that it can be answered later."""
    silent = command.answer == "none"
    return Asker(command.id, command.subscription, command.client, encoding, silent)


def deleted(entity: str, retirement: Retirement) -> Refusal:
    """Return the refusal of a command to a deleted entity."""
    why = "it was idle" if retirement.cause is Cause.IDLE else "by command"
    text = f"deleted: {entity} is no more ({why}). `lapse apply` creates it anew, if lapse.toml still has it"
    return Refusal(ErrorCode.DELETED, text)


def answer(verdict: Verdict, at_ms: int) -> CommandAnswer:
    """Return the answer to a `delete` command."""
    asker = verdict.asker
    counts = tuple(verdict.counts.items())
    return CommandAnswer(asker.command_id, "delete", asker.subscription, at_ms, verdict.refusal, counts)


def encoding(verdict: Verdict) -> Encoding:
    """Return the encoding of that answer: the same as that of its command."""
    known: dict[str, Encoding] = {"avro": "avro", "confluent": "confluent"}
    return known.get(verdict.asker.encoding, "json")
