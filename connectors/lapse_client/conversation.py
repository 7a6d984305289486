"""A conversation with an entity's shards without a subscription: one command, and its answers."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

from confluent_kafka import Message

from lapse.protocol.answer import Answer
from lapse.protocol.command import Command
from lapse_client.channel import Channel, Fields
from lapse_client.connection import Connection
from lapse_client.shard import Shard

_TICK_S = 0.05


class Conversation:
    """Asks and gets answers; a context manager.

    Args:
        connection: the cluster.
        entity: queue or SOW topic.
        shards: how many it has.
    """

    def __init__(self, connection: Connection, entity: str, shards: int) -> None:
        self._channel: Channel[None] = Channel(connection, [(entity, shards)], self)

    def __enter__(self) -> Conversation:
        self._channel.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._channel.close()

    @property
    def partitions(self) -> range:
        """All shards."""
        return range(len(self._channel.shards))

    def shard_of(self, partition: int) -> int:
        """Which shard has the messages of an underlying partition: the partition's own, or the only one (Q17)."""
        return 0 if len(self.partitions) == 1 else partition

    def ask(self, partitions: Iterable[int], command: Command, timeout_s: float) -> list[Answer]:
        """Send a command to some shards and wait for all answers, as `Channel.ask` does."""
        return self._channel.ask([(self._channel.shards[number], command) for number in partitions], timeout_s)

    def ask_each(self, asked: Iterable[tuple[int, Command]], timeout_s: float) -> list[Answer]:
        """Send each shard a command of its own and wait for all answers."""
        return self._channel.ask([(self._channel.shards[number], command) for number, command in asked], timeout_s)

    def read(self, shard: Shard, message: Message, fields: Fields) -> None:
        """Nothing but answers is expected (from `Channel`)."""

    def received(self, records: list[None]) -> None:
        """Nothing but answers is expected (from `Channel`)."""

    def refused(self, shard: Shard, answer: Answer) -> None:
        """Nothing is sent without waiting for the answer (from `Channel`)."""

    def goes_on_without(self, entity: str) -> bool:
        """No: it is the only one (from `Channel`)."""
        return False

    def taken_over(self, shard: Shard) -> None:
        """Nothing: inquiries are repeated by the channel (from `Channel`)."""

    def tick(self) -> float:
        """Nothing is ever due (from `Channel`)."""
        return _TICK_S

    def full(self) -> bool:
        """Never (from `Channel`)."""
        return False

    def failed(self, error: BaseException) -> None:
        """Those who wait for answers get the error from the channel (from `Channel`)."""
