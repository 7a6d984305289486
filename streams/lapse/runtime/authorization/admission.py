"""Admission: decodes and checks the records of a commands topic, from clients and other shards (X4, X7)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lapse.core.shard.contract import Subscribed
from lapse.core.shard.retirement import ShardMessage
from lapse.protocol.command import CommandError
from lapse.runtime.authorization.command_authorizer import Admitted, CommandAuthorizer, admit_all, whose
from lapse.runtime.authorization.refusal_log import RefusalLog
from lapse.runtime.kafka.output import Output
from lapse.runtime.shard import shard_message


class Admission:
    """Lets commands and shard messages in, and seals outgoing shard messages.

    Args:
        entity: name of the entity.
        partition: the shard's number.
    """

    def __init__(self, entity: str, partition: int) -> None:
        self._entity = entity
        self._refusals = RefusalLog(f"{entity}, partition {partition}")
        self._authorizer: CommandAuthorizer | None = None

    def guarded(self, authorizer: CommandAuthorizer) -> None:
        """Have an authorizer check all commands (X4). Call this before the first command."""
        self._authorizer = authorizer

    def command(self, record: Any) -> Admitted | CommandError:
        """Decode and check a command; log and return the error if it cannot be decoded or is not allowed."""
        try:
            return admit_all(record) if self._authorizer is None else self._authorizer.read(record)
        except CommandError as error:
            self._refusals.log(whose(record), record.offset, str(error))
            return error

    def shard_message(self, record: Any) -> ShardMessage | None:
        """Decode a message from another shard; log it and return None if it cannot be decoded or trusted."""
        return shard_message.read(self._entity, record, self._authorizer)

    def written(self, messages: Iterable[ShardMessage]) -> list[Output]:
        """Return the records that carry messages to other shards, sealed if users are configured."""
        return shard_message.written(self._entity, messages, self._authorizer)

    def ended(self, subscription: Subscribed) -> str:
        """Return why a subscription that existed at take-over must end; empty if it may stay."""
        if self._authorizer is None:
            return ""
        return self._authorizer.ended(subscription.id, subscription.row_filter)

    def sum_up(self) -> None:
        """Log the number of refusals that were only counted."""
        self._refusals.sum_up()
