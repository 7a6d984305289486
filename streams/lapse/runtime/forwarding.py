"""Forwarding: a queue hands everything it can deliver to another topic or queue (Q21, C38).

To the shard, the forwarder is a subscription of its own. What it is handed is written to the target and acknowledged in
the same step: the target has it before the journal says that it left. A crash in between forwards once more, with the
same `lapse-message-id`, so that the target drops the repeat (X6).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aiokafka.partitioner import murmur2

from lapse.core.lifetime import NAMES, NEVER
from lapse.core.queue import settlement
from lapse.core.queue.settlement import Claim
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Delivery, Step
from lapse.protocol import header
from lapse.runtime.producer import Output

FORWARDER: Final = "lapse-forward"
"""Name of the subscription."""

_BACKLOG: Final = 4_096


class Forwarding:
    """Forwards the messages of one shard.

    Args:
        queue: where they come from.
        topic: where they go.
        partitions: how many partitions that topic has.
    """

    def __init__(self, queue: str, topic: str, partitions: int) -> None:
        self._queue = queue
        self._topic = topic
        self._partitions = max(1, partitions)

    def begin(self, shard: QueueShard, now_ms: int, step: Step) -> None:
        """Subscribe, for good."""
        shard.subscribe(FORWARDER, f"forwards to {self._topic}", _BACKLOG, NEVER, "", now_ms, step)

    def outputs(self, delivery: Delivery, records: Sequence[Any | None]) -> list[Output]:
        """What the target gets: key, value and headers as they were, the deadline to the millisecond, counts anew."""
        messages = delivery.messages
        outputs: list[Output] = []
        for at, record in enumerate(records):
            if record is None:
                continue
            headers = [(name, value) for name, value in record.headers if name not in NAMES and name != header.TRANSFER]
            deadline_ms = NEVER if messages.deadlines_ms is None else int(messages.deadlines_ms[at])
            if deadline_ms == NEVER:
                headers.append((header.TTL_MS, b"0"))
            else:
                headers.append((header.EXPIRES_AT_MS, b"%d" % deadline_ms))
            if not any(name == header.MESSAGE_ID for name, _ in headers):
                bookmark = f"{self._queue}/{messages.topic}:{messages.partition}:{record.offset}"
                headers.append((header.MESSAGE_ID, bookmark.encode()))
            outputs.append(
                Output(self._topic, self._partition(messages.partition, record), record.key, record.value, headers)
            )
        return outputs

    def settle(self, shard: QueueShard, delivery: Delivery, now_ms: int, step: Step) -> None:
        """Take what was handed over out of the queue."""
        messages = delivery.messages
        claims = [Claim(messages.topic, messages.partition, *ends) for ends in messages.ranges()]
        shard.settle(settlement.Verb.ACKNOWLEDGE, FORWARDER, claims, now_ms, step)

    def _partition(self, source: int, record: Any) -> int:
        """As Kafka's own producers choose by key; messages without one stay in their partition's order."""
        if record.key is None:
            return source % self._partitions
        return int((murmur2(record.key) & 0x7FFFFFFF) % self._partitions)
