"""The permission of a channel's reading thread: what only this thread may do."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from confluent_kafka import Consumer, TopicPartition

from lapse_client.kafka.connection import Connection
from lapse_client.session.shard import Shard


class ChannelThread:
    """Stands for the thread that reads for a channel; a channel makes it, and hands it to its listener's `on_` methods.

    Whoever gets it as an argument is called by that thread. It is not to be kept.

    Args:
        connection: the cluster.
        shards: all shards of the channel; further ones are added here only.
        by_partition: the shard that speaks on a partition of a deliveries topic.
        consumer: what reads the deliveries topics.
    """

    def __init__(
        self,
        connection: Connection,
        shards: list[Shard],
        by_partition: dict[tuple[str, int], Shard],
        consumer: Consumer,
    ) -> None:
        self._connection = connection
        self._shards = shards
        self._by_partition = by_partition
        self._consumer = consumer
        self._thread = threading.get_ident()

    def join(self, entity: str, ends: Sequence[TopicPartition]) -> None:
        """Take in the shards of one more entity, or more shards of one, read from `ends` on."""
        self._check()
        for end in ends:
            shard = Shard(len(self._shards), entity, end.partition)
            self._shards.append(shard)
            self._by_partition[self._connection.deliveries(entity), end.partition] = shard
        self._consumer.incremental_assign(list(ends))

    def leave(self, entity: str) -> list[int]:
        """Go on without an entity that was deleted; returns the numbers of its shards."""
        self._check()
        gone = [shard for shard in self._shards if shard.entity == entity and not shard.gone]
        for shard in gone:
            shard.gone = True
        name = self._connection.deliveries(entity)
        self._consumer.incremental_unassign([TopicPartition(name, shard.partition) for shard in gone])
        return [shard.index for shard in gone]

    def _check(self) -> None:
        if threading.get_ident() != self._thread:
            raise RuntimeError("only the channel's own thread may change what it reads")
