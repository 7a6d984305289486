"""Rows of queues: throughput by the broker's age, latency by the load, and many entities."""

from __future__ import annotations

from benchmarks.row import Column, Contestant, Goal, Row, figure, ratio

_INLINE, _REFERENCE, _SHARE = "lapse, inline", "lapse, by reference", "share group"

LIFE = (
    Column("rate", "messages/s", 0),
    Column("worker_us", "worker CPU, µs/message"),
    Column("client_us", "client CPU, µs/message"),
    Column("broker_us", "broker CPU, µs/message"),
)
"""What is shown of messages that went all the way."""

STAGES = tuple(Column(f"{stage}_ms", f"{stage}, ms") for stage in ("read", "wait", "decide", "journal", "deliver"))
"""Where the time goes within a worker: means."""


def queue(messages: int) -> Row:
    """A message's life, beside every peer, on the broker that all rows share."""
    faust = max(5_000, messages // 15)
    return Row(
        "queue",
        "A message's whole life in a queue: in the log → leased delivery with payload → batched acknowledgment",
        [
            Contestant(_INLINE, "queue_life", {"messages": messages}),
            Contestant(_SHARE, "share_group", {"messages": messages}),
            Contestant(_REFERENCE, "queue_life", {"messages": messages, "payload": "reference"}),
            Contestant("stock Faust table", "stock_faust", {"messages": faust}),
            Contestant("RabbitMQ quorum queue", "rabbitmq", {"messages": messages // 6}),
            Contestant("NATS JetStream", "jetstream", {"messages": messages // 6}),
            Contestant("Redis Streams", "redis_streams", {"messages": messages}),
        ],
        LIFE,
        [
            Goal("lapse inline / stock Faust table", ratio(_INLINE, "stock Faust table"), 70, True),
            Goal("lapse inline / RabbitMQ quorum queue", ratio(_INLINE, "RabbitMQ quorum queue"), 5, True),
        ],
    )


def latency(seconds: float) -> Row:
    """Latency where nobody is short of CPU."""
    contestants = []
    goals = []
    for rate, median in ((200, 3), (2_000, 2.5)):
        ours, theirs = f"lapse, {rate:,}/s", f"share group, {rate:,}/s"
        arguments = {"rate": rate, "seconds": seconds}
        contestants += [
            Contestant(ours, "latency", arguments),
            Contestant(theirs, "share_group_latency", arguments),
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
    return Row("latency", "From publishing to the consumer, at a steady rate", contestants, columns, goals)


def queue_brokers(messages: int, warming: int) -> list[Row]:
    """A message's life on a broker just started, and on one that has served for a while."""
    contestants = [
        Contestant(_INLINE, "queue_life", {"messages": messages}),
        Contestant(_SHARE, "share_group", {"messages": messages}),
        Contestant(_REFERENCE, "queue_life", {"messages": messages, "payload": "reference"}),
    ]

    def goals(inline: float, reference: float) -> list[Goal]:
        return [
            Goal("lapse inline / share group", ratio(_INLINE, _SHARE), inline, True),
            Goal("lapse by reference / share group", ratio(_REFERENCE, _SHARE), reference, True),
        ]

    return [
        Row(
            "queue-fresh",
            "A message's whole life in a queue, on a broker that was started for this run",
            contestants,
            LIFE,
            goals(1.2, 1.2),
            fresh=True,
        ),
        Row(
            "queue-warm",
            f"A message's whole life in a queue, on a broker that has served {warming:,} messages",
            contestants,
            LIFE,
            goals(0.7, 0.8),
            warming=warming,
        ),
    ]


def several(messages: int) -> Row:
    """The same life where work is divided: partitions, workers, consumers."""
    ours, theirs = "lapse, {} partition{}, {} worker{}, {} consumer{}", "share group, {} partition{}, {} consumer{}"

    def text(shape: str, *counts: int) -> str:
        return shape.format(*(part for count in counts for part in (count, "" if count == 1 else "s")))

    contestants = []
    for partitions, workers, consumers in ((1, 1, 1), (1, 1, 2), (4, 1, 1), (4, 1, 2), (4, 2, 2)):
        arguments = {"messages": messages, "partitions": partitions, "consumers": consumers}
        name = text(ours, partitions, workers, consumers)
        contestants.append(Contestant(name, "several", {**arguments, "workers": workers}))
        if workers == 1:
            share = {**arguments, "share_group": True}
            contestants.append(Contestant(text(theirs, partitions, consumers), "several", share))
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


def latency_fast(seconds: float) -> Row:
    """Latency and CPU under a load that keeps everybody at work."""
    arguments = {"rate": 20_000, "seconds": seconds, "linger_ms": 1.0}
    return Row(
        "latency-fast",
        "From publishing to the consumer at 20,000/s; the client's CPU is the publisher's, too",
        [Contestant("lapse", "latency", arguments), Contestant(_SHARE, "share_group_latency", arguments)],
        [
            Column("median_ms", "median, ms"),
            Column("p99_ms", "p99, ms"),
            Column("max_ms", "greatest, ms"),
            *LIFE[1:],
            *STAGES,
        ],
    )


def many_entities(entities: int) -> Row:
    """What empty queues cost, and how soon they answer; on a broker of their own, which keeps their topics."""
    name = f"{entities:,} queues"
    return Row(
        "entities",
        "Many empty queues at one worker: applied, started, idle, killed and started again",
        [Contestant(name, "entities", {"entities": entities})],
        [
            Column("apply_s", "lapse apply, s"),
            Column("start_first_after_s", "first answer, s", 2),
            Column("start_last_after_s", "last answer, s"),
            Column("idle_cpu_percent", "idle, % of a core"),
            Column("idle_mib", "idle, MiB", 0),
            Column("again_first_s", "first answer after kill -9, s"),
            Column("again_last_s", "last one, s"),
        ],
        [
            Goal("first answer after the assignment", figure(name, "start_first_after_s"), 1, False, "s"),
            Goal("last answer after the assignment", figure(name, "start_last_after_s"), 10, False, "s"),
            Goal("CPU while idle", figure(name, "idle_cpu_percent"), 5, False, "%"),
            Goal("memory while idle", figure(name, "idle_mib"), 250, False, "MiB"),
            Goal("first answer after a start behind kill -9", figure(name, "again_first_s"), 3, False, "s"),
        ],
        most_repeats=1,
        timeout_s=900.0,
        fresh=True,
    )
