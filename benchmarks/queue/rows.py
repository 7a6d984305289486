"""The rows of queues: throughput by the broker's age, latency by the load, deadlines, options and fair shares."""

from __future__ import annotations

from benchmarks.comparison.columns import BROKER, LIFE, RECOVERY, STAGES, WORKER
from benchmarks.comparison.load import Load
from benchmarks.comparison.row import Column, Contestant, Goal, Row, figure, ratio
from lapse.demo import flights

_INLINE, _REFERENCE, _SHARE = "lapse, inline", "lapse, by reference", "share group"
_REHEARSALS = 3
"""After so many runs of some seconds a broker's CPU per message hardly changes any more."""


def queue(messages: int) -> Row:
    """Return the row of a message's whole life, beside every peer, on the broker that all rows share."""
    faust = max(5_000, messages // 15)
    return Row(
        "queue",
        "A message's whole life in a queue: in the log → leased delivery with payload → batched acknowledgment",
        [
            *_whole_lives(messages),
            Contestant("stock Faust table", "peers.stock_faust", {"messages": faust}),
            Contestant("RabbitMQ quorum queue", "peers.rabbitmq", {"messages": messages // 6}),
            Contestant("NATS JetStream", "peers.jetstream", {"messages": messages // 6}),
            Contestant("Redis Streams", "peers.redis_streams", {"messages": messages}),
        ],
        LIFE,
        [
            *_share_group_goals(0.7, 0.8),
            Goal("lapse inline / stock Faust table", ratio(_INLINE, "stock Faust table"), 70, True),
            Goal("lapse inline / RabbitMQ quorum queue", ratio(_INLINE, "RabbitMQ quorum queue"), 5, True),
            Goal("lapse inline / NATS JetStream", ratio(_INLINE, "NATS JetStream"), 10, True),
        ],
    )


def queue_fresh(messages: int) -> Row:
    """Return the row of a message's whole life on brokers just started."""
    return Row(
        "queue-fresh",
        "A message's whole life in a queue, on a broker that was started for this run",
        _whole_lives(messages),
        LIFE,
        _share_group_goals(1.2, 1.2),
        fresh=True,
    )


def _whole_lives(messages: int) -> list[Contestant]:
    return [
        Contestant(_INLINE, "queue.whole_life", {"messages": messages}),
        Contestant(_SHARE, "peers.share_group", {"messages": messages}),
        Contestant(_REFERENCE, "queue.whole_life", {"messages": messages, "payload": "reference"}),
    ]


def _share_group_goals(inline: float, reference: float) -> list[Goal]:
    return [
        Goal("lapse inline / share group", ratio(_INLINE, _SHARE), inline, True),
        Goal("lapse by reference / share group", ratio(_REFERENCE, _SHARE), reference, True),
        Goal("the client's CPU, inline", figure(_INLINE, "client_us"), 1.3, False, "µs"),
        Goal("the client's CPU, by reference", figure(_REFERENCE, "client_us"), 2.0, False, "µs"),
    ]


def several(messages: int) -> Row:
    """Return the row of a message's whole life with several partitions, workers and consumers."""
    ours, theirs = "lapse, {} partition{}, {} worker{}, {} consumer{}", "share group, {} partition{}, {} consumer{}"

    def text(shape: str, *counts: int) -> str:
        return shape.format(*(part for count in counts for part in (count, "" if count == 1 else "s")))

    contestants = []
    for partitions, workers, consumers in ((1, 1, 1), (1, 1, 2), (4, 1, 1), (4, 1, 2), (4, 2, 2)):
        arguments = {"messages": messages, "partitions": partitions, "consumers": consumers}
        name = text(ours, partitions, workers, consumers)
        contestants.append(Contestant(name, "queue.several", {**arguments, "workers": workers}))
        if workers == 1:
            share = {**arguments, "share_group": True}
            contestants.append(Contestant(text(theirs, partitions, consumers), "queue.several", share))
    return Row(
        "queue-several",
        "A message's whole life in a queue, to consumers that are processes of their own and wait for it",
        contestants,
        LIFE,
        [
            Goal(
                "lapse, 2 workers, 2 consumers / share group, 2 consumers, of 4 partitions",
                ratio(text(ours, 4, 2, 2), text(theirs, 4, 2)),
                0.7,
                True,
            )
        ],
        most_repeats=2,
    )


def latency(seconds: float) -> Row:
    """Return the row of latency under a light load.

    The broker compiles its code for minutes at these rates, and keeps the CPU from worker and consumer. The work in
    large batches that has warmed it does not compile all of it.
    """
    contestants = []
    goals = []
    for rate, median in ((200, 3), (2_000, 2.5)):
        ours, theirs = f"lapse, {rate:,}/s", f"share group, {rate:,}/s"
        arguments = {"rate": rate, "seconds": seconds}
        contestants += [
            Contestant(ours, "queue.latency", arguments),
            Contestant(theirs, "peers.share_group_latency", arguments),
        ]
        goals += [
            Goal(f"median, lapse / share group, {rate:,}/s", ratio(ours, theirs, "median_ms"), median, False),
            Goal(f"p99, lapse / share group, {rate:,}/s", ratio(ours, theirs, "p99_ms"), 2, False),
        ]
    columns = [
        Column("median_ms", "median, ms"),
        Column("p99_ms", "p99, ms"),
        Column("max_ms", "greatest, ms"),
        *STAGES,
    ]
    title = "From publishing to the consumer, at a steady rate"
    return Row("latency", title, contestants, columns, goals, rehearsals=_REHEARSALS)


def latency_fast(seconds: float) -> Row:
    """Return the row of latency and CPU under a heavy load."""
    arguments = {"rate": 20_000, "seconds": seconds, "linger_ms": 1.0}
    return Row(
        "latency-fast",
        "From publishing to the consumer at 20,000/s; the client's CPU is the publisher's, too",
        [Contestant("lapse", "queue.latency", arguments), Contestant(_SHARE, "peers.share_group_latency", arguments)],
        [
            Column("median_ms", "median, ms"),
            Column("p99_ms", "p99, ms"),
            Column("max_ms", "greatest, ms"),
            *LIFE[1:],
            *STAGES,
        ],
        [
            Goal("median, lapse", figure("lapse", "median_ms"), 10, False, "ms"),
            Goal("p99, lapse", figure("lapse", "p99_ms"), 30, False, "ms"),
        ],
        rehearsals=_REHEARSALS,
    )


def burst(load: Load) -> Row:
    """Return the row of many messages that expire within one second."""
    name = f"{load.burst:,} messages"
    return Row(
        "burst",
        "Messages due within one second, all to be dead-lettered, while others are published in a closed loop",
        [Contestant(name, "queue.burst", {"messages": load.burst})],
        [
            Column("seconds", "until all letters are written, s"),
            WORKER,
            Column("publish_before", "published before, messages/s", 0),
            Column("publish_during", "meanwhile, messages/s", 0),
        ],
        [
            Goal("from the first deadline to the last letter", figure(name, "seconds"), 5, False, "s"),
            Goal("publishing meanwhile / before", figure(name, "publish_ratio"), 0.5, True),
        ],
        most_repeats=1,
    )


def lateness(load: Load) -> Row:
    """Return the row of how late messages expire under half load."""
    name = "at half load"
    return Row(
        "lateness",
        "How late messages expire, at half the rate that one core of CPU is enough for",
        [Contestant(name, "queue.lateness", {"seconds": load.seconds, "calibration": load.messages // 5})],
        [
            Column("rate", "messages/s", 0),
            Column("decided_median_ms", "decision, median, ms"),
            Column("decided_p99_ms", "decision, p99, ms"),
            Column("written_median_ms", "letter written, median, ms"),
            Column("written_p99_ms", "letter written, p99, ms"),
        ],
        [
            Goal("decision behind the deadline, p99", figure(name, "decided_p99_ms"), 10, False, "ms"),
            Goal("letter behind the deadline, p99", figure(name, "written_p99_ms"), 20, False, "ms"),
        ],
        most_repeats=1,
    )


def recovery(load: Load) -> Row:
    """Return the row of the recovery after kill -9."""
    name = f"queue, {load.recovered:,} messages"
    return Row(
        "recovery",
        "After kill -9 and an immediate restart: to the first delivery",
        [Contestant(name, "queue.recovery", {"messages": load.recovered})],
        RECOVERY,
        [Goal("to the first delivery", figure(name, "seconds"), 5, False, "s")],
        most_repeats=1,
        timeout_s=900.0,
    )


def one_filter() -> Row:
    """Return the row of one evaluation of a filter."""
    name = "/price * /qty > 100 AND /symbol LIKE '^A'"
    return Row(
        "filter",
        "One evaluation of a filter on a parsed message (the core alone)",
        [Contestant(name, "queue.filter")],
        [Column("evaluation_us", "median, µs", 2), Column("best_us", "best, µs", 2)],
        [Goal("one evaluation", figure(name, "evaluation_us"), 0.34, False, "µs")],
        kafka=False,
    )


def options(load: Load) -> Row:
    """Return the row of the cost of each option of a queue."""
    base = {"messages": load.messages // 3, "json": True}
    return Row(
        "options",
        "What the options of a queue cost, inline, payloads of JSON",
        [
            Contestant("plain", "queue.whole_life", base),
            Contestant("priority", "queue.whole_life", {**base, "options": 'priority = "/price"'}),
            Contestant("subscription filter", "queue.whole_life", {**base, "filter": "/price >= 0 AND /qty > 0"}),
            Contestant("total order", "queue.whole_life", {**base, "options": 'ordering = "total"'}),
            Contestant("groups", "queue.whole_life", {**base, "options": 'group_by = "/account"'}),
            Contestant("RocksDB store", "queue.whole_life", {**base, "store": "rocksdb"}),
            Contestant("state on disk", "queue.whole_life", {**base, "options": 'state = "disk"\nstate_memory = 1'}),
        ],
        LIFE,
        most_repeats=1,
    )


def shares(load: Load) -> Row:
    """Return the row of fair shares between a large tenant and small ones."""
    fair, plain = "groups in turn", "plain queue"
    seconds = {"seconds": 4 * load.seconds}
    waits = (Column("median_ms", "visitors wait, median, ms"), Column("p99_ms", "99 %, ms"))
    return Row(
        "shares",
        "One tenant with 100 times the backlog of each of 200 others, and visitors in between",
        [Contestant(fair, "queue.shares", seconds), Contestant(plain, "queue.shares", {**seconds, "fair": False})],
        [Column("jain", "Jain's index, the least of any 10 s", 3), *waits, WORKER, BROKER],
        [
            Goal("Jain's index of groups in turn", figure(fair, "jain"), 0.95, True, ""),
            Goal("worker CPU, groups in turn / plain", ratio(fair, plain, "worker_us"), 1.5, False),
        ],
        most_repeats=1,
    )


_LIMIT = 'group_by = "/account"\ngroup_limit = 1000'
_WEIGHT, _RATE = "group_weight = { a1 = 4, a2 = 2 }", 'rate = "1000000/1s"'
_GROUP_RATE = 'group_rate = "1000000/1s"'
_SHARES = {
    "rate": _RATE,
    "group_limit": _LIMIT,
    "group_limit, group_weight": f"{_LIMIT}\n{_WEIGHT}",
    "group_limit, group_rate": f"{_LIMIT}\n{_GROUP_RATE}",
    "all of these": f"{_LIMIT}\n{_WEIGHT}\n{_GROUP_RATE}\n{_RATE}",
}
"""By name: lines of the queue's table. The limits and rates permit more than is delivered: nothing waits for them."""


def shares_drained(load: Load) -> Row:
    """Return the row of what shares cost a message while a queue is drained at full speed."""
    plain = "plain queue"
    base = {"messages": load.messages // 2, "json": True, "groups": 200}
    contestants = [Contestant(plain, "queue.whole_life", base)]
    for name, options in _SHARES.items():
        contestants.append(Contestant(name, "queue.whole_life", {**base, "options": options}))
    return Row(
        "shares-drained",
        "What shares cost while a queue of 200 groups in no order is drained at full speed",
        contestants,
        LIFE,
        [Goal(f"worker CPU, {name} / plain", ratio(name, plain, "worker_us"), 1.5, False) for name in _SHARES],
    )


def follow(load: Load) -> Row:
    """Return the row of messages that are handed over to a consumer at another cluster (Q26)."""
    return Row(
        "follow",
        "From publishing at one cluster to the only consumer, at another one, over `lapse transfer --follow`",
        [Contestant("200/s", "queue.follow", {"seconds": 2 * load.seconds})],
        [Column("median_ms", "median, ms"), Column("p99_ms", "p99, ms"), Column("max_ms", "greatest, ms")],
        most_repeats=1,
    )


def atomic(load: Load) -> Row:
    """Return the row of what a transaction of outputs and acknowledgments costs (X9)."""
    columns = [
        Column(f"{way}_{at_once}", f"{name}, {size}, messages/s", 0)
        for at_once, size in ((1, "one at a time"), (100, "a hundred"))
        for way, name in (("plain", "plain"), ("atomic", "in a transaction"))
    ]
    return Row(
        "atomic",
        "Messages processed: output published and message acknowledged, plainly or in one Kafka transaction",
        [Contestant("lapse", "queue.atomic", {"messages": load.messages // 15})],
        columns,
        most_repeats=1,
    )


def year(load: Load) -> Row:
    """Return the row of a simulated year (X10)."""
    name = "all departures from New York in 2013"
    return Row(
        "year",
        "A year of flights in `lapse simulate`: announced two hours ahead, served by four consumers",
        [Contestant(name, "queue.flights_year", {"most": min(flights.IN_ALL, 2 * load.messages)})],
        [
            Column("flights", "flights", 0),
            Column("served", "served", 0),
            Column("too_late", "too late", 0),
            Column("cpu_s", "CPU, s"),
            Column("seconds", "in all, s"),
        ],
        [Goal("a year of flights", figure(name, "seconds"), 60, False, "s")],
        most_repeats=1,
        kafka=False,
    )
