"""Runs a contestant: one measurement in its own process, started by the harness or from the command line."""

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
"""Environment variable with the broker's process id, so that a contestant can measure the broker's CPU."""

_SKIPPED: Final = "skipped"

Figures = dict[str, float]


class Skipped(Exception):
    """The contestant cannot run on this machine; the text says why."""


class Failed(Exception):
    """The contestant ended with an error; the text is the end of its output."""


def compete(module: str, arguments: Mapping[str, object], environment: Mapping[str, str], timeout_s: float) -> Figures:
    """Run a contestant in a process of its own.

    Args:
        module: the module's name below `benchmarks`.
        arguments: the arguments of its `run`.
        environment: further environment variables.
        timeout_s: the time after which it is killed, s.

    Raises:
        Skipped: the contestant cannot run here.
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
    """Run a contestant as a program: read the arguments of `run` from the command line, and print figures as JSON.

    Without `--bootstrap-servers` and `KAFKA_BOOTSTRAP_SERVERS`, start a broker for this run.
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
    """Return the CPU time that a process has used, user and system, s."""
    times = process.cpu_times()
    return float(times.user + times.system)


def broker_cpu_s() -> float:
    """Return the CPU time that the broker has used, s; 0 if this harness did not start it."""
    pid = os.environ.get(BROKER_PID)
    return cpu_s(psutil.Process(int(pid))) if pid else 0.0


class Stopwatch:
    """Measures time and CPU from its creation on."""

    def __init__(self, worker: psutil.Process | None = None) -> None:
        self._worker = worker
        self._began = time.perf_counter()
        self._cpu = self._read()

    def _read(self) -> tuple[float, float, float]:
        return cpu_s(self._worker) if self._worker else 0.0, time.process_time(), broker_cpu_s()

    def figures(self, count: int) -> Figures:
        """Return the rate of `count` messages, and the CPU per message of worker, client and broker, µs."""
        seconds = time.perf_counter() - self._began
        worker, client, broker = ((now - then) / count * 1e6 for now, then in zip(self._read(), self._cpu, strict=True))
        figures = {"messages": count, "rate": count / seconds, "client_us": client}
        if self._worker:
            figures["worker_us"] = worker
        if broker:
            figures["broker_us"] = broker
        return figures
