"""The gateway's own figures for Prometheus: requests, how long they took, and what is open (Q15).

Labels are methods, paths with names left out, and statuses, so their number is limited.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from lapse_gateway.subscription import Subscriptions

CONTENT: Final = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

Labels = tuple[tuple[str, str], ...]


class RequestFigures:
    """Counts the requests about one deployment."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str, int]] = Counter()
        """Requests by method, path and status."""
        self.seconds: dict[tuple[str, str], list[float]] = {}
        """By method and path: the number of requests in each band, and behind them the sum of their seconds."""

    def note(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count an answered request.

        Args:
            method: its method.
            path: the path of its operation, with variable parts in braces.
            status: the status of the answer.
            seconds: from its head to the head of the answer, in s. A long poll includes its wait.
        """
        self.counts[method, path, status] += 1
        bands = self.seconds.setdefault((method, path), [0.0] * (len(BOUNDS_S) + 2))
        bands[bisect_left(BOUNDS_S, seconds)] += 1
        bands[-1] += seconds


class Watched(Protocol):
    """The part of a gateway with figures.

    Attributes:
        name: name of the deployment.
        requests: the counts of its requests.
        subscriptions: the subscriptions over HTTP.
        streams: the number of open streams of SOW topics.
        tails: the number of open streams of events.
    """

    name: str
    requests: RequestFigures
    subscriptions: Subscriptions
    streams: int
    tails: int


def text(gateways: Iterable[Watched]) -> str:
    """Return the figures of deployments in Prometheus's text format."""
    known = [(("deployment", one.name), one) for one in gateways]
    lines = [*_family("lapse_gateway_requests_total", "counter", "Requests that were answered, by status.")]
    for name, one in known:
        for (method, path, status), count in sorted(one.requests.counts.items()):
            labels = (name, ("method", method), ("path", path), ("status", str(status)))
            lines.append(_line("lapse_gateway_requests_total", labels, count))
    lines += _family("lapse_gateway_request_seconds", "histogram", "Time to the head of the answer, waits included.")
    for name, one in known:
        for (method, path), bands in sorted(one.requests.seconds.items()):
            lines += _histogram("lapse_gateway_request_seconds", (name, ("method", method), ("path", path)), bands)
    lines += _family("lapse_gateway_subscriptions", "gauge", "Subscriptions that are open over HTTP.")
    lines += [_line("lapse_gateway_subscriptions", (name,), len(one.subscriptions)) for name, one in known]
    lines += _family("lapse_gateway_held_messages", "gauge", "Deliveries that were handed out and are not settled.")
    lines += [_line("lapse_gateway_held_messages", (name,), one.subscriptions.held) for name, one in known]
    lines += _family("lapse_gateway_streams", "gauge", "Open streams of SOW topics and of events.")
    for name, one in known:
        lines.append(_line("lapse_gateway_streams", (name, ("of", "sow")), one.streams))
        lines.append(_line("lapse_gateway_streams", (name, ("of", "events")), one.tails))
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, description: str) -> Iterator[str]:
    yield f"# HELP {name} {description}"
    yield f"# TYPE {name} {kind}"


def _histogram(name: str, labels: Labels, bands: list[float]) -> Iterator[str]:
    count = 0.0
    for bound, band in zip((*map(str, BOUNDS_S), "+Inf"), bands[:-1], strict=True):
        count += band
        yield _line(f"{name}_bucket", (*labels, ("le", bound)), count)
    yield _line(f"{name}_count", labels, count)
    yield _line(f"{name}_sum", labels, bands[-1])


def _line(name: str, labels: Labels, value: float) -> str:
    text = ",".join(f'{key}="{_escaped(word)}"' for key, word in labels)
    return f"{name}{{{text}}} {value!r}"


def _escaped(word: str) -> str:
    """Escape a label's value: a deployment may have any name."""
    return word.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
