"""The records behind messages, as deliveries and dead letters need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lapse.core.queue.step import Messages, Removal
from lapse.core.reason import Reason
from lapse.runtime.shard.payload import PayloadWindow


async def records_of(messages: Messages, payloads: PayloadWindow) -> Sequence[Any | None]:
    """The records of messages, in their order, None where Kafka lost one; they are read in the order of the log."""
    offsets = messages.offsets
    if len(offsets) == 1 or bool((np.diff(offsets) > 0).all()):
        return await payloads.get(messages.topic, messages.partition, offsets.tolist())
    order = np.argsort(offsets)
    found = list(await payloads.get(messages.topic, messages.partition, offsets[order].tolist()))
    return [found[at] for at in np.argsort(order).tolist()]


async def left_behind(removal: Removal, payloads: PayloadWindow) -> Sequence[Any | None]:
    """The records of messages that left; none if they left because Kafka has lost the records (C40)."""
    messages = removal.messages
    if Reason.LOG_TRUNCATED in removal.reasons:
        return [None] * len(messages)
    return await records_of(messages, payloads)
