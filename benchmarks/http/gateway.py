"""Measures lapse over HTTP: messages published in batches, received by long poll and acknowledged, at a steady rate."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import psutil

from benchmarks.comparison.contestant import BROKER_PID, Figures, alone, cpu_s
from benchmarks.instruments.load import PAYLOAD_BYTES, create
from benchmarks.instruments.worker import PATIENCE_S, Worker, compiled_once

_WARM_S: Final = 5.0
"""Time at the start that does not count, s: connections are opened, and code is loaded."""

_MOST_RECEIVED: Final = 500
_NO_ANSWER: Final = 504
_TEXT: Final = "x" * (PAYLOAD_BYTES - 30)


class NoAnswer(Exception):
    """No worker has answered yet."""


class Caller:
    """A client of a gateway, over one connection. It shares the cores with the gateway, so it does little itself."""

    def __init__(self, address: str, queue: str) -> None:
        host, _, port = address.removeprefix("http://").rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")
        self._host = f"{host}:{port}"
        self._queue = queue

    def publish(self, values: list[Any]) -> None:
        """Publish a batch."""
        messages = [
            {"key": str(number), "value": {"at": value, "text": _TEXT}, "ttl_ms": 3_600_000}
            for number, value in enumerate(values)
        ]
        self._ask(f"/v1/publish/{self._queue}/batch", {"messages": messages})

    def receive(self, most: int) -> list[Any]:
        """Receive available messages, or wait a second for the first."""
        query = f"subscription=all&max={most}&max_backlog=10000&wait_s=1"
        found: list[Any] = self._ask(f"/v1/queues/{self._queue}/receive?{query}", None)["messages"]
        return found

    def acknowledge(self, messages: list[Any]) -> None:
        """Acknowledge messages."""
        self._ask(f"/v1/queues/{self._queue}/acknowledge", {"receipts": [one["receipt"] for one in messages]})

    def _ask(self, path: str, content: Any) -> Any:
        body = b"" if content is None else orjson.dumps(content)
        head = f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._socket.sendall(head.encode() + body)
        status = int(self._answers.readline().split()[1])
        size = 0
        while line := self._answers.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        answer = self._answers.read(size)
        if status == _NO_ANSWER:
            raise NoAnswer
        if status >= 300:
            raise RuntimeError(f"{path}: {status} {answer[:500]!r}")
        return orjson.loads(answer)


class Run:
    """Publishers with a steady rate, and receivers of their messages.

    Args:
        address: the gateway's address.
        queue: the queue.
        rate: messages a second.
        seconds: how long to publish, s.
        batch: messages of one request.
        callers: the number of publishers, and of receivers.
    """

    def __init__(self, address: str, queue: str, rate: int, seconds: float, batch: int, callers: int) -> None:
        self._address = address
        self._queue = queue
        self._batch = batch
        self._callers = callers
        self._every_s = batch * callers / rate
        self._turns = int((seconds + _WARM_S) / self._every_s)
        self._left = self._turns * batch * callers
        self._lock = threading.Lock()
        self._faults: list[Exception] = []
        self.begun_s = 0.0
        self.ended_s = 0.0
        self.asked: dict[str, list[float]] = {"published": [], "received": [], "settled": []}

    def go(self) -> None:
        """Publish, receive and acknowledge all messages."""
        self.begun_s = time.time() + 0.5
        works = [(self._publish, number) for number in range(self._callers)]
        works += [(self._receive, number) for number in range(self._callers)]
        threads = [threading.Thread(target=self._note_fault, args=work, daemon=True) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._faults:
            raise self._faults[0]

    def _note_fault(self, work: Any, number: int) -> None:
        try:
            work(number)
        except Exception as error:  # noqa: BLE001  # `go` raises it
            self._faults.append(error)
            self._left = 0

    def _publish(self, number: int) -> None:
        caller, due_s = Caller(self._address, self._queue), self.begun_s + self._every_s * number / self._callers
        for _ in range(self._turns):
            time.sleep(max(0.0, due_s - time.time()))
            if self._faults:
                return
            caller.publish([due_s] * self._batch)
            self._note("published", [due_s])
            due_s += self._every_s

    def _receive(self, _: int) -> None:
        caller = Caller(self._address, self._queue)
        while self._left > 0:
            found = caller.receive(_MOST_RECEIVED)
            if not found:
                continue
            dues = [one["value"]["at"] for one in found]
            self._note("received", dues)
            caller.acknowledge(found)
            self._note("settled", dues)
            with self._lock:
                self._left -= len(found)
                self.ended_s = time.time()

    def _note(self, what: str, dues_s: list[float]) -> None:
        """Note how long after its due instant each message was handled. Delays of the publisher count, too."""
        now_s = time.time()
        self.asked[what] += [now_s - due_s for due_s in dues_s if due_s >= self.begun_s + _WARM_S]


def run(
    bootstrap_servers: str, rate: int = 5_000, seconds: float = 10.0, batch: int = 50, callers: int = 4, cores: int = 2
) -> Figures:
    """Publish, receive and acknowledge at a steady rate, everything including the broker on `cores` cores (0 = all)."""
    name = f"gateway-{time.time_ns()}"
    if cores:
        _limit_cores(cores)
    with Worker(bootstrap_servers, name, f'[queue.{name}]\nexpiration = "enabled"\nlease_period = "60s"\n') as worker:
        create(bootstrap_servers, name)
        worker.apply()
        worker.start()
        with opened(bootstrap_servers) as (address, gateway):
            caller = Caller(address, name)
            caller.publish([0])
            worker.until(lambda: _received(caller), PATIENCE_S)
            measured = Run(address, name, rate, seconds, batch, callers)
            cpu = cpu_s(gateway), cpu_s(worker.process), time.process_time()
            measured.go()
            now = cpu_s(gateway), cpu_s(worker.process), time.process_time()
    count = int((seconds + _WARM_S) * rate)
    figures = {"rate": count / (measured.ended_s - measured.begun_s)}
    for what, late_s in measured.asked.items():
        figures[f"{what}_median_ms"] = 1e3 * float(np.median(late_s))
        figures[f"{what}_p99_ms"] = 1e3 * float(np.percentile(late_s, 99))
    for who, before, after in zip(("gateway_us", "worker_us", "client_us"), cpu, now, strict=True):
        figures[who] = 1e6 * (after - before) / count
    return figures


def _received(caller: Caller) -> bool:
    try:
        found = caller.receive(1)
    except NoAnswer:
        return False
    if found:
        caller.acknowledge(found)
    return bool(found)


def _limit_cores(cores: int) -> None:
    """Limit this process, its children and the broker to some cores."""
    some = set(sorted(os.sched_getaffinity(0))[:cores])
    os.sched_setaffinity(0, some)
    if pid := os.environ.get(BROKER_PID):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), some)


@contextlib.contextmanager
def opened(bootstrap_servers: str) -> Iterator[tuple[str, psutil.Process]]:
    """Start a gateway in a process of its own. Yield its address and the process."""
    with tempfile.NamedTemporaryFile("r+", prefix="lapse-gateway-") as log:
        command = [sys.executable, "-m", "lapse", "gateway", "--port", "0", "-b", bootstrap_servers]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=compiled_once())
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not (found := re.search(r"lapse gateway: (\S+)", Path(log.name).read_text("utf-8"))):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the gateway did not start: {Path(log.name).read_text('utf-8')[-2000:]}")
                time.sleep(0.05)
            yield found[1], psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(20)


if __name__ == "__main__":
    alone(run)
