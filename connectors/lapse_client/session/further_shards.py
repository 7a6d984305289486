"""New shards that queues get while a session is open, because their topics got more partitions (C81)."""

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
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.log_offsets import log_end
from lapse_client.kafka.metadata import METADATA_TIMEOUT_S
from lapse_client.session.channel_thread import ChannelThread
from lapse_client.session.listener import TICK_S, Listener
from lapse_client.session.session import Session

log = logging.getLogger("lapse_client")

_TRIES: Final = 20
_PAUSE_S: Final = 1.0
"""Number of tries to find new shards, and the pause between them, in seconds: brokers learn of them one by one."""


class FurtherShards:
    """Finds new shards of the queues of a session. Only the channel's thread calls its methods.

    Args:
        connection: connection to the cluster.
        session: the session that the new shards join.
    """

    def __init__(self, connection: Connection, session: Session[Any]) -> None:
        self._connection = connection
        self._session = session
        self._sizes: dict[str, int] = {}
        self._found: deque[tuple[str, Sequence[TopicPartition]]] = deque()  # filled by the threads that run `_look`

    def note_size(self, queue: str, shards: int) -> None:
        """Take a queue's number of shards from a shard's record, and look for unknown ones."""
        known = sum(1 for shard in self._session.shards if shard.entity == queue and not shard.gone)
        known = max(known, self._sizes.get(queue, 0))
        if known and shards > known:
            self._sizes[queue] = shards
            name = f"lapse shards of {queue}"
            threading.Thread(target=self._look, args=(queue, range(known, shards)), name=name, daemon=True).start()

    def forget(self, queue: str) -> None:
        """Forget the number of shards of a deleted queue."""
        self._sizes.pop(queue, None)

    def found(self) -> Iterator[tuple[str, Sequence[TopicPartition]]]:
        """Remove and yield each queue whose new shards were found, with the ends of their deliveries."""
        while self._found:
            yield self._found.popleft()

    def _look(self, queue: str, shards: range) -> None:
        producer, _ = self._session.channel.endpoints
        for _ in range(_TRIES):
            if not self._session.lifecycle.is_open:
                return
            consumer = self._connection.consumer()
            try:
                producer.list_topics(topic.commands(queue), timeout=METADATA_TIMEOUT_S)  # it refuses unknown partitions
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
    """Listens only for new shards of the queues of a session without a subscription.

    Args:
        connection: connection to the cluster.
        session: the session that asks these queues.
    """

    def __init__(self, connection: Connection, session: Session[None]) -> None:
        self._further = FurtherShards(connection, session)

    def on_size(self, entity: str, shards: int) -> None:
        """Look for new shards if the number has grown."""
        self._further.note_size(entity, shards)

    def on_tick(self, thread: ChannelThread) -> float:
        """Add the new shards that were found to the session."""
        for queue, ends in self._further.found():
            thread.join(queue, ends)
            self.joined(queue, len(ends))
        return TICK_S

    def joined(self, queue: str, count: int) -> None:
        """Handle `count` new shards of a queue, which come after the session's last shard."""
