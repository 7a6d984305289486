"""Measures how long clients wait for each shard of many empty queues while a second worker joins and is killed.

Every shard gets `depth` commands again and again. Its pause is the longest time from a command to its answer.
The workers must not crash, and no subscription may be lost (C5).
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack

import orjson
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.comparison.contestant import Figures, alone
from benchmarks.instruments.worker import Worker
from lapse.protocol import header
from lapse.protocol import topic as names
from lapse_client import Connection, QueueSubscriber

_SUBSCRIBED = 15
_EVERY_S = 3.0
_CALM_S = 6.0
_MOST_S = 300.0

_Shard = tuple[str, int]


def run(bootstrap_servers: str, queues: int = 300, partitions: int = 1, session_timeout: str = "6s") -> Figures:
    """Serve queues, start a second worker, and end it with SIGKILL.

    Args:
        bootstrap_servers: the broker.
        queues: the number of queues.
        partitions: the partitions of each queue.
        session_timeout: the group's session timeout, after which the first worker takes the other's shards over.
    """
    token = time.time_ns()
    own = [f"second-{token}-{number}" for number in range(queues)]
    listed = "\n".join(f"[queue.{name}]\npartitions = {partitions}" for name in own)
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(
                Worker(bootstrap_servers, f"second-{token}", listed, options=f'session_timeout = "{session_timeout}"')
            )
            for _ in range(2)
        )
        first.apply()
        asker = _Asker(bootstrap_servers, [(name, at) for name in own for at in range(partitions)])
        stack.callback(asker.close)
        first.start()
        asker.until_all_answer([first])
        some = own[:: max(1, queues // _SUBSCRIBED)]
        for name in some:
            stack.enter_context(QueueSubscriber(name, connection=Connection(bootstrap_servers)))
        asker.until_all_answer([first])
        figures: Figures = {"shards": queues * partitions}
        for phase, workers in (("join", [first, second]), ("kill", [first])):
            began_s = time.time()
            if phase == "join":
                second.start()
                asker.until(lambda: b"; epoch " in second.log.read_bytes(), workers)
            else:
                second.kill()
            asker.until_all_answer(workers, _CALM_S + 2 * _EVERY_S)
            pauses = sorted(asker.pauses(began_s))
            figures |= {
                f"{phase}_median_s": pauses[len(pauses) // 2],
                f"{phase}_90_percent_s": pauses[len(pauses) * 9 // 10],
                f"{phase}_longest_s": pauses[-1],
                f"{phase}_load": os.getloadavg()[0],
            }
        figures["subscriptions_lost"] = _lost(bootstrap_servers, some)
    return figures


class _Asker:
    """Sends every shard `depth` commands again and again, and notes when each is answered."""

    def __init__(self, bootstrap_servers: str, shards: list[_Shard]) -> None:
        self._shards = shards
        self._asked: list[float] = []
        self._answered: defaultdict[str, dict[_Shard, float]] = defaultdict(dict)
        self._queues = {names.deliveries(name): name for name, _ in shards}
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap_servers, "group.id": "asker", "fetch.wait.max.ms": 20, "log_level": 0}
        )
        self._consumer.assign([TopicPartition(names.deliveries(name), at, 0) for name, at in shards])

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()

    def until(self, reached: Callable[[], object], workers: list[Worker]) -> None:
        """Send commands until a condition holds.

        Raises:
            RuntimeError: A worker ended, or it took too long.
        """
        give_up = time.monotonic() + _MOST_S
        while not reached():
            if time.monotonic() > give_up:
                raise RuntimeError(f"not reached within {_MOST_S:.0f} s")
            for worker in workers:
                if worker.code is not None:
                    raise RuntimeError(f"a worker ended with code {worker.code}")
            self._ask_and_read()

    def until_all_answer(self, workers: list[Worker], later_s: float = 0.0) -> None:
        """Send commands until every shard has answered one sent at least `later_s` seconds from now."""
        since = time.time() + later_s
        self.until(lambda: any(self._is_answered(asked) for asked in self._asked if asked >= since), workers)

    def pauses(self, since: float) -> list[float]:
        """Return each shard's longest time from a command to its answer, s."""
        late = [asked for asked in self._asked if asked >= since - _EVERY_S and self._is_answered(asked)]
        return [max(self._answered[_id(asked)][shard] - asked for asked in late) for shard in self._shards]

    def _is_answered(self, asked: float) -> bool:
        return len(self._answered[_id(asked)]) == len(self._shards)

    def _ask_and_read(self) -> None:
        now = time.time()
        if not self._asked or now - self._asked[-1] >= _EVERY_S:
            self._asked.append(now)
            value = orjson.dumps({"command": "depth", "id": _id(now)})
            for name, at in self._shards:
                self._producer.produce(names.commands(name), value, partition=at)
            self._producer.flush()
        for record in self._consumer.consume(1_000, 0.1):
            value, kind = record.value() or b"", dict(record.headers() or []).get(header.KIND)
            if record.error() is None and kind == b"answer" and value[:1] == b"{":  # others get Avro
                shard = self._queues[str(record.topic())], record.partition() or 0
                self._answered[orjson.loads(value)["id"]][shard] = record.timestamp()[1] / 1000


def _id(asked: float) -> str:
    return f"{asked:.6f}"


def _lost(bootstrap_servers: str, queues: list[str]) -> int:
    """Count the subscriptions that ended because their client was silent."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "lost", "log_level": 0})
    try:
        consumer.assign([TopicPartition(names.events(name), 0, 0) for name in queues])
        give_up, lost = time.monotonic() + _CALM_S, 0
        while time.monotonic() < give_up:
            lost += sum(b"not heard of" in (record.value() or b"") for record in consumer.consume(1_000, 0.5))
        return lost
    finally:
        consumer.close()


if __name__ == "__main__":
    alone(run)
