"""The row of many entities."""

from __future__ import annotations

from benchmarks.comparison.load import Load
from benchmarks.comparison.row import Column, Contestant, Goal, Row, figure


def many_entities(entities: int) -> Row:
    """Return the row with the costs of empty queues and their first answers, on a broker of its own for the topics."""
    name = f"{entities:,} queues"
    return Row(
        "entities",
        "Many empty queues at one worker: applied, started, idle, killed and started again",
        [Contestant(name, "entity.entities", {"entities": entities})],
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


def changes(load: Load) -> Row:
    """Return the row of how long busy queues wait while other entities come, change and go (C90, Q23)."""
    queues, together = load.entities // 5, load.entities // 20
    name = f"beside {queues:,} queues"
    kinds = {
        "create": "created",
        "alter": "changed",
        "delete": "deleted",
        "create_many": f"{together} created",
        "delete_many": f"{together} deleted",
    }
    return Row(
        "changes",
        "The longest time without a delivery of two busy queues while other entities come, change and go",
        [Contestant(name, "entity.changes", {"queues": queues, "together": together})],
        [
            Column("nothing_gap_ms", "no change, ms", 0),
            *(Column(f"{kind}_gap_ms", f"{title}, ms", 0) for kind, title in kinds.items()),
            *(Column(f"{kind}_s", f"{title}, took, s", 2) for kind, title in kinds.items()),
            Column("create_kafka_gap_ms", "plain Kafka consumer, created, ms", 0),
            Column("create_many_kafka_gap_ms", f"plain Kafka consumer, {together} created, ms", 0),
        ],
        [
            *(
                Goal(f"busy queues wait while one is {title}", figure(name, f"{kind}_gap_ms"), 100, False, "ms")
                for kind, title in list(kinds.items())[:3]
            ),
            *(
                Goal(f"until one is {title}", figure(name, f"{kind}_s"), 2, False, "s")
                for kind, title in list(kinds.items())[:3]
            ),
        ],
        most_repeats=1,
        timeout_s=900.0,
        fresh=True,
    )
