"""FastAPI on a queue: a request submits work, and the application's lifespan runs the consumers.

::

    uvicorn fastapi_app:app
    curl -X POST localhost:8000/orders -H 'content-type: application/json' -d '{"id": 1, "customer": "Ann"}'
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator

from fastapi import FastAPI
from pydantic import BaseModel

from lapse_client.aio import Retry, TaskQueue

QUEUE = os.environ.get("ORDERS_QUEUE", "jobs")
CONSUMERS = 4


class Order(BaseModel):
    """What a customer wants."""

    id: int
    customer: str


orders = TaskQueue(QUEUE)
asked: set[int] = set()
packed: list[int] = []


@orders.task
async def pack(order: Order) -> None:
    """Pack an order; the goods of odd ones are missing at first."""
    if order.id % 2 and order.id not in asked:
        asked.add(order.id)
        raise Retry(after=0.5)
    packed.append(order.id)


def stop_if_failed(consumers: asyncio.Task[None]) -> None:
    """Stop the application if its consumers cannot go on, say without the queue: it would take work and not do it."""
    if not consumers.cancelled() and consumers.exception() is not None:
        signal.raise_signal(signal.SIGTERM)


@contextlib.asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Consume while the application serves; at its end what is at work is finished, and the rest goes back."""
    working = asyncio.create_task(orders.run(CONSUMERS))
    working.add_done_callback(stop_if_failed)
    yield
    await orders.close()
    await working


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def accept(order: Order) -> dict[str, str]:
    """Take an order, to be packed within a minute; after that it becomes a dead letter."""
    return {"bookmark": str(await pack.with_options(ttl_ms=60_000, key=order.customer).submit(order))}


@app.get("/orders")
async def done() -> list[int]:
    """The orders that this process has packed."""
    return sorted(packed)
