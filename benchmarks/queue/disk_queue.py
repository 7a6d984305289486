"""Measures a deep queue with its state on disk, through a broker and a worker with a limit of memory.

python -m benchmarks.queue.disk_queue --messages 10000000 --limit-mib 320
"""

from __future__ import annotations

import random
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.comparison.contestant import Figures, Stopwatch, alone
from benchmarks.instruments.load import Headers, create, publish
from benchmarks.instruments.worker import Worker
from lapse.core.queue.segments.segment import SIZE
from lapse_client import Connection, Queue, QueueSubscriber

_BACKLOG = 10_000
_LOOK_S = 0.05
_REPORT_S = 10.0
_LONGEST_S = 1_800.0
_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
_MIB = 1 << 20


def run(
    bootstrap_servers: str,
    messages: int = 1_000_000,
    taken: int = 100_000,
    state: str = "disk",
    room_mib: int = 16,
    limit_mib: int = 0,
) -> Figures:
    """Fill a queue, take messages from its head, kill the worker, and take one more. Progress goes to stderr.

    Args:
        bootstrap_servers: the broker.
        messages: how many messages are queued, each with a random lifetime between an hour and a day.
        taken: how many of them are delivered and acknowledged.
        state: `disk` or `memory`.
        room_mib: `state_memory`, MiB.
        limit_mib: resident memory above which the worker is killed, MiB; 0 = no limit.
    """
    name, port = f"disk-{time.time_ns()}", _free_port()
    limits = f'state = "{state}"\npayload_window = 1\n' + (f"state_memory = {room_mib}\n" if state == "disk" else "")
    entity = f'[queue.{name}]\nexpiration = "enabled"\nlease_period = "60s"\n{limits}'
    options = f'session_timeout = "6s"\nmetrics_port = {port}'
    connection = Connection(bootstrap_servers)
    with Worker(bootstrap_servers, name, entity, "memory", options) as worker:
        create(bootstrap_servers, name)
        worker.apply()
        worker.start()
        worker.until(lambda: _restored(worker.log) == 1)
        idle_mib = _most_mib(worker)
        with _limited(worker, limit_mib):
            _log(f"publishing {messages:,} messages; the worker has {idle_mib:.0f} MiB")
            began = time.perf_counter()
            publish(bootstrap_servers, name, messages, headers=_lifetimes())
            _await_depth(connection, name, messages)
            filled_s = time.perf_counter() - began
            full = _segments(port)
            most_mib = _most_mib(worker)
            _log(f"{messages:,} queued: {full['memory']:.0f} segments in memory, {full['disk']:.0f} on disk")
            figures = _take(connection, name, taken, worker)
            read = _segments(port)["loads"] - full["loads"]
            most_mib = max(most_mib, _most_mib(worker))
        _log(f"{taken:,} taken; the worker has had {most_mib:.0f} MiB at most. kill -9")
        recovered = _recover(connection, name, worker, limit_mib)
    return {
        **figures,
        "messages": messages,
        "filled_s": filled_s,
        "idle_mib": idle_mib,
        "most_mib": most_mib,
        "in_memory": full["memory"],
        "on_disk": full["disk"],
        # Messages that were on their way to the subscriber at the end were read, too.
        "needed": -(-(taken + min(_BACKLOG, taken)) // SIZE),
        "read": read,
        **recovered,
    }


def _recover(connection: Connection, name: str, worker: Worker, limit_mib: int) -> Figures:
    """Kill the worker, and take one message from the next one."""
    began = time.perf_counter()
    worker.kill()
    worker.start()
    with _limited(worker, limit_mib):
        _take(connection, name, 1, worker)
        return {"recovered_s": time.perf_counter() - began, "most_after_mib": _most_mib(worker)}


def _take(connection: Connection, name: str, count: int, worker: Worker) -> Figures:
    """Receive and acknowledge `count` messages."""
    backlog = min(_BACKLOG, count)
    watch, got = Stopwatch(worker.process), 0
    with QueueSubscriber(name, max_backlog=backlog, connection=connection, ack_batch_size=2_000, timeout_s=180) as one:
        for batch in one.batches(max_size=min(2_000, count), timeout=120):
            some = batch[: count - got]
            got += len(some)
            one.acknowledge(some)
            if got >= count:
                break
    if got < count:
        raise RuntimeError(f"{got} of {count} delivered")
    return watch.figures(got)


def _await_depth(connection: Connection, name: str, messages: int) -> None:
    reported_s, give_up = time.monotonic(), time.monotonic() + _LONGEST_S
    with Queue(name, connection=connection, timeout_s=180) as queue:
        while (depth := queue.depth()["depth"]) < messages:
            if time.monotonic() > give_up:
                raise RuntimeError(f"{depth} of {messages} read within {_LONGEST_S:.0f} s")
            if time.monotonic() - reported_s > _REPORT_S:
                reported_s = time.monotonic()
                _log(f"{depth:,} of {messages:,} read")
            time.sleep(0.5)


@contextmanager
def _limited(worker: Worker, limit_mib: int) -> Iterator[None]:
    """Kill the worker if it uses too much memory. Whatever waits for it then fails because it ended."""
    over, process = threading.Event(), worker.process

    def watch() -> None:
        while not over.wait(_LOOK_S):
            try:
                mib = process.memory_info().rss / _MIB
            except psutil.NoSuchProcess:
                return
            if mib > limit_mib:
                _log(f"killed: {mib:.0f} MiB, and {limit_mib} are the limit")
                process.kill()
                return

    thread = threading.Thread(target=watch, daemon=True)
    if limit_mib:
        thread.start()
    try:
        yield
        if limit_mib and not process.is_running():
            raise RuntimeError("the worker took more memory than it was given")
    finally:
        over.set()


def _lifetimes() -> list[Headers]:
    source = random.Random(1)
    return [[("lapse-ttl-ms", b"%d" % source.randrange(_HOUR_MS, _DAY_MS))] for _ in range(10_007)]


def _segments(port: int) -> Figures:
    """Read from the worker's figures the segments in memory and on disk, and how many were loaded again."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    found = {"memory": 0.0, "disk": 0.0, "loads": 0.0}
    for line in lines:
        for place in ("memory", "disk"):
            if line.startswith("lapse_queue_segments{") and f'place="{place}"' in line:
                found[place] += float(line.rpartition(" ")[2])
        if line.startswith("lapse_queue_segment_loads_total"):
            found["loads"] += float(line.rpartition(" ")[2])
    return found


def _most_mib(worker: Worker) -> float:
    """Return the worker's peak of resident memory, as the kernel counts it, MiB."""
    for line in Path(f"/proc/{worker.process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return float(worker.process.memory_info().rss) / _MIB


def _restored(log: Path) -> int:
    return log.read_text(errors="replace").count("restored")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    alone(run)
