"""Measures recovery after kill -9: the time to a queue's first delivery, or to a SOW topic's first answer."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from benchmarks.comparison.contestant import Figures, alone
from benchmarks.instruments.load import create, publish
from benchmarks.instruments.worker import Worker
from lapse_client import Connection, Queue, QueueSubscriber, SowClient

_RESTORED = re.compile(r"restored \d+ keys .* in ([0-9.]+) s")
_STANDS_BY = re.compile(r"standing by")
_LOOK_S = 0.01


def run(
    bootstrap_servers: str,
    messages: int = 1_000_000,
    entity: str = "queue",
    store: str = "memory",
    standby: bool = False,
) -> Figures:
    """Load a worker, kill it, start another one at once, and wait for its first delivery or answer.

    Args:
        bootstrap_servers: the broker.
        messages: how many messages are queued, or records are in the SOW topic.
        entity: `queue` or `sow`.
        store: `memory` or `rocksdb`.
        standby: whether a second worker runs as a standby and takes over; else the first one is started again.
    """
    name = f"recovery-{time.time_ns()}"
    connection = Connection(bootstrap_servers)
    options = "standby = true" if standby else ""
    entities = f'[{entity}.{name}]\nexpiration = "enabled"\n'
    with (
        Worker(bootstrap_servers, name, entities, store, options) as worker,
        Worker(bootstrap_servers, name, entities, store, options) as other,
    ):
        create(bootstrap_servers, name)
        worker.apply()
        publish(bootstrap_servers, name, messages, keys=messages)
        worker.start()
        _await_loaded(connection, name, entity, messages)
        successor = worker
        if standby:
            successor = other
            other.start()
            other.until(lambda: _STANDS_BY.search(other.log.read_text(errors="replace")), timeout_s=240)
        time.sleep(1)
        started = successor.log.stat().st_size
        killed = time.perf_counter()
        worker.kill()
        if not standby:
            worker.start()
        marks: dict[str, float] = {"started": 0.0} if standby else {}
        restored_s = _watch(successor, started, killed, marks)
        ask = _first_delivery if entity == "queue" else _first_answer
        ask(connection, name, messages)
        total = time.perf_counter() - killed
    return {
        "messages": messages,
        "seconds": total,
        "start_s": marks["started"],
        "rejoin_s": marks["restored"] - restored_s - marks["started"],
        "restore_s": restored_s,
        "rest_s": total - marks["restored"],
    }


def _watch(worker: Worker, started: int, killed: float, marks: dict[str, float]) -> float:
    """Note when the new process logged its first line, and when it had restored. Return how long it restored, s."""
    found: list[float] = []

    def restored() -> bool:
        with worker.log.open(encoding="utf-8", errors="replace") as log:
            log.seek(started)
            text = log.read()
        if text:
            marks.setdefault("started", time.perf_counter() - killed)
        if (restored := _RESTORED.search(text)) is not None:
            marks["restored"] = time.perf_counter() - killed
            found.append(float(restored[1]))
        return bool(found)

    worker.until(restored, every_s=_LOOK_S)
    return found[0]


def _await_loaded(connection: Connection, name: str, entity: str, messages: int) -> None:
    if entity == "sow":
        # The answer waits for all records that the log had when the command was read.
        with SowClient(name, connection=connection, timeout_s=600) as client:
            assert list(client.query(keys=[b"k%d" % (messages - 1)]))
        return
    _until(lambda: _depth(connection, name) >= messages, 600)


def _depth(connection: Connection, name: str) -> int:
    with Queue(name, connection=connection, timeout_s=120) as queue:
        return queue.depth()["depth"]


def _until(reached: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not reached():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not loaded within {timeout_s:.0f} s")
        time.sleep(0.5)


def _first_delivery(connection: Connection, name: str, messages: int) -> None:
    with QueueSubscriber(name, max_backlog=10, connection=connection, timeout_s=120) as subscriber:
        if subscriber.receive(60) is None:
            raise RuntimeError("no delivery")


def _first_answer(connection: Connection, name: str, messages: int) -> None:
    with SowClient(name, connection=connection, timeout_s=120) as client:
        if not list(client.query(keys=[b"k%d" % (messages // 2)])):
            raise RuntimeError("a record is missing")


if __name__ == "__main__":
    alone(run)
