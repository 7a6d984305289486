"""The end of a connection to Kafka, which over TLS may wait for an answer that does not come."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from aiokafka import AIOKafkaConsumer

PATIENCE_S: Final = 1.0


async def bounded_close(consumer: AIOKafkaConsumer) -> None:
    """Stop a consumer that is in no group, and wait at most `PATIENCE_S` for the broker's goodbye.

    Closing a TLS connection waits for the other side's `close_notify`. Under uvloop it is missed now and then, and the
    wait ends after thirty seconds: too long for a take-over. What is left of the connection closes by itself.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            await consumer.stop()
