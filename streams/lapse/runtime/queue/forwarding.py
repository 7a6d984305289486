"""Forwarding: a queue hands every message that it can deliver to another topic or queue (Q21, C38).

To the shard, the forwarder is a subscription. Its messages are written to the target and acknowledged in the same step,
so the target has them before the journal says that they left. A crash in between forwards them again with the same
`lapse-message-id`, and the target drops the repeat (X6). The forwarder makes ids of its own. Producers' ids are unique
only within a partition of their topic, and messages of many partitions meet in the target (C78).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from lapse.core.generation import format_position
from lapse.core.letter import FORWARDED, FORWARDER
from lapse.core.lifetime import NAMES, NEVER
from lapse.core.queue.settlement import settlement
from lapse.core.queue.settlement.settlement import Claim
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Delivery, Step
from lapse.core.sow.keys.home import murmur2
from lapse.protocol import header
from lapse.protocol.dead_letter import kept_deadline
from lapse.protocol.redrive import REDRIVEN
from lapse.runtime.kafka.output import Output
from lapse.runtime.letters.refusal import Write

logger = logging.getLogger(__name__)

_BACKLOG: Final = 4_096

_REPLACED: Final = NAMES | {
    header.TRANSFER,
    header.TRANSFER_FROM,
    header.TRANSFER_COUNTS,
    header.REDRIVE_QUEUE,
    header.MESSAGE_ID,
    *header.ORIGIN_NAMES,
}
"""Headers that are not passed on. For example, the target would skip a record that is redriven for the source alone.

A SOW topic over the target would take a forwarded record with an origin for the old update, and ignore it (S10).
"""

_GIVEN_BY_LAPSE: Final = (FORWARDED, REDRIVEN)


class Forwarding:
    """Forwards the messages of one shard.

    Args:
        queue: name of the forwarding queue.
        topic: the target topic.
        partitions: the target's number of partitions.

    Attributes:
        partitions: the target's number of partitions.
    """

    def __init__(self, queue: str, topic: str, partitions: int) -> None:
        self._queue = queue
        self._topic = topic
        self.partitions = max(1, partitions)

    def begin(self, shard: QueueShard, now_ms: int, step: Step) -> None:
        """Subscribe without an end."""
        shard.subscribing.subscribe(FORWARDER, f"forwards to {self._topic}", _BACKLOG, NEVER, "", now_ms, step)

    def outputs(self, delivery: Delivery, records: Sequence[Any | None]) -> dict[int, Output]:
        """Return the records for the target: with key, value, other headers and exact deadline, but with new counts.

        Returns:
            The records by the offsets of their messages. A message without a record is left out.
        """
        messages = delivery.messages
        outputs: dict[int, Output] = {}
        for at, record in enumerate(records):
            if record is None:
                continue
            headers = _passed_on(record.headers)
            deadline_ms = NEVER if messages.deadlines_ms is None else int(messages.deadlines_ms[at])
            if deadline_ms == NEVER:
                headers.append((header.TTL_MS, b"0"))
            else:
                headers.append((header.EXPIRES_AT_MS, b"%d" % deadline_ms))
            # The timestamp identifies the generation: a topic that is created again has the same bookmarks once more.
            bookmark = f"{messages.topic}:{messages.partition}:{format_position(record.offset)}"
            place = f"{self._queue}/{bookmark}/{record.timestamp}"
            headers.append((header.MESSAGE_ID, FORWARDED + place.encode()))
            target = self._partition(messages.partition, record)
            outputs[record.offset] = Output(self._topic, target, record.key, record.value, headers)
        return outputs

    async def hand_on(
        self,
        shard: QueueShard,
        delivery: Delivery,
        records: Sequence[Any | None],
        now_ms: int,
        step: Step,
        write: Write,
    ) -> bool:
        """Write messages to the target, and acknowledge them once the target has them.

        A message that the target refuses, such as one that is too large, becomes a dead letter with the reason. So does
        a barrier, which the other subscriptions get all the same (Q12).

        Args:
            shard: the shard of the messages.
            delivery: the messages.
            records: their records, None where Kafka lost one.
            now_ms: the instant, ms since the epoch.
            step: gets the results.
            write: writes to the target, and returns what it refuses.

        Returns:
            False if the target takes nothing at all. Forwarding then stops until it can take messages.
        """
        messages, name, partition = delivery.messages, shard.settings.name, shard.settings.partition
        outputs = self.outputs(delivery, records)
        refused = await write([*outputs.values()])
        of_topic = next((one for one in refused.values() if one.of_topic), None)
        if of_topic is not None:
            logger.warning("%s, partition %d: forwards nothing until it can: %s", name, partition, of_topic.why)
            shard.handed_out.undo_deliveries(FORWARDER, step)
            shard.unsubscribe(FORWARDER, now_ms, step, of_topic.why)
            return False
        handed_on = [*outputs]
        for at, refusal in refused.items():
            why = f"cannot be forwarded: {refusal.why}"
            logger.warning("%s: %s:%d:%d %s", name, messages.topic, messages.partition, handed_on[at], why)
            shard.remove_undecodable(
                messages.topic, messages.partition, handed_on[at], why, now_ms, step, handed_out=True
            )
        lost = sorted(set(messages.offsets.tolist()) - outputs.keys())
        if lost:
            shard.remove_truncated(messages.topic, messages.partition, lost, now_ms, step, handed_out=True)
        if not delivery.barrier:  # it has left the queue with its release
            self._settle(shard, delivery, now_ms, step)
        return True

    def _settle(self, shard: QueueShard, delivery: Delivery, now_ms: int, step: Step) -> None:
        """Acknowledge the messages that were forwarded."""
        messages = delivery.messages
        claims = [Claim(messages.topic, messages.partition, *ends) for ends in messages.ranges()]
        shard.settle(settlement.SettleAction.ACKNOWLEDGE, FORWARDER, claims, now_ms, step)

    def _partition(self, source: int, record: Any) -> int:
        """Return the target partition: by key as Kafka's producers choose it, without a key by the source partition."""
        if record.key is None:
            return source % self.partitions
        return int((murmur2(record.key) & 0x7FFFFFFF) % self.partitions)


def _passed_on(headers: Sequence[tuple[str, bytes | None]]) -> list[tuple[str, bytes]]:
    """Return the headers that the target gets, without those of lifetime and id."""
    given: Sequence[tuple[str, Any]] = headers  # a header may be null, which the wire allows
    kept = [(name, value) for name, value in given if name not in _REPLACED]
    kept += kept_deadline(given)
    stated = next((value for name, value in given if name == header.MESSAGE_ID and value), None)
    if (
        stated is not None
        and not stated.startswith(_GIVEN_BY_LAPSE)
        and all(name != header.ORIGINAL_MESSAGE_ID for name, _ in kept)
    ):
        kept.append((header.ORIGINAL_MESSAGE_ID, stated))
    return kept
