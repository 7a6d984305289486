"""Estimates the resources that a load needs, and shows how shards move when workers come and go.

    python -m benchmarks.scale                                              # the tables of docs/scale.md
    python -m benchmarks.scale --entities 8 --partitions 64 --workers 12    # a fleet of yours

`Fleet` runs the code that assigns shards in the workers' group (`lapse.runtime.kafka.group.spread`, `assignor`), with
members that are only names. A test compares it with real workers. `docs/scale.md` shows its output.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from faust.assignor.client_assignment import ClientAssignment
from faust.types import TP

from benchmarks.page import FIGURES
from lapse.protocol import topic as names
from lapse.runtime.kafka.group.assignor import withhold
from lapse.runtime.kafka.group.spread import spread

BUSY: Final = 0.6
"""The share of a core that a worker should use at most, so that it can catch up after a fail-over."""


@dataclass(frozen=True)
class Cost:
    """The cost of a message over its whole life.

    Attributes:
        worker_us: CPU of the worker, µs.
        client_us: CPU of the consumer, µs.
        broker_us: CPU of the broker with one replica, µs.
        message_bytes: bytes that the producer writes.
        lapse_bytes: bytes that lapse writes to its own topics: deliveries, commands, journal, events.
        read_bytes: bytes that worker and consumer read.
    """

    worker_us: float
    client_us: float
    broker_us: float
    message_bytes: float
    lapse_bytes: float
    read_bytes: float


def _medians(report: Mapping[str, Any], row: str, contestant: str) -> Mapping[str, float]:
    """Return the figures of a contestant in a committed report."""
    (found,) = (one for one in report["rows"] if one["name"] == row)
    medians: Mapping[str, float] = found["medians"][contestant]
    return medians


def costs(report: Mapping[str, Any]) -> dict[str, Cost]:
    """Return the costs of a message by the form of its deliveries: the dearest of the brokers' ages in a report.

    Bytes depend on no machine. `python -m benchmarks.queue.footprint` measures them.
    """

    def cost(contestant: str, lapse_bytes: float, read_bytes: float) -> Cost:
        by_age = [_medians(report, row, contestant) for row in ("queue", "queue-fresh")]
        keys = ("worker_us", "client_us", "broker_us")
        worker_us, client_us, broker_us = (round(max(one[key] for one in by_age), 1) for key in keys)
        return Cost(worker_us, client_us, broker_us, 237, lapse_bytes, read_bytes)

    return {"inline": cost("lapse, inline", 251, 480), "by reference": cost("lapse, by reference", 17, 483)}


def restored_after_s(report: Mapping[str, Any]) -> float:
    """Return how long a shard with a million records is read and serves nobody, in the slowest store of a report."""
    stores = (_medians(report, "sow-recovery", store) for store in ("memory", "RocksDB"))
    return round(max(one["restore_s"] + one["rest_s"] for one in stores), 1)


_REPORT: Final = json.loads(FIGURES.read_text("utf-8"))
COSTS: Final = costs(_REPORT)
"""Costs of a message with 200 bytes of payload, a key and a lifetime, in a backlog."""
RESTORE_S: Final = restored_after_s(_REPORT)


@dataclass(frozen=True)
class Need:
    """The resources that a load needs.

    Attributes:
        worker_cores: CPU of all workers, cores.
        workers: worker processes, each using `BUSY` of a core.
        spare: how many of them may fail before the others need more than a core each.
        client_cores: CPU of all consumers, cores.
        broker_cores: CPU of all brokers with one replica, cores.
        in_mb_s: data that producers and lapse write to the brokers, all replicas, MB/s.
        out_mb_s: data read from the brokers, without replication, MB/s.
    """

    worker_cores: float
    workers: int
    spare: int
    client_cores: float
    broker_cores: float
    in_mb_s: float
    out_mb_s: float


def need(rate: float, cost: Cost, replicas: int = 3) -> Need:
    """Return the resources that a rate of messages needs.

    Args:
        rate: messages per second, over all queues.
        cost: the cost of one message.
        replicas: the replicas of all topics.
    """
    cores = rate * cost.worker_us / 1e6
    workers = max(1, math.ceil(cores / BUSY))
    return Need(
        worker_cores=cores,
        workers=workers,
        spare=workers - math.ceil(cores),
        client_cores=rate * cost.client_us / 1e6,
        broker_cores=rate * cost.broker_us / 1e6,
        in_mb_s=rate * (cost.message_bytes + cost.lapse_bytes) * replicas / 1e6,
        out_mb_s=rate * cost.read_bytes / 1e6,
    )


@dataclass(frozen=True)
class FailOver:
    """The effect of a worker's failure on its shards.

    Attributes:
        pause_s: how long nothing is delivered from them, s.
        load: the share of a core that each remaining worker uses while messages arrive at the same rate.
        catch_up_s: how long the messages of the pause take to be served, s; infinite if the others are full.
    """

    pause_s: float
    load: float
    catch_up_s: float


def fail_over(workers: int, load: float, session_timeout_s: float = 6.0, restore_s: float = RESTORE_S) -> FailOver:
    """Return the effect of killing one worker for good.

    Args:
        workers: the number of workers before.
        load: the share of a core that each of them uses.
        session_timeout_s: how long the group waits for the killed worker, s.
        restore_s: the time of the rebalance and of reading the journals of its shards, s.
    """
    pause = session_timeout_s + restore_s
    after = load * workers / (workers - 1) if workers > 1 else math.inf
    missed = pause * load / (workers - 1) if workers > 1 else math.inf  # CPU seconds of each remaining worker
    return FailOver(pause, after, missed / (1 - after) if after < 1 else math.inf)


@dataclass(frozen=True)
class Rebalanced:
    """The result of a change of the group's members.

    Attributes:
        most: the shards of the worker with the most.
        least: the shards of the worker with the fewest.
        moved: shards that a worker gave up although it stayed.
        orphans: shards that were taken over from a worker that had left.
        rounds: rebalances until all workers had their shards.
    """

    most: int
    least: int
    moved: int
    orphans: int
    rounds: int


class Fleet:
    """Workers that are only names, and the shards that the group assigns to them.

    Args:
        entities: the number of shards by entity; each entity reads a topic of the same name.
    """

    def __init__(self, entities: Mapping[str, int]) -> None:
        self._entities = dict(entities)
        self._topics = {name: {name, names.commands(name)} for name in entities}
        self.owned: dict[str, set[TP]] = {}

    def shares(self) -> dict[str, set[tuple[str, int]]]:
        """Return the shards of each worker."""
        return {
            member: {(tp.topic, tp.partition) for tp in tps if tp.topic in self._entities}
            for member, tps in self.owned.items()
        }

    def rebalance(self, members: Iterable[str]) -> Rebalanced:
        """Make these workers the group, and rebalance until no shard is withheld."""
        names_ = sorted(members)
        if not names_:
            self.owned = {}
            return Rebalanced(0, 0, 0, 0, 0)
        before = self.shares()
        gone = set().union(*(shards for member, shards in before.items() if member not in names_), set())
        rounds = 0
        again = True
        while again:
            rounds += 1
            again = self._round(names_)
        after = self.shares()
        moved = sum(len(before[member] - after[member]) for member in names_ if member in before)
        counts = [len(shards) for shards in after.values()]
        return Rebalanced(max(counts), min(counts), moved, len(gone), rounds)

    def _round(self, members: list[str]) -> bool:
        """Run one rebalance. Return whether another one must follow."""
        owned = {member: self.owned.get(member, set()) for member in members}
        everything = {
            topic: list(range(count)) for name, count in self._entities.items() for topic in self._topics[name]
        }
        assignments = {
            member: ClientAssignment(
                actives={topic: list(some) if member == members[0] else [] for topic, some in everything.items()},
                standbys={},
            )
            for member in members
        }
        spread(assignments, owned, self._topics.values())
        again = withhold(assignments, owned)
        self.owned = {member: assignments[member].active_tps for member in members}
        return again


def rebalancing_story(fleet: Fleet, workers: int) -> list[tuple[str, Rebalanced]]:
    """Return what happens to shards when a group starts, loses workers, gets them back, and grows."""
    everybody = [f"w{number:03}" for number in range(workers)]
    rows = [(f"{workers} workers start", fleet.rebalance(everybody))]
    rows.append(("one is killed", fleet.rebalance(everybody[1:])))
    rows.append(("it comes back", fleet.rebalance(everybody)))
    rows.append(("one more comes", fleet.rebalance([*everybody, "x"])))
    rows.append(("it leaves again", fleet.rebalance(everybody)))
    half = everybody[: max(1, workers // 2)]
    rows.append((f"{workers - len(half)} are killed at once", fleet.rebalance(half)))
    return rows


def page() -> dict[str, str]:
    """Return the tables of `docs/scale.md`, and the sentence before one of them, by title."""
    standby = _medians(_REPORT, "sow-recovery", "standby")
    loads = [(name, rate, need(rate, cost)) for name, cost in COSTS.items() for rate in (100_000, 1_000_000)]
    return {
        "what a message costs": _table(
            "deliveries | worker µs | consumer µs | broker µs | message, bytes | lapse's topics, bytes | read, bytes",
            [
                f"{name} | {one.worker_us} | {one.client_us} | {one.broker_us} | {one.message_bytes:g} | "
                f"{one.lapse_bytes:g} | {one.read_bytes:g}"
                for name, one in COSTS.items()
            ],
        ),
        "what a load takes": _table(
            "deliveries | messages/s | worker cores | workers | may be gone | consumer cores | broker cores | "
            "written, MB/s | read, MB/s",
            [
                f"{name} | {rate:,} | {one.worker_cores:.2g} | {one.workers} | {one.spare} | {one.client_cores:.2g} | "
                f"{one.broker_cores:.2g} | {one.in_mb_s:,.0f} | {one.out_mb_s:,.0f}"
                for name, rate, one in loads
            ],
        ),
        "the pause": (
            f"The latter is taken to last {RESTORE_S:.1f} s here, as with a SOW topic of a million records "
            f"([row `sow-recovery`](figures.md)). A standby worker answered {standby['seconds']:.1f} s after the kill, "
            f"and {standby['rejoin_s']:.1f} s of them were the group's wait."
        ),
        "fail-over": _table(
            "workers | load of each | pause of its shards | load afterwards | caught up after",
            [
                f"{workers} | {load:.0%} | {one.pause_s:.1f} s | {one.load:.0%} | "
                + ("never" if math.isinf(one.catch_up_s) else f"{one.catch_up_s:.1f} s")
                for workers, load in ((2, 0.3), (2, 0.6), (5, 0.6), (12, 0.6), (12, 0.9), (50, 0.6))
                for one in [fail_over(workers, load)]
            ],
        ),
        "8 queues of 64 partitions": rebalances(8, 64, 12),
        "1,000 queues of one partition": rebalances(1_000, 1, 10),
    }


def rebalances(entities: int, partitions: int, workers: int) -> str:
    """Return the table of a fleet's changes."""
    fleet = Fleet({f"q{number}": partitions for number in range(entities)})
    return _table(
        "what happens | shards of one worker | moved | taken over | rebalances",
        [
            f"{what} | {one.least} to {one.most} | {one.moved} | {one.orphans} | {one.rounds}"
            for what, one in rebalancing_story(fleet, workers)
        ],
    )


def _table(head: str, rows: Iterable[str]) -> str:
    columns = head.count(" | ")
    return "\n".join([f"| {head} |", "|---|" + "---:|" * columns, *(f"| {row} |" for row in rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entities", type=int, default=0, help="simulate so many; without it, the page's tables")
    parser.add_argument("--partitions", type=int, default=64, help="shards of each entity")
    parser.add_argument("--workers", type=int, default=12)
    arguments = parser.parse_args()
    if arguments.entities:
        print(rebalances(arguments.entities, arguments.partitions, arguments.workers))
        return
    for title, table in page().items():
        print(f"{title}\n\n{table}\n")


if __name__ == "__main__":
    main()
