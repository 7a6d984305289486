"""The rows of SOW topics."""

from __future__ import annotations

from benchmarks.comparison.columns import BROKER, LIFE, RECOVERY, WORKER
from benchmarks.comparison.load import Load
from benchmarks.comparison.row import Column, Contestant, Goal, Row, figure, ratio


def upserts(load: Load) -> Row:
    """Return the row of upserts, beside stock Faust and Quix Streams."""
    ours, faust, quix = "lapse SOW", "stock Faust table", "Quix Streams state"
    lasting = 5 * load.messages  # about ten seconds each, so that starting hardly counts
    return Row(
        "sow",
        "Upserts of a SOW topic, durable",
        [
            Contestant(ours, "sow.upserts", {"messages": lasting}),
            Contestant(faust, "peers.stock_faust", {"messages": max(5_000, lasting // 25)}),
            Contestant(quix, "peers.quix_state", {"messages": lasting // 2}),
        ],
        LIFE,
        [
            Goal(f"{ours} / {faust}", ratio(ours, faust), 60, True),
            Goal(f"{ours} / {quix}", ratio(ours, quix), 4, True),
        ],
    )


def query(load: Load) -> Row:
    """Return the row of queries, and of how long they delay updates to subscribers."""
    records = min(100_000, load.recovered)
    plain, ordered, top = "in any order", "order_by", "order_by, top_n = 100"
    by = {"messages": records, "order_by": "/qty DESC", "still": True}
    return Row(
        "sow-query",
        f"Queries of {records:,} records through a filter, while others are updated every 5 ms",
        [
            Contestant(plain, "sow.query", {"messages": records, "still": True}),
            Contestant(ordered, "sow.query", by),
            Contestant(top, "sow.query", {**by, "top_n": 100}),
            Contestant(f"{plain}, broker on disk", "sow.query", {"messages": records}),
        ],
        [
            Column("seconds", "one query, s", 2),
            Column("before_p99_ms", "updates before, p99, ms"),
            Column("before_pause_ms", "longest pause, ms"),
            Column("during_p99_ms", "updates meanwhile, p99, ms"),
            Column("pause_ms", "longest pause of a query, ms"),
            Column("worst_pause_ms", "of all, ms"),
            Column("worst_awake_ms", "less standstills of the machine, ms"),
        ],
        [
            Goal(
                f"{name}: the longest that any of nine queries stopped deliveries for",
                figure(name, "worst_awake_ms"),
                20,
                False,
                "ms",
            )
            for name in (plain, ordered, top)
        ],
        most_repeats=1,
    )


def core_turns(load: Load) -> Row:
    """Return the row of how long a shard works without a pause."""
    some, many = min(100_000, load.recovered), min(1_000_000, load.recovered)
    few, all_of_them = f"{some:,} records", f"up to {many:,} records"
    kinds = {
        "update": "500 updates",
        "query": "a query's",
        "order": "an ordered query's",
        "deletion": "a deletion by filter's",
        "expiry": "500 expiries",
    }
    judged = dict.fromkeys(kinds, all_of_them)
    return Row(
        "sow-turns",
        "How long a SOW shard is busy before others have their turn, at most (the core alone)",
        [
            Contestant(few, "sow.core_turns", {"messages": some}),
            Contestant(all_of_them, "sow.core_turns", {"messages": many}),
        ],
        [*(Column(f"{kind}_ms", f"{what}, ms") for kind, what in kinds.items()), Column("bytes", "bytes/record", 0)],
        [
            Goal(f"{kinds[kind]} longest turn, {name}", figure(name, f"{kind}_ms"), 20, False, "ms")
            for kind, name in judged.items()
        ],
        most_repeats=1,
        kafka=False,
    )


def expiry(load: Load) -> Row:
    """Return the row of many records that expire within one second."""
    plain, subscribed = "nobody is subscribed", "a subscription is told of each"
    return Row(
        "sow-expiry",
        f"{load.burst:,} records due within one second: until all are gone, with their tombstones",
        [
            Contestant(plain, "sow.expiry", {"messages": load.burst, "subscribed": False}),
            Contestant(subscribed, "sow.expiry", {"messages": load.burst}),
        ],
        [Column("seconds", "until all are gone, s"), WORKER, BROKER],
        [Goal("from the first deadline to the last tombstone", figure(plain, "seconds"), 10, False, "s")],
        most_repeats=1,
        timeout_s=900.0,
    )


def recovery(load: Load) -> Row:
    """Return the row of the recovery after kill -9, by store."""
    records = min(load.recovered, 1_000_000)
    base = {"messages": records, "entity": "sow"}
    kinds = {"memory": base, "RocksDB": {**base, "store": "rocksdb"}, "standby": {**base, "standby": True}}
    return Row(
        "sow-recovery",
        f"After kill -9, with {records:,} records: to the first answer",
        [Contestant(name, "queue.recovery", arguments) for name, arguments in kinds.items()],
        RECOVERY,
        [Goal(f"{name}, to the first answer", figure(name, "seconds"), 5, False, "s") for name in kinds],
        most_repeats=1,
        timeout_s=900.0,
    )
