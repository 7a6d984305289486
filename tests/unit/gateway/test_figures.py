"""Rates and lateness from the figures that workers publish: sums over workers, restarts, and addresses."""

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from lapse_gateway import figures as module
from lapse_gateway.figures import Band, Figures
from lapse_gateway.scrape import Source


class Worker:
    """Serves a text as a worker serves its figures."""

    def __init__(self) -> None:
        self.text = ""
        self.status = 200
        self.missing: tuple[str, ...] = ()
        worker = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(worker.status)
                self.end_headers()
                self.wfile.write(worker.text.encode())

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def tell(self, **counts: float) -> None:
        shard = {"entity": "orders", "shard": "0"}
        figures = [
            ("lapse_arrivals", {}, counts.get("arrivals", 0)),
            ("lapse_acknowledgments", {}, counts.get("acknowledged", 0)),
            ("lapse_removals", {"reason": "time_limit"}, counts.get("expired", 0)),
            ("lapse_removals", {"reason": "purged"}, counts.get("purged", 0)),
            ("lapse_cancels", {}, counts.get("cancelled", 0)),
            ("lapse_lease_returns", {}, counts.get("returned", 0)),
        ]
        families = []
        for name, rest, count in figures:
            family = CounterMetricFamily(name, "", labels=[*shard, *rest])
            family.add_metric([*shard.values(), *rest.values()], count)
            families.append(family)
        late = HistogramMetricFamily("lapse_expiry_lateness_seconds", "", labels=list(shard))
        low, high = counts.get("late", 0), counts.get("late", 0) + 1
        late.add_metric(list(shard.values()), [("0.5", low), ("1.0", high), ("+Inf", high)], 1.0)
        missing = GaugeMetricFamily("lapse_missing_topics", "", labels=["entity", "topic"])
        for topic in self.missing:
            missing.add_metric(["orders", topic], 1)
        self.text = generate_latest(_Fixed([*families, late, missing])).decode()


class _Fixed:
    """Collects what it was given, as a registry does."""

    def __init__(self, families: list[Metric]) -> None:
        self.collect = lambda: families


@pytest.fixture
def workers() -> Iterator[tuple[Worker, Worker]]:
    two = Worker(), Worker()
    yield two
    for worker in two:
        worker.server.shutdown()
        worker.server.server_close()


@pytest.fixture(autouse=True)
def _ages_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FRESH_S", 0.0)


def shown_of(figures: Figures) -> dict[str, float]:
    """What was counted since the first look; the rate of it over the time between."""
    (first_s, first), (last_s, last) = figures._seen[0], figures._seen[-1]
    assert last_s > first_s
    return {name: last["orders"][name] - first["orders"][name] for name in last["orders"]}


@pytest.mark.feature("C52", "Q15")
def test_missing_topics_are_reported_once_and_no_longer_than_a_worker_tells_of_them(
    workers: tuple[Worker, Worker],
) -> None:
    figures = Figures([Source.parse(worker.url) for worker in workers])

    async def lacks(*topics: str) -> list[str]:
        for worker in workers:
            worker.missing = topics
            worker.tell()
        await figures.look()
        return figures.needs("orders")

    said = ["topic a is missing; `lapse apply` creates it", "topic b is missing; `lapse apply` creates it"]
    assert asyncio.run(lacks("b", "a")) == said
    assert figures.needs("others") == []
    assert asyncio.run(lacks()) == []


@pytest.mark.feature("L13", "Q15")
def test_workers_are_summed_and_one_that_began_anew_counts_from_nothing(workers: tuple[Worker, Worker]) -> None:
    one, other = workers
    figures = Figures([Source.parse(one.url), Source.parse(other.url)])

    async def looks() -> None:
        one.tell(arrivals=1_000, acknowledged=900)
        other.tell(arrivals=50)
        await figures.look()
        assert figures.of("orders").per_s == {}
        one.tell(arrivals=1_010, acknowledged=905, expired=2, purged=7, cancelled=1, returned=2, late=4)
        other.tell(arrivals=3)  # it gave the shard up, and has it again
        await figures.look()
        assert shown_of(figures) == {"in": 13, "out": 5, "expired": 2, "dead": 0, "retried": 3}
        one.status = 500
        await figures.look()
        one.status = 200
        one.tell(arrivals=1_020, acknowledged=905, expired=2, cancelled=1, returned=2)
        await figures.look()

    asyncio.run(looks())
    assert shown_of(figures)["in"] == 23, "what was counted while it did not answer is not lost"
    assert figures.of("orders").lateness == (
        Band(up_to_s=0.5, count=0),
        Band(up_to_s=1.0, count=2),
        Band(up_to_s=None, count=0),
    )
    assert len(figures.of("orders").bands) == 2
    assert figures.of("others") == module._UNKNOWN or figures.of("others").per_s == {}


def test_a_rate_is_a_second_and_forgets_what_is_old(workers: tuple[Worker, Worker]) -> None:
    figures = Figures([Source.parse(workers[0].url)])
    counts = {"in": 0.0, "out": 0.0, "expired": 0.0, "dead": 0.0, "retried": 0.0}
    figures._seen.extend([(0.0, {"orders": counts}), (4.0, {"orders": {**counts, "in": 8.0}})])
    assert figures.of("orders").per_s["in"] == 2.0

    async def look() -> None:
        workers[0].tell()
        await figures.look()

    asyncio.run(look())
    assert len(figures._seen) == 2
    assert figures._seen[0][0] == 4.0
    workers[0].status = 503
    asyncio.run(look())
    assert figures.of("orders").per_s == {}, "of a worker that is away nobody knows a rate, not even 0"


def test_a_worker_that_does_not_answer_is_named(workers: tuple[Worker, Worker]) -> None:
    workers[1].status = 503
    gone = "http://127.0.0.1:1/metrics"
    figures = Figures([Source.parse(gone), Source.parse(workers[1].url)])
    asyncio.run(figures.look())
    assert [fault for fault in figures.faults if gone in fault and "refused" in fault]
    assert [fault for fault in figures.faults if "503" in fault]


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    "url", ["worker:9464", "ftp://worker/", "http://", "http://w:port/", "http://w/?a=1", "http://u:p@w/"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"is no address|expected the address"):
        Source.parse(url)


def test_an_address_is_read() -> None:
    found = Source.parse("http://worker:9464")
    assert (found.host, found.port, found.path, found.secure) == ("worker", 9464, "/metrics", False)
    assert Source.parse("https://[::1]/m").port == 443
