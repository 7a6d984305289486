"""Detects pauses of the machine itself, so that they do not count as pauses of the worker."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

_BEAT_S: Final = 0.001
_LATE_S: Final = 0.003
_PRIORITY: Final = 50


class Metronome:
    """Runs a real-time process on each core that wakes every ms and notes when it was late; a context manager.

    Ordinary processes cannot delay one that is scheduled in real time. If it is late, the core itself stood still
    because the host gave it to another virtual machine. Without the right to real-time scheduling nothing is noted, and
    every pause counts as the worker's.
    """

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="lapse-metronome-")
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Metronome:
        for core in os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ():
            command = [sys.executable, "-m", "benchmarks.instruments.metronome", str(core), str(self._notes(core))]
            self._processes.append(subprocess.Popen(command))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._directory.cleanup()

    def standstills(self) -> list[tuple[float, float]]:
        """Return when a core stood still: pairs of begin and end, ms since the epoch."""
        found: list[tuple[float, float]] = []
        for notes in Path(self._directory.name).iterdir():
            for line in notes.read_text().splitlines():
                from_ms, until_ms = map(float, line.split())
                found.append((from_ms, until_ms))
        return sorted(found)

    def _notes(self, core: int) -> Path:
        return Path(self._directory.name) / str(core)


def still_ms(standstills: Sequence[tuple[float, float]], from_ms: float, until_ms: float) -> float:
    """Return for how long any core stood still within a period, ms."""
    still = 0.0
    counted = from_ms
    for begin, end in standstills:
        begin, end = max(begin, counted), min(end, until_ms)
        if end > begin:
            still += end - begin
            counted = end
    return still


def _beat(core: int, notes: Path) -> None:
    """Wake every ms, and note late wake-ups."""
    try:
        os.sched_setaffinity(0, {core})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    except OSError:
        return
    with notes.open("w", buffering=1) as file:
        while True:
            before = time.time()
            time.sleep(_BEAT_S)
            after = time.time()
            if after - before > _BEAT_S + _LATE_S:
                file.write(f"{(before + _BEAT_S) * 1000:.1f} {after * 1000:.1f}\n")


if __name__ == "__main__":
    _beat(int(sys.argv[1]), Path(sys.argv[2]))
