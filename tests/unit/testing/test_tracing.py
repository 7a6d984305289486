"""Spans of what waits in asyncio, and of transactions (X3, X9)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from lapse.testing import Lapse
from lapse_client import Connection, Publisher, QueueSubscriber, aio


class Traced:
    """A connection whose spans are kept."""

    def __init__(self, connection: Connection) -> None:
        provider, self._kept = TracerProvider(), InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.connection = replace(connection, tracer_provider=provider)

    def spans(self, name: str) -> Iterator[ReadableSpan]:
        """Those that have ended."""
        return (one for one in self._kept.get_finished_spans() if one.name == name)


@pytest.fixture
def traced(lapse: Lapse) -> Traced:
    lapse.queue("orders")
    return Traced(lapse.connection)


@pytest.mark.feature("X3")
@pytest.mark.parametrize("in_batches", [False, True])
def test_a_span_of_asyncio_begins_when_the_application_asks(lapse: Lapse, traced: Traced, in_batches: bool) -> None:
    """It began when the message was there, and so was empty."""

    async def main() -> int:
        async with aio.QueueSubscriber("orders", connection=traced.connection) as subscriber:
            asked = anext(subscriber.batches()) if in_batches else subscriber.receive()
            asking = asyncio.ensure_future(asked)
            await asyncio.sleep(0)
            published_ns = time.time_ns()
            with lapse.publisher() as publisher:
                publisher.publish("orders", b"1")
            await asking
        return published_ns

    published_ns = asyncio.run(main())
    (received,) = traced.spans("receive orders")
    assert received.start_time is not None
    assert received.end_time is not None
    assert received.start_time <= published_ns <= received.end_time


@pytest.mark.feature("X3", "X9")
def test_an_output_continues_the_trace_of_its_message(lapse: Lapse, traced: Traced) -> None:
    lapse.topic("shipments")
    with (
        Publisher(traced.connection) as publisher,
        QueueSubscriber("orders", connection=traced.connection) as subscriber,
    ):
        publisher.publish("orders", b"1")
        publisher.flush()
        delivery = subscriber.receive(5)
        assert delivery is not None
        with delivery, delivery.transaction() as tx:
            tx.produce("shipments", b"out", "k")
    (published,), (output,) = traced.spans("publish orders"), traced.spans("publish shipments")
    assert output.context is not None
    assert published.context is not None
    assert output.context.trace_id == published.context.trace_id
    (record,) = lapse.records("shipments")
    assert dict(record.headers)["traceparent"].split(b"-")[2] == b"%016x" % output.context.span_id
