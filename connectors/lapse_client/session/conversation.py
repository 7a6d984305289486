"""A conversation with an entity's shards without a subscription: one command, and its answers."""

from __future__ import annotations

from collections.abc import Iterable

from lapse.protocol.answer import Answer
from lapse.protocol.command import Command
from lapse_client.kafka.connection import Connection
from lapse_client.session.client import Client
from lapse_client.session.further_shards import GrowingListener
from lapse_client.session.session import Session


class Conversation(Client[None]):
    """Sends commands and waits for their answers; a context manager.

    Args:
        connection: connection to the cluster.
        entity: name of the queue or SOW topic.
        shards: how many shards it has.
    """

    def __init__(self, connection: Connection, entity: str, shards: int) -> None:
        super().__init__(f"the conversation with {entity}", connection, 0.0)
        self._entities = [(entity, shards)]

    @property
    def partitions(self) -> range:
        """The numbers of all shards, including those that a queue got since (C81)."""
        return self._live().partitions

    def shards_of(self, partition: int) -> list[int]:
        """Return the shards that may have messages of an underlying partition, first the one that reads it (C81)."""
        return self._live().shards_of(partition)

    def ask(self, partitions: Iterable[int], command: Command, timeout_s: float) -> list[Answer]:
        """Send a command to some shards and wait for all answers, as `CommandSender.ask` does."""
        return self._live().ask(partitions, command, timeout_s)

    def ask_each(self, asked: Iterable[tuple[int, Command]], timeout_s: float) -> list[Answer]:
        """Send each shard a command of its own and wait for all answers."""
        return self._live().ask_each(asked, timeout_s)

    def _open(self) -> None:
        self._session = Session(self._connection, self._entities, self._lifecycle)
        self._session.open(GrowingListener(self._connection, self._session), self._timeout_s)
