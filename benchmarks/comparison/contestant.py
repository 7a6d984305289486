"""A contestant: one measurement in a process of its own, from this harness or from the command line."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import psutil

BROKER_PID: Final = "LAPSE_BENCHMARK_BROKER_PID"
"""Environment variable with the broker's process id, so that a contestant can tell what it cost the broker."""

_SKIPPED: Final = "skipped"

Figures = dict[str, float]


class Skipped(Exception):
    """This contestant cannot take part here; the text says why."""


class Failed(Exception):
    """This contestant ended with an error; the text is the end of what it said."""


def compete(module: str, arguments: Mapping[str, object], environment: Mapping[str, str], timeout_s: float) -> Figures:
    """Run a contestant in a process of its own.

    Args:
        module: below `benchmarks`.
        arguments: of its `run`.
        environment: further variables.
        timeout_s: after so long it is ended.

    Raises:
        Skipped: it cannot take part.
        Failed: it ended with an error, or not in time.
    """
    command = [sys.executable, "-m", f"benchmarks.{module}"]
    for name, value in arguments.items():
        command.append(f"--{name.replace('_', '-')}={value}")
    try:
        done = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise Failed(f"not done within {timeout_s:.0f} s") from late
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise Failed(done.stderr[-3000:] or f"ended with code {done.returncode}")
    answer: dict[str, Any] = json.loads(lines[-1])
    if _SKIPPED in answer:
        raise Skipped(answer[_SKIPPED])
    return answer


def alone(run: Callable[..., Figures]) -> None:
    """Be a program: read the arguments of `run` from the command line, run it, and print its figures as JSON.

    Without `--bootstrap-servers` and `KAFKA_BOOTSTRAP_SERVERS`, a broker is started for as long as it takes.
    """
    parameters = inspect.signature(run).parameters
    parser = argparse.ArgumentParser(description=inspect.getdoc(run), formatter_class=argparse.RawTextHelpFormatter)
    for name, parameter in parameters.items():
        default = os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "") if name == "bootstrap_servers" else parameter.default
        kind = type(default) if not isinstance(default, bool) else lambda text: text.lower() in ("true", "yes", "1")
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default)
    arguments = vars(parser.parse_args())
    try:
        if arguments.get("bootstrap_servers", "somewhere"):
            figures = run(**arguments)
        else:
            from lapse.embedded import EmbeddedKafka

            with EmbeddedKafka(heap_mb=1024, quick_start=False) as broker:
                os.environ[BROKER_PID] = str(broker.jvm.pid)
                figures = run(**{**arguments, "bootstrap_servers": broker.bootstrap_servers})
    except Skipped as reason:
        print(json.dumps({_SKIPPED: str(reason)}))
    else:
        print(json.dumps(figures))


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds that a process has used, itself and the system for it."""
    times = process.cpu_times()
    return float(times.user + times.system)


def broker_cpu_s() -> float:
    """CPU seconds that the broker has used; 0 where it is not ours."""
    pid = os.environ.get(BROKER_PID)
    return cpu_s(psutil.Process(int(pid))) if pid else 0.0


class Stopwatch:
    """Time and CPU since a moment, for `count` messages."""

    def __init__(self, worker: psutil.Process | None = None) -> None:
        self._worker = worker
        self._began = time.perf_counter()
        self._cpu = self._read()

    def _read(self) -> tuple[float, float, float]:
        return cpu_s(self._worker) if self._worker else 0.0, time.process_time(), broker_cpu_s()

    def figures(self, count: int) -> Figures:
        """Rate, and microseconds of CPU per message: of the worker, of the client, of the broker."""
        seconds = time.perf_counter() - self._began
        worker, client, broker = ((now - then) / count * 1e6 for now, then in zip(self._read(), self._cpu, strict=True))
        figures = {"messages": count, "rate": count / seconds, "client_us": client}
        if self._worker:
            figures["worker_us"] = worker
        if broker:
            figures["broker_us"] = broker
        return figures
