"""The row of the gateway."""

from __future__ import annotations

from benchmarks.comparison.columns import CLIENT, WORKER
from benchmarks.comparison.load import Load
from benchmarks.comparison.row import Column, Contestant, Goal, Row, figure, greatest


def gateway(load: Load) -> Row:
    """Return the row of messages over HTTP at a steady rate."""
    name = "5,000/s in batches of 50"
    return Row(
        "gateway",
        "Published, received and acknowledged over HTTP; broker, worker, gateway and callers on two cores",
        [Contestant(name, "http.gateway", {"seconds": load.seconds})],
        [
            Column("rate", "messages/s", 0),
            Column("published_p99_ms", "published, p99, ms"),
            Column("received_p99_ms", "received, p99, ms"),
            Column("settled_median_ms", "settled, median, ms"),
            Column("settled_p99_ms", "settled, p99, ms"),
            Column("gateway_us", "gateway CPU, µs/message"),
            WORKER,
            CLIENT,
        ],
        [
            Goal("published, received and settled", figure(name, "rate"), 4_900, True, "messages/s"),
            Goal("from publishing to the end of the settlement, p99", figure(name, "settled_p99_ms"), 100, False, "ms"),
        ],
    )


def first_paint(load: Load) -> Row:
    """Return the row of the console's pages in a browser with an empty cache."""
    few, many = "two entities", f"{load.entities:,} more queues"
    pages = {
        "overview": "overview",
        "queue": "queue",
        "message": "message",
        "letters": "dead letters",
        "sow_topic": "SOW topic",
    }
    size = {"opens": 7, "letters": load.messages // 15}
    return Row(
        "first-paint",
        "The console's pages in Chromium with an empty cache: from the request to the first paint",
        [
            Contestant(few, "http.first_paint", size),
            Contestant(many, "http.first_paint", {**size, "further": load.entities}),
        ],
        [Column(f"{page}_median_ms", f"{title}, ms", 0) for page, title in pages.items()],
        [Goal(f"slowest page, median, {name}", greatest(name, "_median_ms"), 500, False, "ms") for name in (few, many)],
        most_repeats=1,
        timeout_s=900.0,
    )
