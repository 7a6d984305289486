"""The rows of deep queues: memory, cost, and state on disk."""

from __future__ import annotations

from benchmarks.comparison.load import Load
from benchmarks.comparison.row import Column, Contestant, Goal, Measure, Medians, Row, figure, ratio


def memory(load: Load) -> Row:
    """Return the row of the memory per queued message."""
    less, most = load.deepest // 10, load.deepest
    fifo, priority = f"FIFO, {most:,}", f"priority, {most:,}"
    return Row(
        "memory",
        "Memory per queued message, each with a lifetime of its own (the core alone)",
        [
            Contestant(f"FIFO, {less:,}", "queue.depth", {"messages": less}),
            Contestant(fifo, "queue.depth", {"messages": most}),
            Contestant(priority, "queue.depth", {"messages": most, "priority": True, "cycled": 1_000}),
        ],
        [Column("bytes", "bytes/message"), Column("arrival_us", "arrival, µs/message", 2)],
        [
            Goal(f"FIFO, {most:,} deep", figure(fifo, "bytes"), 13, False, "B"),
            Goal(f"priority, {most:,} deep", figure(priority, "bytes"), 22, False, "B"),
        ],
        most_repeats=1,
        kafka=False,
    )


def depth(load: Load) -> Row:
    """Return the row of the cost of one message while many others are queued."""
    shallow, deep = "1,000 deep", f"{load.deepest:,} deep"
    return Row(
        "depth",
        "Arrival, lease and acknowledgment of a message while many others are queued (the core alone)",
        [
            Contestant(shallow, "queue.depth", {"messages": 1_000, "cycled": 100_000}),
            Contestant(deep, "queue.depth", {"messages": load.deepest, "cycled": 100_000}),
        ],
        [Column("cost_us", "CPU, µs/message", 2)],
        [Goal(f"{deep} / {shallow}", ratio(deep, shallow, "cost_us"), 1.1, False)],
        kafka=False,
    )


def disk(load: Load) -> Row:
    """Return the row of a deep queue with its state on disk, in the core alone."""
    room = 64 * load.deepest // 10_000_000 or 6
    memory, disk = f"in memory, {load.deepest:,}", f"{room} MiB, the rest on disk, {load.deepest:,}"
    arguments = {"messages": load.deepest, "cycled": 100_000}
    return Row(
        "disk",
        'state = "disk": a deep queue from whose head messages are taken (the core alone)',
        [
            Contestant(memory, "queue.depth", arguments),
            Contestant(disk, "queue.depth", {**arguments, "room": room}),
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
        kafka=False,
    )


def disk_queue(load: Load) -> Row:
    """Return the row of a deep queue with its state on disk, through a broker and a worker."""
    depth = load.recovered
    room = 6 + depth * 64 // 10_000_000
    memory, disk = f"in memory, {depth:,}", f"{room} MiB, the rest on disk, {depth:,}"
    arguments = {"messages": depth, "taken": min(100_000, depth // 10)}
    return Row(
        "disk-queue",
        'state = "disk" through a broker and a worker: a deep queue, messages from its head, and a kill -9',
        [
            Contestant(memory, "queue.disk_queue", {**arguments, "state": "memory"}),
            Contestant(disk, "queue.disk_queue", {**arguments, "room_mib": room}),
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
