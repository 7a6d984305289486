"""Admission: reads and checks the records of a commands topic, from clients and other shards (X4, X7)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lapse.core.shard.contract import Subscribed
from lapse.core.shard.retirement import ShardMessage
from lapse.protocol.command import CommandError
from lapse.runtime.kafka.output import Output
from lapse.runtime.shard import shard_message
from lapse.runtime.shard.command_authorizer import Admitted, CommandAuthorizer, admit_all, whose
from lapse.runtime.shard.refusal_log import RefusalLog


class Admission:
    """Lets commands and shard messages in, and seals those that leave.

    Args:
        entity: whose shard it is.
        partition: the shard.
    """

    def __init__(self, entity: str, partition: int) -> None:
        self._entity = entity
        self._refusals = RefusalLog(f"{entity}, partition {partition}")
        self._authorizer: CommandAuthorizer | None = None

    def guarded(self, authorizer: CommandAuthorizer) -> None:
        """Let users in by an authorizer only; before the first command (X4)."""
        self._authorizer = authorizer

    def command(self, record: Any) -> Admitted | CommandError:
        """Read a command; an error = it cannot be read, or its sender may not give it, which the log tells."""
        try:
            return admit_all(record) if self._authorizer is None else self._authorizer.read(record)
        except CommandError as error:
            self._refusals.tell(whose(record), record.offset, str(error))
            return error

    def shard_message(self, record: Any) -> ShardMessage | None:
        """Read what another shard says; None if it cannot be read or trusted, which the log tells."""
        return shard_message.read(self._entity, record, self._authorizer)

    def written(self, messages: Iterable[ShardMessage]) -> list[Output]:
        """The records that carry messages to other shards; sealed, where users could write some."""
        return shard_message.written(self._entity, messages, self._authorizer)

    def ended(self, subscription: Subscribed) -> str:
        """Why a subscription that was there at a take-over may not stay; empty = it may."""
        if self._authorizer is None:
            return ""
        return self._authorizer.ended(subscription.id, subscription.row_filter)

    def sum_up(self) -> None:
        """Tell the log of refusals that were only counted."""
        self._refusals.sum_up()
