"""Traces by OpenTelemetry's messaging conventions, if the program has set up a tracer provider (docs/tracing.md).

The trace context of a publication is in the message's headers `traceparent` and `tracestate`. So it follows the
message through leases, retries, transfers and forwarding, and into the dead letter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import KafkaError, Message

from lapse_client.publisher.publication import BuiltHeaders

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Tracer, TracerProvider

Reported = Callable[[KafkaError | None, Message], None]

_API: Final = "opentelemetry.trace"
_NAMES: Final = ("traceparent", "tracestate", "baggage")
_MOST_LINKS: Final = 128
"""The most links of a span that the SDK keeps by default. Headers of further messages are not read."""

_SYSTEM: Final = {"messaging.system": "kafka"}


class Sending(NamedTuple):
    """A publication and the callbacks that end its span.

    Attributes:
        headers: the record's headers, with the span's context.
        reported: to be called with Kafka's delivery report.
        failed: to be called with the cause if nothing was sent.
    """

    headers: BuiltHeaders
    reported: Reported
    failed: Callable[[Exception], None]


class Tracing:
    """Makes spans for one client.

    Args:
        tracer: OpenTelemetry's tracer.
    """

    def __init__(self, tracer: Tracer) -> None:
        from opentelemetry import context, propagate, trace

        self._tracer = tracer
        self._trace = trace
        self._propagate = propagate
        self._context = context

    def sending(self, topic: str, key: str | bytes | None, headers: BuiltHeaders, reported: Reported) -> Sending:
        """Begin the span of a publication, which ends with Kafka's report.

        Args:
            topic: topic of the record.
            key: key of the record.
            headers: headers of the record. A trace context in them is kept.
            reported: called with Kafka's delivery report.
        """
        found = self._links([headers])
        span = self._begin("publish", "send", topic, self._trace.SpanKind.PRODUCER, found)
        if key:
            text = key if isinstance(key, str) else key.decode("utf-8", "replace")
            span.set_attribute("messaging.kafka.message.key", text)
        if not found:
            carrier: dict[str, str] = {}
            self._propagate.inject(carrier, self._trace.set_span_in_context(span))
            headers = [*headers, *carrier.items()]

        def ended(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._fail(span, error.name(), error.str())
            elif (offset := message.offset()) is not None:
                span.set_attribute("messaging.destination.partition.id", str(message.partition()))
                span.set_attribute("messaging.kafka.offset", offset)
                span.set_attribute("messaging.message.id", f"{topic}:{message.partition()}:{offset}")
            span.end()
            reported(error, message)

        def failed(error: Exception) -> None:
            self._fail(span, type(error).__qualname__, str(error))
            span.end()

        return Sending(headers, ended, failed)

    def received(self, deliveries: Sequence[Any], began_ns: int) -> None:
        """Record a span for messages that were handed to the application.

        Args:
            deliveries: at least one delivery, all of one subscription.
            began_ns: when the application began to wait, ns since the epoch.
        """
        first = deliveries[0]
        links = self._links(one.headers for one in deliveries[:_MOST_LINKS])
        span = self._begin("receive", "receive", first.queue, self._trace.SpanKind.CLIENT, links, began_ns)
        self._set_attributes(span, deliveries)
        span.end()

    @contextmanager
    def processing(self, delivery: Any) -> Iterator[None]:
        """Keep the span of a message's processing current while the `with` block runs, and record its exception.

        The span is linked to the publication. If the application has no current span, the publication is also its
        parent, so that a message's life is one trace.
        """
        links = self._links([delivery.headers])
        parent = None
        if links and not self._trace.get_current_span().get_span_context().is_valid:
            parent = self._trace.set_span_in_context(self._trace.NonRecordingSpan(links[0].context))
        span = self._begin("process", "process", delivery.queue, self._trace.SpanKind.CONSUMER, links, parent=parent)
        self._set_attributes(span, [delivery])
        token = self._context.attach(self._trace.set_span_in_context(span))
        try:
            yield
        except BaseException as error:
            span.record_exception(error)
            self._fail(span, type(error).__qualname__, str(error))
            raise
        finally:
            if delivery.settled_as:
                span.set_attribute("lapse.settlement", delivery.settled_as)
            self._context.detach(token)
            span.end()

    @contextmanager
    def settling(self, how: str, deliveries: Sequence[Any]) -> Iterator[None]:
        """Keep the span of a settlement open until the settlement is on its way, or refused."""
        if not deliveries:
            yield
            return
        links = self._links(one.headers for one in deliveries[:_MOST_LINKS])
        span = self._begin(how, "settle", deliveries[0].queue, self._trace.SpanKind.CLIENT, links)
        self._set_attributes(span, deliveries)
        try:
            yield
        except Exception as error:
            self._fail(span, type(error).__qualname__, str(error))
            raise
        finally:
            span.end()

    def _begin(
        self,
        name: str,
        operation: str,
        destination: str,
        kind: SpanKind,
        links: list[Link],
        began_ns: int | None = None,
        parent: Context | None = None,
    ) -> Span:
        attributes = {
            **_SYSTEM,
            "messaging.operation.name": name,
            "messaging.operation.type": operation,
            "messaging.destination.name": destination,
        }
        return self._tracer.start_span(f"{name} {destination}", parent, kind, attributes, links, began_ns)

    def _set_attributes(self, span: Span, deliveries: Sequence[Any]) -> None:
        """Set the attributes that name a span's messages."""
        if len(deliveries) > 1:
            span.set_attribute("messaging.batch.message_count", len(deliveries))
            return
        (one,) = deliveries
        bookmark = one.bookmark
        span.set_attribute("messaging.message.id", str(bookmark))
        span.set_attribute("messaging.destination.partition.id", str(bookmark.partition))
        span.set_attribute("messaging.kafka.offset", bookmark.offset)
        span.set_attribute("lapse.topic", bookmark.topic)
        span.set_attribute("lapse.delivery_count", one.delivery_count)

    def _links(self, some: Any) -> list[Link]:
        """Return links to the publications of messages, read from the messages' headers."""
        links: list[Link] = []
        for headers in some:
            carrier = {
                name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
                for name, value in headers
                if name in _NAMES and value is not None
            }
            if carrier:
                of = self._trace.get_current_span(self._extract(carrier)).get_span_context()
                if of.is_valid:
                    links.append(self._trace.Link(of))
        return links

    def _extract(self, carrier: dict[str, str]) -> Context:
        return self._propagate.extract(carrier, self._context.Context())

    def _fail(self, span: Span, kind: str, text: str) -> None:
        span.set_attribute("error.type", kind)
        span.set_status(self._trace.StatusCode.ERROR, text)


def tracing(provider: TracerProvider | None = None) -> Tracing | None:
    """Return the object that makes a client's spans; None, which costs nothing, if no tracer provider is set.

    Args:
        provider: the tracer provider; None = the program's global one, set by `set_tracer_provider` or
            `opentelemetry-instrument`. It must be set before the client is made.
    """
    if provider is None:
        if _API not in sys.modules:
            return None  # a program that has set a provider has imported the API
        from opentelemetry import trace

        provider = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            return None
    from importlib.metadata import version  # takes as long as ten modules of the client

    return Tracing(provider.get_tracer("lapse", version("lapse")))
