"""Traces of messages by OpenTelemetry, through retries and into the dead letter."""

import asyncio
import gzip
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from lapse_client import Connection, Publisher, PublishFailed, QueueSubscriber, Retry, aio
from support.processes.deployment import Deploy


class Traced:
    """A tracer provider that keeps what it is given."""

    def __init__(self, connection: Connection) -> None:
        self.provider = TracerProvider()
        self._kept = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.connection = replace(connection, tracer_provider=self.provider)

    def spans(self, name: str = "") -> list[ReadableSpan]:
        """What has ended, in the order of the ends."""
        return [one for one in self._kept.get_finished_spans() if one.name.startswith(name)]


def headers_of(span: ReadableSpan) -> str:
    """The value of `traceparent` that a span's context is."""
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


@pytest.mark.feature("X3")
def test_the_life_of_a_message_is_one_trace(deploy: Deploy) -> None:
    """Published, taken, failed, taken again, asked for again, expired; then its dead letter, and that redriven."""
    here = deploy({"orders": {"dead_letter": "dlq.orders{}"}}).apply()
    here.worker().wait_for_shards(1)
    traced = Traced(here.connection)
    name = here.name("orders")
    tracer = traced.provider.get_tracer("shop")
    with Publisher(traced.connection) as publisher, tracer.start_as_current_span("order placed") as placed:
        publisher.publish(name, b"1", key=b"k", headers={"own": "x"})
    (published,) = traced.spans("publish ")
    assert (published.kind, published.parent.span_id) == (SpanKind.PRODUCER, placed.context.span_id)
    assert dict(published.attributes) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": name,
        "messaging.kafka.message.key": "k",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 0,
        "messaging.message.id": f"{name}:0:0",
    }
    with QueueSubscriber(name, 1, connection=traced.connection) as subscriber:
        first = subscriber.receive(20)
        with pytest.raises(KeyError), first:
            raise KeyError("no such customer")
        with subscriber.receive(20):
            raise Retry(0)
        with subscriber.receive(20) as third:
            third.expire("not payable")
    (letter,) = here.letters("orders", 1)
    stated = dict(letter.headers())
    assert (stated["traceparent"].decode(), stated["own"]) == (headers_of(published), b"x")
    failed, again, expired = traced.spans("process ")
    for count, span in enumerate((failed, again, expired), 1):
        assert [link.context.span_id for link in span.links] == [published.context.span_id]
        assert (span.context.trace_id, span.parent.span_id) == (published.context.trace_id, published.context.span_id)
        assert (span.kind, span.attributes["lapse.delivery_count"]) == (SpanKind.CONSUMER, count)
        assert span.attributes["messaging.message.id"] == f"{name}:0:0"
    assert (failed.status.status_code, failed.attributes["error.type"]) == (StatusCode.ERROR, "KeyError")
    assert [one.attributes["lapse.settlement"] for one in (failed, again, expired)] == ["cancel", "cancel", "expire"]
    assert again.status.status_code is StatusCode.UNSET, "who asks for another try has not failed"
    settled = [one for one in traced.spans() if one.attributes.get("messaging.operation.type") == "settle"]
    assert [(one.name, one.parent.span_id) for one in settled] == [
        (f"cancel {name}", failed.context.span_id),
        (f"cancel {name}", again.context.span_id),
        (f"expire {name}", expired.context.span_id),
    ]
    assert len(traced.spans("receive ")) == 3
    here.lapse("dlq", "redrive", name, "--yes")
    with QueueSubscriber(name, 1, connection=traced.connection) as subscriber, subscriber.receive(20) as redriven:
        assert dict(redriven.headers)["traceparent"] == headers_of(published).encode()


@pytest.mark.feature("X3")
def test_batches_and_asyncio_are_traced_and_failures_are_reported(deploy: Deploy) -> None:
    here = deploy({"orders": {}}).apply()
    here.worker().wait_for_shards(1)
    traced, name = Traced(here.connection), here.name("orders")

    async def run() -> None:
        async with aio.Publisher(traced.connection) as publisher:
            for number in range(3):
                await publisher.publish(name, b"%d" % number)
        async with aio.QueueSubscriber(name, 10, connection=traced.connection) as subscriber:
            async for delivery in subscriber:
                async with delivery:
                    inner = trace.get_current_span()
                    await asyncio.sleep(0)
                    assert trace.get_current_span() is inner
                if delivery.value == b"2":
                    break

    asyncio.run(run())
    assert len(traced.spans("process ")) == 3
    with Publisher(traced.connection) as publisher:
        for number in range(3):
            publisher.publish(name, b"%d" % number)
    with QueueSubscriber(name, 10, connection=traced.connection) as subscriber:
        taken: list[object] = []
        for batch in subscriber.batches(timeout=5):
            taken += batch
            subscriber.acknowledge(batch)
            if len(taken) == 3:
                break
    acknowledged = traced.spans("acknowledge ")[3:]
    assert sum(one.attributes.get("messaging.batch.message_count", 1) for one in acknowledged) == 3
    assert sum(len(one.links) for one in acknowledged) == 3
    with Publisher(traced.connection) as publisher, pytest.raises(PublishFailed):
        publisher.publish(name, b"x" * (2 << 20))
    last = traced.spans("publish ")[-1]
    assert (last.status.status_code, last.attributes["error.type"]) == (StatusCode.ERROR, "PublishFailed")


_PROGRAM = """
import json, sys
from lapse_client import Connection
from lapse_client.tracing import tracing
nothing = "opentelemetry" in sys.modules, tracing() is None
from opentelemetry import trace
imported = tracing() is None
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
print(json.dumps([*nothing, imported, tracing() is None]))
"""


def test_who_sets_no_provider_pays_nothing() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, env=environment)
    assert json.loads(done.stdout or "[]") == [False, True, True, False], done.stderr


_WORKER = """
import sys
from lapse_client import Publisher, QueueSubscriber
with Publisher() as publisher:
    publisher.publish(sys.argv[1], b"1")
with QueueSubscriber(sys.argv[1]) as subscriber, subscriber.receive(30) as delivery:
    delivery.acknowledge()
"""


class Collector(ThreadingHTTPServer):
    """A receiver of OTLP over HTTP, which keeps the spans that it is sent."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        super().__init__(("127.0.0.1", 0), _Receiver)

    @property
    def spans(self) -> dict[str, Span]:
        """By name, without what the queue is called."""
        every = (
            span
            for request in self.requests
            for one in request.resource_spans
            for scope in one.scope_spans
            for span in scope.spans
        )
        return {span.name.partition(" ")[0]: span for span in every}


class _Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            content = gzip.decompress(content)
        if (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf"):
            self.server.requests.append(ExportTraceServiceRequest.FromString(content))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.feature("X3")
def test_spans_reach_a_collector_by_the_standard_variables_alone(deploy: Deploy) -> None:
    here = deploy({"exported": {}}).apply()
    here.worker().wait_for_shards(1)
    name = here.name("exported")
    with Collector() as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        standard = {
            "OTEL_SERVICE_NAME": "shop",
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
        }
        environment = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
        done = subprocess.run(
            [Path(sys.executable).parent / "opentelemetry-instrument", sys.executable, "-c", _WORKER, name],
            capture_output=True,
            text=True,
            timeout=120,
            env={**environment, **here.environment(), **standard},
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        collector.shutdown()
    spans = collector.spans
    assert set(spans) == {"publish", "receive", "process", "acknowledge"}
    published, processed = spans["publish"], spans["process"]
    assert (processed.trace_id, processed.parent_span_id) == (published.trace_id, published.span_id)
    assert (published.kind, processed.kind) == (Span.SPAN_KIND_PRODUCER, Span.SPAN_KIND_CONSUMER)
    facts = {one.key: one.value for one in processed.attributes}
    assert facts["messaging.message.id"].string_value == f"{name}:0:0"
    assert facts["lapse.delivery_count"].int_value == 1
    (resource,) = {
        one.value.string_value
        for request in collector.requests
        for spans in request.resource_spans
        for one in spans.resource.attributes
        if one.key == "service.name"
    }
    assert resource == "shop"


@pytest.mark.feature("X3", "Q21", "Q27")
def test_forwarding_and_replies_stay_in_the_trace(deploy: Deploy) -> None:
    """A request is forwarded to the queue that answers it, and the application's span has all of it below."""
    here = deploy({"entry": {"forward_to": "quotes{}"}, "quotes": {}, "prices": {}}).apply()
    here.worker().wait_for_shards(3)
    traced = Traced(here.connection)
    tracer = traced.provider.get_tracer("shop")

    with (
        QueueSubscriber(here.name("quotes"), 1, connection=traced.connection) as quotes,
        QueueSubscriber(here.name("prices"), 1, connection=traced.connection) as prices,
        Publisher(traced.connection) as publisher,
    ):
        with tracer.start_as_current_span("asked") as asked:
            reply_to = {"reply_to": here.name("prices"), "correlation_id": "1"}
            publisher.publish(here.name("entry"), b"A", headers=reply_to)
        with quotes.receive(20) as request:
            request.reply(b"7")
        with prices.receive(20) as reply:
            assert reply.value == b"7"
    names = [here.name(stem) for stem in ("entry", "quotes", "prices")]
    sent, first, replied, second = (
        traced.spans(f"{what} {name}")[0]
        for what, name in zip(("publish", "process", "publish", "process"), (*names, names[-1]), strict=True)
    )
    assert [one.parent.span_id for one in (sent, first, replied, second)] == [
        one.context.span_id for one in (asked, sent, first, replied)
    ]
    assert {one.context.trace_id for one in (sent, first, replied, second)} == {asked.context.trace_id}
    assert dict(request.headers)["traceparent"] == headers_of(sent).encode(), "the forwarded message keeps it"
    assert dict(reply.headers)["traceparent"] == headers_of(replied).encode()
