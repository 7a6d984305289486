"""Measures how long busy queues wait while other entities are created, changed and deleted (C90)."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.comparison.contestant import Figures, alone
from benchmarks.instruments import turns
from benchmarks.instruments.trickle import PlainTrickle, Trickle
from benchmarks.instruments.worker import Worker
from lapse.protocol import topic as names
from lapse_client import Admin, Connection, Queue

_AFTER_S = 1.0
_START_S = 300.0
_SHARDS = 2


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
    fresh = [f"fresh-{stamp}-{number}" for number in range(together + 1)]
    plain = f"plain-{stamp}"
    admin_client = AdminClient({"bootstrap.servers": bootstrap_servers})
    settings = {"message.timestamp.type": "LogAppendTime"}
    made = [NewTopic(name, _SHARDS, 1, config=settings) for name in [*idle, *busy, *fresh, plain]]
    for future in admin_client.create_topics(made).values():
        future.result()
    figures: Figures = {"queues": queues, "workers": workers}
    options = 'definitions = "topic"'
    with contextlib.ExitStack() as stack:
        serving = [
            stack.enter_context(
                Worker(bootstrap_servers, deployment, _tables([*idle, *busy]), "memory", options, turns=True)
            )
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
        kafka = PlainTrickle(bootstrap_servers, plain, rate, 0)
        first.until(lambda: all(len(trickle.delivered_at) > rate for trickle in trickles))
        # In another process, whose threads do not slow down the consumers of this one.
        elsewhere = stack.enter_context(ProcessPoolExecutor(1, multiprocessing.get_context("spawn")))
        admin = stack.enter_context(Admin(deployment, connection=connection, timeout_s=60))

        def measured(what: str, change: Callable[[], object], others: Sequence[Trickle] = trickles) -> None:
            since_s = time.time()
            change()
            until_s = time.time() + _AFTER_S
            time.sleep(_AFTER_S + 0.2)
            figures[f"{what}_s"] = until_s - _AFTER_S - since_s
            figures[f"{what}_gap_ms"] = max(trickle.longest_ms(since_s, until_s) for trickle in others)
            figures[f"{what}_kafka_gap_ms"] = kafka.longest_ms(since_s, until_s)
            if len(others) < len(trickles):
                figures[f"{what}_own_gap_ms"] = max(trickle.longest_ms(since_s, until_s) for trickle in trickles)
            found = [turns.longest(worker.turns_file, since_s, until_s) for worker in serving]
            figures[f"{what}_turn_cpu_ms"] = max(cpu_ms for cpu_ms, _ in found)
            figures[f"{what}_turn_ms"] = max(clock_ms for _, clock_ms in found)

        def gone(ended: list[str]) -> None:
            elsewhere.submit(_delete, bootstrap_servers, ended).result()
            topics = {names.changelog(deployment, name) for name in ended}
            first.until(lambda: not topics & admin_client.list_topics(timeout=10).topics.keys(), every_s=0.1)

        one, several = fresh[0], fresh[1:]
        elsewhere.submit(_delete, bootstrap_servers, []).result()  # start the process
        measured("nothing", lambda: time.sleep(3))
        measured("create", lambda: admin.create_queue(one))
        measured("alter", lambda: admin.alter_queue(one, lease_period="50s"))
        measured("delete", lambda: gone([one]))
        measured("alter_busy", lambda: admin.alter_queue(busy[0], max_deliveries=50), trickles[1:])

        def apply() -> None:
            altered = f"[queue.{busy[0]}]\nmax_deliveries = 50"  # the file would alter the busy queue back
            first.apply("\n".join((altered, _tables([*idle, *busy[1:], *several]))))
            first.until(lambda: _restored(serving, several), every_s=0.1)

        measured("create_many", apply)
        measured("delete_many", lambda: gone(several))
        for trickle in [*trickles, kafka]:
            trickle.end()
    return figures


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
