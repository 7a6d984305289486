"""Reads the records behind messages, for deliveries and dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lapse.core.narrow_order import argsort_narrow, inverse_of
from lapse.core.queue.step import Messages, Removal
from lapse.core.reason import Reason
from lapse.runtime.shard.payload import PayloadWindow
from lapse.runtime.shard.row_parts import RowParts


async def records_of(messages: Messages, payloads: PayloadWindow) -> Sequence[Any | None]:
    """Return the records of messages in the messages' order, None where Kafka lost one; read them in log order."""
    offsets = messages.offsets
    if len(offsets) == 1 or bool((np.diff(offsets) > 0).all()):
        return await payloads.get(messages.topic, messages.partition, offsets)
    order = argsort_narrow(offsets)
    found = await payloads.get(messages.topic, messages.partition, offsets[order])
    numbers = inverse_of(order)
    if isinstance(found, RowParts):
        return RowParts(found.parts, numbers)
    return [found[at] for at in numbers.tolist()]


async def records_of_departed(removal: Removal, payloads: PayloadWindow) -> Sequence[Any | None]:
    """Return the records of messages that left; only None if they left because Kafka lost their records (C40)."""
    messages = removal.messages
    if Reason.LOG_TRUNCATED in removal.reasons:
        return [None] * len(messages)
    return await records_of(messages, payloads)
