"""What shards of both kinds write alike: events and answers, and to whom (X2, X4, D4)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from lapse.core.shard.answer import CommandAnswer
from lapse.protocol import answer as answers
from lapse.protocol import event as events
from lapse.protocol import header, topic
from lapse.protocol.answer import Answer
from lapse.protocol.command import Encoding
from lapse.protocol.event import Event
from lapse.runtime.kafka.producer import Output
from lapse.runtime.shard.command_authorizer import parted


class ShardOutput:
    """Writes what a shard has to tell.

    Args:
        entity: the queue or SOW topic.
        partition: the shard.
        epoch: the epoch.
        dead_letter_topic: where letters go; empty = nowhere.
        dead_letter_partitions: how many partitions that topic has (C27).
    """

    def __init__(
        self, entity: str, partition: int, epoch: int, dead_letter_topic: str, dead_letter_partitions: int
    ) -> None:
        self._entity = entity
        self._partition = partition
        self._epoch = epoch
        self._epoch_bytes = b"%d" % epoch
        self._letters = dead_letter_topic
        self._letter_partitions = max(1, dead_letter_partitions)
        self._events = topic.events(entity)
        self._deliveries = topic.deliveries(entity)
        self.users: Collection[str] | None = None
        """Users who have topics of their own; names begin with theirs then. None = there are none (X4)."""

    def answer(self, answer: CommandAnswer, encoding: Encoding) -> Output:
        """An answer to a command, encoded as the command was (X2)."""
        to, command_id = self.address(answer.id)
        subscription = self.address(answer.subscription)[1]
        facts: dict[str, Any] = dict(answer.facts)
        told = Answer(
            id=command_id,
            command=answer.command,
            status="error" if answer.error else "ok",
            error=answer.error,
            code=answer.code,
            partition=self._partition,
            at_ms=answer.at_ms,
            counts=dict(answer.counts),
            **facts,
        )
        headers = [
            (header.KIND, b"answer"),
            (header.SUBSCRIPTION, subscription.encode()),
            (header.COMMAND_ID, command_id.encode()),
            (header.EPOCH, self._epoch_bytes),
        ]
        return Output(to, self._partition, None, answers.encode(told, encoding), headers)

    def address(self, name: str) -> tuple[str, str]:
        """The topic on which a name is spoken to, and what it is called there."""
        if self.users is None:
            return self._deliveries, name
        user, own = parted(name)
        return topic.deliveries(self._entity, user if user in self.users else ""), own

    def _event(self, event: Event) -> Output:
        """An event on its topic; those of one key stay in order."""
        return Output(self._events, self._partition, event.key, events.encode(event), [])
