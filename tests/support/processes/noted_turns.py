"""Workers whose event loops note how long each turn took, in CPU time (C60, C90)."""

import time
from pathlib import Path

from benchmarks.instruments.turns import longest

from support.processes.deployment import Deployment, WorkerProcess

_LONGEST_MS = 75
"""Of CPU, for a turn of the event loop: what the processor does for others meanwhile does not count."""

_ADDITIONS, _ADDITIONS_MS = 300_000, 20
"""What a processor at full speed does in this time, ms. One that is shared with others takes up to three times it."""

_SAMPLES = 8


def permitted_ms() -> float:
    """Return how long a turn of the event loop may take, in ms of CPU, at the speed of the processor now.

    The speed changes from moment to moment, and the longest of many turns was in a slow one.
    """
    return _LONGEST_MS * max(1.0, *(_additions_ms() / _ADDITIONS_MS for _ in range(_SAMPLES)))


def _additions_ms() -> float:
    began, number = time.thread_time(), 0
    while number < _ADDITIONS:
        number += 1
    return (time.thread_time() - began) * 1_000


class NotedTurns:
    """A worker of a deployment that notes its turns.

    Attributes:
        worker: the worker.
    """

    def __init__(self, here: Deployment) -> None:
        number = len(here.workers)
        self._file: Path = here.directory / f"turns-{number}"
        data = str(here.directory / f"data-{number}")
        noted = ["-m", "benchmarks.instruments.turns", str(self._file)]
        command = ["worker", "--config", str(here.config), "--data-dir", data, "--no-supervise"]
        self.worker: WorkerProcess = here.run([*noted, *command])

    def longest_ms(self, since_ms: float, to_ms: float) -> float:
        """Return the CPU time of the longest turn between two instants, in ms since the epoch; 0 = none was noted."""
        return longest(self._file, since_ms / 1_000, to_ms / 1_000)[0]
