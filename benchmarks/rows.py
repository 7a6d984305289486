"""All rows, for a load."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.queue_rows import LIFE, latency, latency_fast, many_entities, queue, queue_brokers, several
from benchmarks.row import Column, Contestant, Goal, Measure, Medians, Row, figure, ratio


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured.

    Attributes:
        messages: through a queue; other rows take their part of it.
        burst: messages due in one second.
        recovered: messages, or SOW records, of the recovery.
        deepest: messages of the core alone.
        seconds: of steady publishing.
        ledger: messages of the greater ledger.
        warming: messages that a broker serves before it counts as warm.
        entities: queues of one worker.
    """

    messages: int = 300_000
    burst: int = 1_000_000
    recovered: int = 1_000_000
    deepest: int = 10_000_000
    seconds: float = 6.0
    ledger: int = 20_000_000
    warming: int = 3_000_000
    entities: int = 1_000


QUICK = Load(
    messages=60_000,
    burst=100_000,
    recovered=100_000,
    deepest=1_000_000,
    seconds=3.0,
    ledger=500_000,
    warming=200_000,
    entities=50,
)
"""Shows that everything runs; too little for figures that one would quote."""

_RECOVERY = (
    Column("seconds", "in all, s"),
    Column("start_s", "process start, s"),
    Column("rejoin_s", "back in the group, s"),
    Column("restore_s", "changelog read, s"),
    Column("rest_s", "to the first one, s"),
)
_RATE, _WORKER, _CLIENT, _BROKER = LIFE


def rows(load: Load) -> list[Row]:
    """The rows, in the order in which they run."""
    return [
        queue(load.messages),
        *queue_brokers(load.messages, load.warming),
        several(load.messages),
        latency(load.seconds),
        latency_fast(load.seconds),
        many_entities(load.entities),
        _gateway(load),
        _memory(load),
        _depth(load),
        _disk(load),
        _disk_queue(load),
        _sow(load),
        _sow_query(load),
        _sow_turns(load),
        _sow_expiry(load),
        _sow_recovery(load),
        _burst(load),
        _lateness(load),
        _recovery(load),
        _filter(),
        _options(load),
        _shares(load),
        _ledger(load),
        _letters(load),
    ]


def _gateway(load: Load) -> Row:
    name = "5,000/s in batches of 50"
    return Row(
        "gateway",
        "Published, received and acknowledged over HTTP; broker, worker, gateway and callers on two cores",
        [Contestant(name, "gateway", {"seconds": load.seconds})],
        [
            Column("rate", "messages/s", 0),
            Column("published_p99_ms", "published, p99, ms"),
            Column("received_p99_ms", "received, p99, ms"),
            Column("settled_median_ms", "settled, median, ms"),
            Column("settled_p99_ms", "settled, p99, ms"),
            Column("gateway_us", "gateway CPU, µs/message"),
            _WORKER,
            _CLIENT,
        ],
        [
            Goal("published, received and settled", figure(name, "rate"), 4_900, True, "messages/s"),
            Goal("from publishing to the end of the settlement, p99", figure(name, "settled_p99_ms"), 100, False, "ms"),
        ],
    )


def _memory(load: Load) -> Row:
    less, most = load.deepest // 10, load.deepest
    fifo, priority = f"FIFO, {most:,}", f"priority, {most:,}"
    return Row(
        "memory",
        "Memory per queued message, each with a lifetime of its own (the core alone)",
        [
            Contestant(f"FIFO, {less:,}", "depth", {"messages": less}),
            Contestant(fifo, "depth", {"messages": most}),
            Contestant(priority, "depth", {"messages": most, "priority": True, "cycled": 1_000}),
        ],
        [Column("bytes", "bytes/message"), Column("arrival_us", "arrival, µs/message", 2)],
        [
            Goal(f"FIFO, {most:,} deep", figure(fifo, "bytes"), 13, False, "B"),
            Goal(f"priority, {most:,} deep", figure(priority, "bytes"), 22, False, "B"),
        ],
        most_repeats=1,
    )


def _depth(load: Load) -> Row:
    shallow, deep = "1,000 deep", f"{load.deepest:,} deep"
    return Row(
        "depth",
        "Arrival, lease and acknowledgment of a message while many others are queued (the core alone)",
        [
            Contestant(shallow, "depth", {"messages": 1_000, "cycled": 100_000}),
            Contestant(deep, "depth", {"messages": load.deepest, "cycled": 100_000}),
        ],
        [Column("cost_us", "CPU, µs/message", 2)],
        [Goal(f"{deep} / {shallow}", ratio(deep, shallow, "cost_us"), 1.1, False)],
    )


def _disk(load: Load) -> Row:
    room = 64 * load.deepest // 10_000_000 or 6
    memory, disk = f"in memory, {load.deepest:,}", f"{room} MiB, the rest on disk, {load.deepest:,}"
    arguments = {"messages": load.deepest, "cycled": 100_000}
    return Row(
        "disk",
        'state = "disk": a deep queue from whose head messages are taken (the core alone)',
        [
            Contestant(memory, "depth", arguments),
            Contestant(disk, "depth", {**arguments, "room": room}),
        ],
        [
            Column("mib", "resident memory, MiB", 0),
            Column("arrival_us", "arrival, µs/message", 2),
            Column("cost_us", "arrival to acknowledgment, µs/message", 2),
            Column("passed", "messages delivered", 0),
            Column("needed", "segments with them", 0),
            Column("read", "segments read back", 0),
        ],
        [
            Goal("resident memory, room and what is beside it", figure(disk, "mib"), 1.5 * room, False, "MiB"),
            Goal("segments read / with messages delivered", _read_for_needed(disk), 1.1, False),
            Goal("on disk / in memory, arrival to acknowledgment", ratio(disk, memory, "cost_us"), 1.2, False),
        ],
        most_repeats=1,
    )


def _disk_queue(load: Load) -> Row:
    depth = load.recovered
    room = 6 + depth * 64 // 10_000_000
    memory, disk = f"in memory, {depth:,}", f"{room} MiB, the rest on disk, {depth:,}"
    arguments = {"messages": depth, "taken": min(100_000, depth // 10)}
    return Row(
        "disk-queue",
        'state = "disk" through a broker and a worker: a deep queue, messages from its head, and a kill -9',
        [
            Contestant(memory, "disk_queue", {**arguments, "state": "memory"}),
            Contestant(disk, "disk_queue", {**arguments, "room_mib": room}),
        ],
        [
            Column("idle_mib", "worker before, MiB", 0),
            Column("most_mib", "at most, MiB", 0),
            Column("filled_s", "filled in, s"),
            Column("rate", "delivered, messages/s", 0),
            Column("in_memory", "segments in memory", 0),
            Column("on_disk", "on disk", 0),
            Column("needed", "segments with deliveries", 0),
            Column("read", "segments read back", 0),
            Column("recovered_s", "kill to next delivery, s"),
            Column("most_after_mib", "then at most, MiB", 0),
        ],
        [
            Goal("segments read / with messages delivered", _read_for_needed(disk), 1.1, False),
            Goal("to the first delivery after the kill", figure(disk, "recovered_s"), 15, False, "s"),
        ],
        most_repeats=1,
        timeout_s=2_400.0,
    )


def _read_for_needed(name: str) -> Measure:
    read, needed = figure(name, "read"), figure(name, "needed")

    def measure(medians: Medians) -> float | None:
        some, of = read(medians), needed(medians)
        return None if some is None or not of else some / of

    return measure


def _sow(load: Load) -> Row:
    ours, faust, quix = "lapse SOW", "stock Faust table", "Quix Streams state"
    lasting = 5 * load.messages  # each at work for about ten seconds: what a broker or a worker does at first is little
    return Row(
        "sow",
        "Upserts of a SOW topic, durable",
        [
            Contestant(ours, "sow_upserts", {"messages": lasting}),
            Contestant(faust, "stock_faust", {"messages": max(5_000, lasting // 25)}),
            Contestant(quix, "quix_state", {"messages": lasting // 2}),
        ],
        LIFE,
        [
            Goal(f"{ours} / {faust}", ratio(ours, faust), 60, True),
            Goal(f"{ours} / {quix}", ratio(ours, quix), 4, True),
        ],
    )


def _sow_query(load: Load) -> Row:
    records = min(100_000, load.recovered)
    plain, ordered, top = "in any order", "order_by", "order_by, top_n = 100"
    by = {"messages": records, "order_by": "/qty DESC", "still": True}
    return Row(
        "sow-query",
        f"Queries of {records:,} records through a filter, while others are updated every 5 ms",
        [
            Contestant(plain, "sow_query", {"messages": records, "still": True}),
            Contestant(ordered, "sow_query", by),
            Contestant(top, "sow_query", {**by, "top_n": 100}),
            Contestant(f"{plain}, broker on disk", "sow_query", {"messages": records}),
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


def _sow_turns(load: Load) -> Row:
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
            Contestant(few, "sow_turns", {"messages": some}),
            Contestant(all_of_them, "sow_turns", {"messages": many}),
        ],
        [*(Column(f"{kind}_ms", f"{what}, ms") for kind, what in kinds.items()), Column("bytes", "bytes/record", 0)],
        [
            Goal(f"{kinds[kind]} longest turn, {name}", figure(name, f"{kind}_ms"), 20, False, "ms")
            for kind, name in judged.items()
        ],
        most_repeats=1,
    )


def _sow_expiry(load: Load) -> Row:
    plain, told = "nobody is subscribed", "a subscription is told of each"
    return Row(
        "sow-expiry",
        f"{load.burst:,} records due within one second: until all are gone, with their tombstones",
        [
            Contestant(plain, "sow_expiry", {"messages": load.burst, "subscribed": False}),
            Contestant(told, "sow_expiry", {"messages": load.burst}),
        ],
        [Column("seconds", "until all are gone, s"), _WORKER, _BROKER],
        [Goal("from the first deadline to the last tombstone", figure(plain, "seconds"), 10, False, "s")],
        most_repeats=1,
        timeout_s=900.0,
    )


def _sow_recovery(load: Load) -> Row:
    records = min(load.recovered, 1_000_000)
    base = {"messages": records, "entity": "sow"}
    kinds = {"memory": base, "RocksDB": {**base, "store": "rocksdb"}, "standby": {**base, "standby": True}}
    return Row(
        "sow-recovery",
        f"After kill -9, with {records:,} records: to the first answer",
        [Contestant(name, "recovery", arguments) for name, arguments in kinds.items()],
        _RECOVERY,
        [Goal(f"{name}, to the first answer", figure(name, "seconds"), 5, False, "s") for name in kinds],
        most_repeats=1,
        timeout_s=900.0,
    )


def _burst(load: Load) -> Row:
    name = f"{load.burst:,} messages"
    return Row(
        "burst",
        "Messages due within one second, all to be dead-lettered, while others are published in a closed loop",
        [Contestant(name, "burst", {"messages": load.burst})],
        [
            Column("seconds", "until all letters are written, s"),
            _WORKER,
            Column("publish_before", "published before, messages/s", 0),
            Column("publish_during", "meanwhile, messages/s", 0),
        ],
        [
            Goal("from the first deadline to the last letter", figure(name, "seconds"), 5, False, "s"),
            Goal("publishing meanwhile / before", figure(name, "publish_ratio"), 0.5, True),
        ],
        most_repeats=1,
    )


def _lateness(load: Load) -> Row:
    name = "at half load"
    return Row(
        "lateness",
        "How late messages expire, at half the rate that one core of CPU is enough for",
        [Contestant(name, "lateness", {"seconds": load.seconds, "calibration": load.messages // 5})],
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


def _recovery(load: Load) -> Row:
    name = f"queue, {load.recovered:,} messages"
    return Row(
        "recovery",
        "After kill -9 and an immediate restart: to the first delivery",
        [Contestant(name, "recovery", {"messages": load.recovered})],
        _RECOVERY,
        [Goal("to the first delivery", figure(name, "seconds"), 5, False, "s")],
        most_repeats=1,
        timeout_s=900.0,
    )


def _filter() -> Row:
    name = "/price * /qty > 100 AND /symbol LIKE '^A'"
    return Row(
        "filter",
        "One evaluation of a filter on a parsed message (the core alone)",
        [Contestant(name, "filter")],
        [Column("evaluation_us", "median, µs", 2), Column("best_us", "best, µs", 2)],
        [Goal("one evaluation", figure(name, "evaluation_us"), 0.34, False, "µs")],
    )


def _options(load: Load) -> Row:
    base = {"messages": load.messages // 3, "json": True}
    return Row(
        "options",
        "What the options of a queue cost, inline, payloads of JSON",
        [
            Contestant("plain", "queue_life", base),
            Contestant("priority", "queue_life", {**base, "options": 'priority = "/price"'}),
            Contestant("subscription filter", "queue_life", {**base, "filter": "/price >= 0 AND /qty > 0"}),
            Contestant("total order", "queue_life", {**base, "options": 'ordering = "total"'}),
            Contestant("groups", "queue_life", {**base, "options": 'group_by = "/account"'}),
            Contestant("RocksDB store", "queue_life", {**base, "store": "rocksdb"}),
            Contestant("state on disk", "queue_life", {**base, "options": 'state = "disk"\nstate_memory = 1'}),
        ],
        LIFE,
        most_repeats=1,
    )


def _shares(load: Load) -> Row:
    fair, plain = "groups in turn", "plain queue"
    seconds = {"seconds": 4 * load.seconds}
    waits = (Column("median_ms", "visitors wait, median, ms"), Column("p99_ms", "99 %, ms"))
    return Row(
        "shares",
        "One tenant with 100 times the backlog of each of 200 others, and visitors in between",
        [Contestant(fair, "shares", seconds), Contestant(plain, "shares", {**seconds, "fair": False})],
        [Column("jain", "Jain's index, the least of any 10 s", 3), *waits, _WORKER, _BROKER],
        [
            Goal("Jain's index of groups in turn", figure(fair, "jain"), 0.95, True, ""),
            Goal("worker CPU, groups in turn / plain", ratio(fair, plain, "worker_us"), 1.5, False),
        ],
        most_repeats=1,
    )


def _letters(load: Load) -> Row:
    reader = "letters, read by Spark"
    questions = {"count": "counted", "by_reason": "by reason", "whole": "all columns", "readable": "readable ones"}
    columns = [
        Column(f"{key}_{way}", f"{name}, {said}", 0)
        for key, name in questions.items()
        for way, said in (("reader", "letters/CPU s"), ("by_hand", "by hand"))
    ]
    return Row(
        "letters",
        "Dead letters read by Spark, beside a query on the topic written by hand",
        [Contestant(reader, "letters", {"letters": load.ledger // 10})],
        columns,
        [
            Goal(f"{name}: reader / by hand", figure(reader, f"{key}_ratio"), 0.6, True, "")
            for key, name in questions.items()
        ],
        most_repeats=1,
        timeout_s=1800.0,
    )


def _ledger(load: Load) -> Row:
    less, most = load.ledger // 10, load.ledger
    small, great = f"{less:,} messages", f"{most:,} messages"
    return Row(
        "ledger",
        "The ledger of a queue, from its topics, by Spark in one process",
        [Contestant(small, "ledger", {"messages": less}), Contestant(great, "ledger", {"messages": most})],
        [
            Column("seconds", "in all, s"),
            Column("per_million_s", "a million, s", 2),
            Column("cpu_us", "Spark CPU, µs/message", 2),
            Column("peak_mib", "Spark, most memory, MiB", 0),
            Column("ranges", "ranges in events", 0),
            Column("letters", "letters", 0),
        ],
        [
            Goal(great, figure(great, "seconds"), 600, False, "s"),
            Goal(f"a message of {great} / of {small}", ratio(great, small, "per_million_s"), 1.3, False),
            Goal("most memory", figure(great, "peak_mib"), 8192, False, "MiB"),
        ],
        most_repeats=1,
        timeout_s=1800.0,
    )
