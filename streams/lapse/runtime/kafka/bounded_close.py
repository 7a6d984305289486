"""Closes a connection to Kafka within a limited time. Over TLS the broker's answer may never come."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from aiokafka import AIOKafkaConsumer

PATIENCE_S: Final = 1.0


async def bounded_close(consumer: AIOKafkaConsumer) -> None:
    """Stop a consumer that is in no group, and wait at most `PATIENCE_S` for the broker.

    Closing a TLS connection waits for the other side's `close_notify`. uvloop sometimes misses it, and the wait ends
    after thirty seconds, which is too long for a take-over. The rest of the connection closes by itself.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            await consumer.stop()
