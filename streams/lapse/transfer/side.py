"""One side of a transfer: a queue of a deployment, and the commands to its shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from types import TracebackType

from confluent_kafka import TopicPartition

from lapse.protocol.answer import Answer
from lapse.protocol.bookmark import BookmarkRange
from lapse.protocol.command import Command
from lapse_client.error import UnknownEntity
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.log_offsets import log_bounds
from lapse_client.kafka.metadata import METADATA_TIMEOUT_S
from lapse_client.session.conversation import Conversation


class Side:
    """A queue of one deployment; a context manager.

    Args:
        connection: the deployment's cluster.
        queue: name of the queue.
        timeout_s: how long to wait for answers, s.

    Attributes:
        cluster: id of the Kafka cluster.
        publish_target: topic for a publish to the queue's name; empty if none is configured.
    """

    def __init__(self, connection: Connection, queue: str, timeout_s: float) -> None:
        self.connection = connection
        self.queue = queue
        self.cluster = ""
        self.publish_target = ""
        self._timeout_s = timeout_s
        self._opened = ExitStack()
        self._conversation: Conversation | None = None

    def __enter__(self) -> Side:
        self.cluster = str(self.connection.admin().list_topics(timeout=METADATA_TIMEOUT_S).cluster_id)
        try:
            shards = self.connection.shards("queue", self.queue)
        except UnknownEntity as error:
            error.args = (f"{self.connection.bootstrap_servers}: {error}",)
            raise
        self._conversation = self._opened.enter_context(Conversation(self.connection, self.queue, shards))
        (answer,) = self._conversation.ask([0], Command(command="depth"), self._timeout_s)
        self.publish_target = answer.publish_target
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._opened.close()

    @property
    def shards(self) -> list[int]:
        """The shards that have messages: all, or the single one of a queue in total order."""
        assert self._conversation is not None
        return list(self._conversation.partitions)

    @property
    def name(self) -> str:
        """The queue and its cluster, for people and for the shards."""
        return f"{self.queue} at {self.cluster}"

    def shards_of(self, partition: int) -> list[int]:
        """Return the shards that may have messages of an underlying partition, first the one that reads it (C81)."""
        assert self._conversation is not None
        return self._conversation.shards_of(partition)

    def has_lost(self, records: Iterable[BookmarkRange]) -> bool:
        """Return whether the topics have none of some records: they were deleted since, and perhaps created again."""
        topics, consumer = self.connection.partitions(), self.connection.consumer()
        try:
            for one in records:
                if one.partition < topics.get(one.topic, 0):
                    _, end = log_bounds(consumer, TopicPartition(one.topic, one.partition))
                    if one.first < end:
                        return False
        finally:
            consumer.close()
        return True

    def ask(self, command: Command) -> dict[int, Answer]:
        """Send the same command to every shard; return answers by shard."""
        return self.ask_each(dict.fromkeys(self.shards, command))

    def ask_each(self, commands: Mapping[int, Command] | Iterable[tuple[int, Command]]) -> dict[int, Answer]:
        """Send each shard a command; return answers by shard.

        Raises:
            CommandFailed: a shard refused.
            AnswerTimeout: a shard did not answer in time.
        """
        assert self._conversation is not None
        asked = dict(commands)
        answers = self._conversation.ask_each(asked.items(), self._timeout_s)
        return dict(zip(asked, answers, strict=True))
