"""Measures many empty queues on one worker: `lapse apply`, the start, and the recovery after kill -9.

Each queue gets a `depth` command before the worker runs, so its answer shows when it serves. On a busy machine the
worker's CPU until then says more. `load` is the machine's load average of the last minute.
"""

from __future__ import annotations

import os
import re
import time
from datetime import UTC, datetime

import orjson
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.comparison.contestant import Figures, alone, cpu_s
from benchmarks.instruments.worker import Worker
from lapse.protocol import header
from lapse.protocol import topic as names

_RESTORED = re.compile(r"^\[(.{23})\].*; epoch ", re.MULTILINE)
_IDLE_S = 20.0


def run(bootstrap_servers: str, entities: int = 1_000, session_timeout: str = "30s", store: str = "memory") -> Figures:
    """Create queues, serve them, kill the worker, and serve them again.

    Args:
        bootstrap_servers: the broker.
        entities: the number of queues.
        session_timeout: the group's session timeout; a worker that comes back should not have to wait for it.
        store: `memory` or `rocksdb`.
    """
    token = time.time_ns()
    queues = [f"many-{token}-{number}" for number in range(entities)]
    listed = "\n".join(f"[queue.{name}]" for name in queues)
    options = f'session_timeout = "{session_timeout}"'
    with Worker(bootstrap_servers, f"many-{token}", listed, store, options) as worker:
        began = time.perf_counter()
        worker.apply()
        figures: Figures = {"entities": entities, "apply_s": time.perf_counter() - began}
        with _Asker(bootstrap_servers, queues) as asker:
            for phase in ("start", "again"):
                asker.ask(phase)
                logged_bytes = worker.log.stat().st_size if worker.log.exists() else 0
                began_s = time.time()
                worker.start()
                answered = asker.answers(phase, worker)
                text = worker.log.read_text(errors="replace")[logged_bytes:]
                restored = _RESTORED.search(text)
                restored_s = began_s if restored is None else _seconds(restored[1])
                figures |= {
                    f"{phase}_restored_s": restored_s - began_s,
                    f"{phase}_first_s": answered[0] - began_s,
                    f"{phase}_last_s": answered[-1] - began_s,
                    f"{phase}_first_after_s": answered[0] - restored_s,
                    f"{phase}_last_after_s": answered[-1] - restored_s,
                    f"{phase}_first_cpu_s": asker.first_cpu_s,
                    f"{phase}_last_cpu_s": cpu_s(worker.process),
                    f"{phase}_log_lines": text.count("\n"),
                    f"{phase}_load": os.getloadavg()[0],
                }
                if phase == "start":
                    figures |= _idle(worker)
                worker.kill()
    return figures


def _seconds(stamp: str) -> float:
    return datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC).timestamp()


def _idle(worker: Worker) -> Figures:
    """Measure the worker's CPU and memory while nothing happens."""
    time.sleep(5)
    before = cpu_s(worker.process)
    time.sleep(_IDLE_S)
    cpu = (cpu_s(worker.process) - before) / _IDLE_S
    return {"idle_cpu_percent": 100 * cpu, "idle_mib": worker.process.memory_info().rss / (1 << 20)}


class _Asker:
    """Sends every queue a `depth` command, and notes when each answers.

    Attributes:
        first_cpu_s: the worker's CPU time when the first answer of the last phase was read, s.
    """

    def __init__(self, bootstrap_servers: str, queues: list[str]) -> None:
        self.first_cpu_s = 0.0
        self._queues = queues
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "asker",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 20,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(names.deliveries(name), 0, 0) for name in queues])

    def ask(self, phase: str) -> None:
        for name in self._queues:
            self._producer.produce(names.commands(name), orjson.dumps({"command": "depth", "id": phase}), partition=0)
        self._producer.flush()

    def answers(self, phase: str, worker: Worker) -> list[float]:
        """Return when the queues answered, in order, by the brokers' clock, s since the epoch."""
        found: dict[str, float] = {}
        self.first_cpu_s = 0.0

        def all_of_them() -> bool:
            for record in self._consumer.consume(1_000, 0.1):
                if record.error() is not None:
                    continue
                headers = dict(record.headers() or [])
                if headers.get(header.KIND) == b"answer" and orjson.loads(record.value())["id"] == phase:
                    found.setdefault(str(record.topic()), record.timestamp()[1] / 1000)
                    self.first_cpu_s = self.first_cpu_s or cpu_s(worker.process)
            return len(found) == len(self._queues)

        worker.until(all_of_them, timeout_s=600, every_s=0)
        return sorted(found.values())

    def __enter__(self) -> _Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()


if __name__ == "__main__":
    alone(run)
