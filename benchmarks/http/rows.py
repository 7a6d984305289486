"""The row of the gateway."""

from __future__ import annotations

from benchmarks.comparison.columns import CLIENT, WORKER
from benchmarks.comparison.load import Load
from benchmarks.comparison.row import Column, Contestant, Goal, Row, figure


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
