"""Measures how long busy queues wait while other entities are created, changed and deleted (C90)."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Self

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from benchmarks.comparison.contestant import Figures, alone
from benchmarks.instruments import turns
from benchmarks.instruments.trickle import PlainTrickle, Trickle
from benchmarks.instruments.worker import Worker
from lapse.protocol import topic as names
from lapse.topic_creation import NewTopic
from lapse_client import Admin, Connection, Queue

_AFTER_S = 1.0
_START_S = 300.0
_SHARDS = 2
_OPTIONS = 'definitions = "topic"'


def run(bootstrap_servers: str, queues: int = 200, workers: int = 1, rate: int = 200, together: int = 50) -> Figures:
    """Change entities beside idle queues and two busy ones, whose shards are on different workers if there are two.

    The longest time without a delivery is compared with the time before, and with that of a plain Kafka consumer
    during the change, as creating and deleting topics keeps the broker busy. Altering a busy queue restores its own
    shards, so its time is listed separately. A turn is what a worker's event loop does without a pause. Its CPU does
    not depend on the machine's other load.

    Args:
        bootstrap_servers: the broker.
        queues: the number of queues, including the busy ones.
        workers: the number of workers that share the shards.
        rate: messages a second of each busy queue.
        together: how many queues are created, and deleted, at once.
    """
    stamp = time.time_ns()
    deployment = f"changes-{stamp}"
    idle = [f"idle-{stamp}-{number}" for number in range(queues - 2)]
    busy = [f"busy-{stamp}-{number}" for number in range(2)]
    one, *several = [f"fresh-{stamp}-{number}" for number in range(together + 1)]
    plain = f"plain-{stamp}"
    _create_topics(bootstrap_servers, [*idle, *busy, one, *several, plain])
    with contextlib.ExitStack() as stack:
        tables = _tables([*idle, *busy])
        serving = [
            stack.enter_context(Worker(bootstrap_servers, deployment, tables, "memory", _OPTIONS, turns=True))
            for _ in range(workers)
        ]
        first, connection = serving[0], Connection(bootstrap_servers)
        first.apply()
        for worker in serving:
            worker.start()
        for name in [*busy, *idle]:
            with Queue(name, connection=connection, timeout_s=_START_S) as queue:
                queue.depth()
        trickles = [Trickle(bootstrap_servers, name, rate, partition) for partition, name in enumerate(busy)]
        measured = _Measured(serving, trickles, PlainTrickle(bootstrap_servers, plain, rate, 0))
        first.until(lambda: all(len(trickle.delivered_at) > rate for trickle in trickles))
        removed = stack.enter_context(_Removal(bootstrap_servers, deployment, first))
        admin = stack.enter_context(Admin(deployment, connection=connection, timeout_s=60))

        def apply() -> None:
            altered = f"[queue.{busy[0]}]\nmax_deliveries = 50"  # the file would alter the busy queue back
            first.apply("\n".join((altered, _tables([*idle, *busy[1:], *several]))))
            first.until(lambda: _restored(serving, several), every_s=0.1)

        measured("nothing", lambda: time.sleep(3))
        measured("create", lambda: admin.create_queue(one))
        measured("alter", lambda: admin.alter_queue(one, lease_period="50s"))
        measured("delete", lambda: removed([one]))
        measured("alter_busy", lambda: admin.alter_queue(busy[0], max_deliveries=50), altered=trickles[0])
        measured("create_many", apply)
        measured("delete_many", lambda: removed(several))
        measured.end()
    return {"queues": queues, "workers": workers, **measured.figures}


class _Measured:
    """Makes changes, and measures how long busy queues wait meanwhile.

    Args:
        serving: the workers.
        trickles: a steady trickle through each busy queue.
        kafka: one through a plain topic.

    Attributes:
        figures: what was measured.
    """

    def __init__(self, serving: Sequence[Worker], trickles: Sequence[Trickle], kafka: PlainTrickle) -> None:
        self.figures: Figures = {}
        self._serving = serving
        self._trickles = trickles
        self._kafka = kafka

    def __call__(self, what: str, change: Callable[[], object], altered: Trickle | None = None) -> None:
        """Make a change.

        Args:
            what: its name, with which its figures begin.
            change: makes it; returns when it is done.
            altered: the trickle of the busy queue that is changed itself; None if none is.
        """
        figures = self.figures
        since_s = time.time()
        change()
        until_s = time.time() + _AFTER_S
        time.sleep(_AFTER_S + 0.2)
        figures[f"{what}_s"] = until_s - _AFTER_S - since_s
        gaps_ms = {trickle: trickle.longest_ms(since_s, until_s) for trickle in self._trickles}
        figures[f"{what}_gap_ms"] = max(gap_ms for trickle, gap_ms in gaps_ms.items() if trickle is not altered)
        figures[f"{what}_kafka_gap_ms"] = self._kafka.longest_ms(since_s, until_s)
        if altered is not None:
            figures[f"{what}_own_gap_ms"] = max(gaps_ms.values())
        found = [turns.longest(worker.turns_file, since_s, until_s) for worker in self._serving]
        figures[f"{what}_turn_cpu_ms"] = max(cpu_ms for cpu_ms, _ in found)
        figures[f"{what}_turn_ms"] = max(clock_ms for _, clock_ms in found)

    def end(self) -> None:
        """End the trickles."""
        for trickle in [*self._trickles, self._kafka]:
            trickle.end()


class _Removal:
    """Deletes queues from another process, whose threads do not slow down the consumers of this one.

    Args:
        bootstrap_servers: the broker.
        deployment: the deployment's name.
        worker: one of its workers.
    """

    def __init__(self, bootstrap_servers: str, deployment: str, worker: Worker) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._deployment = deployment
        self._worker = worker
        self._elsewhere = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))

    def __enter__(self) -> Self:
        self._elsewhere.submit(_delete, self._bootstrap_servers, []).result()  # starts the process
        return self

    def __exit__(self, *_raised: object) -> None:
        self._elsewhere.shutdown()

    def __call__(self, queues: list[str]) -> None:
        """Delete queues, and wait until their changelogs are gone."""
        self._elsewhere.submit(_delete, self._bootstrap_servers, queues).result()
        admin = AdminClient({"bootstrap.servers": self._bootstrap_servers})
        left = [names.changelog(self._deployment, name) for name in queues]
        self._worker.until(lambda: not _existing(admin, left), every_s=0.1)


def _create_topics(bootstrap_servers: str, topics: list[str]) -> None:
    config = {"message.timestamp.type": "LogAppendTime"}
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in admin.create_topics([NewTopic(name, _SHARDS, 1, config=config) for name in topics]).values():
        future.result()


def _existing(admin: AdminClient, topics: list[str]) -> list[str]:
    """Return those of some topics that exist. A list of all topics would keep the broker busy that is measured."""
    asked = admin.describe_topics(TopicCollection(topics))
    return [name for name, described in asked.items() if described.exception() is None]


def _restored(workers: list[Worker], queues: list[str]) -> bool:
    """Return whether the workers' logs say that all shards of new queues are taken over."""
    logged = "".join(worker.log.read_text(errors="replace") for worker in workers)
    return all(f"{name}, partition {shard}: restored" in logged for name in queues for shard in range(_SHARDS))


def _delete(bootstrap_servers: str, queues: list[str]) -> None:
    """Delete queues concurrently."""

    def delete(name: str) -> None:
        with Queue(name, connection=Connection(bootstrap_servers), timeout_s=90) as queue:
            queue.delete()

    with ThreadPoolExecutor(max(1, len(queues))) as pool:
        list(pool.map(delete, queues))


def _tables(queues: list[str]) -> str:
    return "\n".join(f"[queue.{name}]" for name in queues)


if __name__ == "__main__":
    alone(run)
