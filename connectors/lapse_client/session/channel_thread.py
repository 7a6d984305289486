"""The operations of a channel's reading thread. Only this thread adds and removes shards."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from confluent_kafka import Consumer, TopicPartition

from lapse_client.kafka.connection import Connection
from lapse_client.session.shard import Shard


class ChannelThread:
    """Represents the reading thread of a channel. The channel passes it to its listener's `on_` methods.

    A method that gets this argument is called by that thread. It must not keep the object.

    Args:
        connection: the cluster.
        shards: all shards of the channel. Only this class adds shards.
        by_partition: the shard that writes to each partition of a deliveries topic.
        consumer: consumer of the deliveries topics.
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
        """Add shards of an entity, and read their deliveries from the offsets `ends` on."""
        self._check()
        for end in ends:
            shard = Shard(len(self._shards), entity, end.partition)
            self._shards.append(shard)
            self._by_partition[self._connection.deliveries(entity), end.partition] = shard
        self._consumer.incremental_assign(list(ends))

    def leave(self, entity: str) -> list[int]:
        """Stop reading a deleted entity's deliveries; return the numbers of its shards."""
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
