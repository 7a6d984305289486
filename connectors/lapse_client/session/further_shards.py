"""Further shards that queues get while a session is open, after their topics got partitions (C81)."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

from confluent_kafka import KafkaException, TopicPartition

from lapse.protocol import topic
from lapse_client.error import LapseError
from lapse_client.kafka.connection import Connection, log_end
from lapse_client.kafka.metadata import METADATA_TIMEOUT_S
from lapse_client.session.channel_thread import ChannelThread
from lapse_client.session.listener import TICK_S, Listener
from lapse_client.session.session import Session

log = logging.getLogger("lapse_client")

_TRIES: Final = 20
_PAUSE_S: Final = 1.0
"""How often further shards are looked for, and the pause between tries: brokers learn of them one by one."""


class FurtherShards:
    """Finds the shards that the queues of a session have got. Only the channel's thread calls its methods.

    Args:
        connection: the cluster.
        session: which is to have them.
    """

    def __init__(self, connection: Connection, session: Session[Any]) -> None:
        self._connection = connection
        self._session = session
        self._sizes: dict[str, int] = {}
        self._found: deque[tuple[str, Sequence[TopicPartition]]] = deque()  # filled by the threads that look

    def told(self, queue: str, shards: int) -> None:
        """A shard says how many there are; those that are not known are looked for, beside what is under way."""
        known = sum(1 for shard in self._session.shards if shard.entity == queue and not shard.gone)
        known = max(known, self._sizes.get(queue, 0))
        if known and shards > known:
            self._sizes[queue] = shards
            name = f"lapse shards of {queue}"
            threading.Thread(target=self._look, args=(queue, range(known, shards)), name=name, daemon=True).start()

    def forget(self, queue: str) -> None:
        """A queue was deleted."""
        self._sizes.pop(queue, None)

    def found(self) -> Iterator[tuple[str, Sequence[TopicPartition]]]:
        """Take out, one queue after the other, where the deliveries of further shards end."""
        while self._found:
            yield self._found.popleft()

    def _look(self, queue: str, shards: range) -> None:
        producer, _ = self._session.channel.endpoints
        for _ in range(_TRIES):
            if not self._session.lifecycle.is_open:
                return
            consumer = self._connection.consumer()
            try:
                producer.list_topics(topic.commands(queue), timeout=METADATA_TIMEOUT_S)  # it refuses what it knows not
                deliveries = self._connection.deliveries(queue)
                self._found.append((queue, [log_end(consumer, deliveries, shard) for shard in shards]))
            except (LapseError, KafkaException) as error:
                log.info("%s: its shards from %d on cannot be read yet: %s", queue, shards.start, error)
                time.sleep(_PAUSE_S)
            else:
                return
            finally:
                consumer.close()
        log.warning("%s: its shards from %d on are not read; open it again", queue, shards.start)


class GrowingListener(Listener[None]):
    """Listens for nothing but further shards of the queues that are asked.

    Args:
        connection: the cluster.
        session: by which they are asked.
    """

    def __init__(self, connection: Connection, session: Session[None]) -> None:
        self._further = FurtherShards(connection, session)

    def on_size(self, entity: str, shards: int) -> None:
        """See whether there are more than are asked."""
        self._further.told(entity, shards)

    def on_tick(self, thread: ChannelThread) -> float:
        """Have those asked as well that were found."""
        for queue, ends in self._further.found():
            thread.join(queue, ends)
            self.joined(queue, len(ends))
        return TICK_S

    def joined(self, queue: str, count: int) -> None:
        """Add a number of shards of a queue behind the session's last."""
