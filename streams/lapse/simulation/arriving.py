"""What takes in a recorded batch: the machine, while the clock shows what it showed when that batch came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lapse.runtime.queue.machine import QueueMachine
from lapse.simulation.recording import Recording


class ArrivingAsRecorded:
    """A machine for an inbox to hand over to; the inbox finds everything else at the machine itself.

    Args:
        machine: takes the messages in.
        recording: whose clock the machine goes by.

    Attributes:
        arrived_ms: when batches of this step came, by topic, partition and first offset; ms since the epoch.
    """

    def __init__(self, machine: QueueMachine, recording: Recording) -> None:
        self.arrived_ms: Mapping[tuple[str, int, int], int] = {}
        self._machine = machine
        self._recording = recording

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)

    def arrive(self, topic: str, partition: int, records: Sequence[Any]) -> int:
        """Take in records of an underlying topic; see `Machine.arrive`."""
        step_ms = self._recording.now_ms
        self._recording.now_ms = self.arrived_ms.get((topic, partition, records[0].offset), step_ms)
        taken = self._machine.arrive(topic, partition, records)
        self._recording.now_ms = step_ms
        return taken
