"""A delivery as it is written: by reference, or with the payloads of its messages (D4)."""

from __future__ import annotations

import numpy as np

from lapse.core.queue.step import Delivery
from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.queue.records import records_of
from lapse.runtime.shard.payload import PayloadWindow, RowParts


async def delivered(
    delivery: Delivery, payloads: PayloadWindow, output: QueueOutput
) -> tuple[Output | Packed, list[int]]:
    """Make what is written of a delivery; a barrier always carries its payload.

    Args:
        delivery: what the shard hands out.
        payloads: the records behind its messages.
        output: writes them down.

    Returns:
        what to write, and the offsets of messages whose records Kafka no longer has.
    """
    messages = delivery.messages
    if delivery.payload == "reference" and not delivery.barrier:
        payloads.passed_by(messages.topic, messages.partition, np.sort(messages.offsets).tolist())
        return output.reference(delivery), []
    records = await records_of(messages, payloads)
    if isinstance(records, RowParts):
        return output.deliveries(delivery, records), []
    lost = [offset for offset, one in zip(messages.offsets.tolist(), records, strict=True) if one is None]
    return output.deliveries(delivery, records), sorted(lost)
