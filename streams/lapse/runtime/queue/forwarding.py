"""Forwarding: a queue hands every message that it can deliver to another topic or queue (Q21, C38).

To the shard, the forwarder is a subscription. A step leases messages to it. Once that is in the journal, the next step
begins by writing them to the target, and acknowledges them. So nothing else can happen to a message that the target may
have, until it is known to have left: the lease protects it from its deadline. After a crash in between, the new owner
looks into the target for the messages that are leased (`forwarded_copies`).

The forwarder makes message ids of its own. Producers' ids are unique only within a partition of their topic, and
messages of many partitions meet in the target (C78).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from lapse.core.generation import format_position
from lapse.core.letter import FORWARDED, FORWARDER
from lapse.core.lifetime import NAMES, NEVER
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

_FORWARDS_TO: Final = "forwards to "
"""What the forwarder's subscription says of itself, in front of the target's name."""

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


class Handed(NamedTuple):
    """What became of messages that were written to the target.

    Attributes:
        refused: why the target refused a message, by offset.
        lost: the offsets of messages whose records Kafka no longer has.
        stopped: why the target takes nothing at all; empty if it takes messages.
    """

    refused: dict[int, str]
    lost: list[int]
    stopped: str = ""


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
        shard.subscribing.subscribe(FORWARDER, f"{_FORWARDS_TO}{self._topic}", _BACKLOG, NEVER, "", now_ms, step)

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
            stem = id_stem(self._queue, messages.topic, messages.partition, record.offset)
            headers.append((header.MESSAGE_ID, b"%s/%d" % (stem, record.timestamp)))
            target = self._partition(messages.partition, record)
            outputs[record.offset] = Output(self._topic, target, record.key, record.value, headers)
        return outputs

    async def write(
        self,
        shard: QueueShard,
        delivery: Delivery,
        records: Sequence[Any | None],
        write: Write,
    ) -> Handed:
        """Write the messages of a delivery to the target, and wait until it has them.

        Args:
            shard: the shard of the messages.
            delivery: the messages.
            records: their records, None where Kafka lost one.
            write: writes to the target, and returns what it refuses.
        """
        messages, name, partition = delivery.messages, shard.settings.name, shard.settings.partition
        outputs = self.outputs(delivery, records)
        refused = await write([*outputs.values()])
        of_topic = next((one for one in refused.values() if one.of_topic), None)
        if of_topic is not None:
            logger.warning("%s, partition %d: forwards nothing until it can: %s", name, partition, of_topic.why)
            return Handed({}, [], of_topic.why)
        handed_on = [*outputs]
        reasons = {handed_on[at]: f"cannot be forwarded: {refusal.why}" for at, refusal in refused.items()}
        for offset, why in reasons.items():
            logger.warning("%s: %s:%d:%d %s", name, messages.topic, messages.partition, offset, why)
        return Handed(reasons, sorted(set(messages.offsets.tolist()) - outputs.keys()))

    def _partition(self, source: int, record: Any) -> int:
        """Return the target partition: by key as Kafka's producers choose it, without a key by the source partition."""
        if record.key is None:
            return source % self.partitions
        return int((murmur2(record.key) & 0x7FFFFFFF) % self.partitions)


def id_stem(queue: str, topic: str, partition: int, position: int) -> bytes:
    """Return the beginning of the message id that a forwarded message gets; its record's timestamp follows (C78)."""
    return FORWARDED + f"{queue}/{topic}:{partition}:{format_position(position)}".encode()


def target_of(shard: QueueShard) -> str:
    """Return the topic to which a shard has forwarded, as its journal says; empty if it has not."""
    known = shard.state.subscriptions.get(FORWARDER)
    return "" if known is None else known.client.removeprefix(_FORWARDS_TO)


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
