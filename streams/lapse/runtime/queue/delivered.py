"""A delivery as it is written: by reference, or with the payloads of its messages (D4)."""

from __future__ import annotations

from typing import Final

import numpy as np

from lapse.core.queue.step import Delivery
from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.queue.records import records_of
from lapse.runtime.shard.payload import PayloadWindow, RowParts

_LEAST_PATIENCE_S: Final = 5.0
"""Shorter than that, a broker's hiccup would end workers, even if the lease is over by then."""

_MOST_PATIENCE_S: Final = 30.0


def patience_s(lease_ms: int) -> float:
    """How long a delivery may be on its way to Kafka, s: so that it does not come after its lease (L10)."""
    return min(max(0.9 * lease_ms / 1000, _LEAST_PATIENCE_S), _MOST_PATIENCE_S)


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
