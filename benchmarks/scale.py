"""What a load takes, by the measured cost of a message, and which worker has what when workers come and go.

    python -m benchmarks.scale                                              # the tables of docs/scale.md
    python -m benchmarks.scale --entities 8 --partitions 64 --workers 12    # a fleet of yours

`Fleet` runs the code by which the workers' group gives shards out (`lapse.runtime.kafka.spread`, `assignor`), with
members that are only names. A test holds it against real workers; `docs/scale.md` shows what it prints.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from faust.assignor.client_assignment import ClientAssignment
from faust.types import TP

from lapse.protocol import topic as names
from lapse.runtime.kafka.assignor import withhold
from lapse.runtime.kafka.spread import spread

BUSY: Final = 0.6
"""How much of a core a worker should use at most, so that it can catch up after a fail-over."""


@dataclass(frozen=True)
class Cost:
    """What a message costs in its whole life, as `python -m benchmarks.queue.footprint` measures it.

    Attributes:
        worker_us: CPU of the worker.
        client_us: CPU of the consumer.
        broker_us: CPU of the broker, one replica.
        message_bytes: what the producer writes.
        lapse_bytes: what lapse writes to its own topics: deliveries, commands, journal, events.
        read_bytes: what worker and consumer read.
    """

    worker_us: float
    client_us: float
    broker_us: float
    message_bytes: float
    lapse_bytes: float
    read_bytes: float


COSTS: Final = {
    "inline": Cost(3.0, 1.2, 4.9, message_bytes=237, lapse_bytes=251, read_bytes=480),
    "by reference": Cost(2.2, 1.7, 3.4, message_bytes=237, lapse_bytes=17, read_bytes=483),
}
"""Of 200,000 messages with 200 bytes of payload, a key and a lifetime, drained from a backlog on two busy cores."""


@dataclass(frozen=True)
class Need:
    """What a load takes.

    Attributes:
        worker_cores: CPU of all workers.
        workers: processes, each at `BUSY` of a core.
        spare: how many of them may be gone, until the others take more than a core each.
        client_cores: CPU of all consumers.
        broker_cores: CPU of all brokers, one replica.
        in_mb_s: written to the brokers by producers and lapse, all replicas.
        out_mb_s: read from the brokers, without replicas.
    """

    worker_cores: float
    workers: int
    spare: int
    client_cores: float
    broker_cores: float
    in_mb_s: float
    out_mb_s: float


def need(rate: float, cost: Cost, replicas: int = 3) -> Need:
    """What so many messages a second take.

    Args:
        rate: messages per second, over all queues.
        cost: of one.
        replicas: of all topics.
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
    """What the death of one worker costs its shards.

    Attributes:
        pause_s: nothing is delivered from them.
        load: of a core, of each worker that is left, while messages come at the same rate.
        catch_up_s: until what has come meanwhile is served; infinite if the others have no room.
    """

    pause_s: float
    load: float
    catch_up_s: float


def fail_over(workers: int, load: float, session_timeout_s: float = 6.0, restore_s: float = 1.8) -> FailOver:
    """What happens when one of so many workers is killed and stays away.

    Args:
        workers: before.
        load: of a core, of each of them.
        session_timeout_s: after which the group misses it.
        restore_s: for the rebalance, and to read the journals of its shards.
    """
    pause = session_timeout_s + restore_s
    after = load * workers / (workers - 1) if workers > 1 else math.inf
    missed = pause * load / (workers - 1) if workers > 1 else math.inf  # CPU seconds, of each that is left
    return FailOver(pause, after, missed / (1 - after) if after < 1 else math.inf)


@dataclass(frozen=True)
class Rebalanced:
    """What came of a change of the group.

    Attributes:
        most: shards of the worker that has most.
        least: shards of the worker that has fewest.
        moved: shards that a worker gave up although it was there.
        orphans: shards that were taken over from a worker that was gone.
        rounds: rebalances until everybody had what was theirs.
    """

    most: int
    least: int
    moved: int
    orphans: int
    rounds: int


class Fleet:
    """Workers that are only names, and the shards that the group gives them.

    Args:
        entities: how many shards each entity has, by name; each reads a topic of its own name.
    """

    def __init__(self, entities: Mapping[str, int]) -> None:
        self._entities = dict(entities)
        self._topics = {name: {name, names.commands(name)} for name in entities}
        self.owned: dict[str, set[TP]] = {}

    def shares(self) -> dict[str, set[tuple[str, int]]]:
        """The shards of each worker."""
        return {
            member: {(tp.topic, tp.partition) for tp in tps if tp.topic in self._entities}
            for member, tps in self.owned.items()
        }

    def rebalance(self, members: Iterable[str]) -> Rebalanced:
        """Have these workers be the group, and rebalance until nothing is withheld any more."""
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
        """One rebalance; whether another one has to follow."""
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


def story(fleet: Fleet, workers: int) -> list[tuple[str, Rebalanced]]:
    """What happens to shards when a group grows, loses a worker, gets it back, and is restarted one by one."""
    everybody = [f"w{number:03}" for number in range(workers)]
    told = [(f"{workers} workers start", fleet.rebalance(everybody))]
    told.append(("one is killed", fleet.rebalance(everybody[1:])))
    told.append(("it comes back", fleet.rebalance(everybody)))
    told.append(("one more comes", fleet.rebalance([*everybody, "x"])))
    told.append(("it leaves again", fleet.rebalance(everybody)))
    half = everybody[: max(1, workers // 2)]
    told.append((f"{workers - len(half)} are killed at once", fleet.rebalance(half)))
    return told


def page() -> dict[str, str]:
    """The tables of `docs/scale.md`, by title."""
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
    """The table of a fleet's story."""
    fleet = Fleet({f"q{number}": partitions for number in range(entities)})
    return _table(
        "what happens | shards of one worker | moved | taken over | rebalances",
        [
            f"{what} | {one.least} to {one.most} | {one.moved} | {one.orphans} | {one.rounds}"
            for what, one in story(fleet, workers)
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
