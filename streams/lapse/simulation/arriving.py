"""What takes in a recorded batch: the machine, while the clock shows what it showed when that batch came."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.tp import TP
from lapse.simulation.recording import Recording


def cuts(batches: Iterable[tuple[int, int]]) -> set[int]:
    """Where records came apart: the ends of batches, by offset.

    What a crowd left no room for is offered once more, so that a batch may lie within another: it had come with that.

    Args:
        batches: first offset and the one behind the last of each.
    """
    some = [*batches]
    ends = {one for batch in some for one in batch}
    return {one for one in ends if not any(first < one < last for first, last in some)}


class ArrivingAsRecorded:
    """A machine for an inbox to hand over to; the inbox finds everything else at the machine itself.

    Args:
        machine: takes the messages in.
        recording: whose clock the machine goes by.

    Attributes:
        arrived_ms: when batches of this step came, by topic, partition and first offset; ms since the epoch.
        batches: first offset and the one behind the last of what came together in this step, where that was told of.
    """

    def __init__(self, machine: QueueMachine, recording: Recording) -> None:
        self.arrived_ms: Mapping[tuple[str, int, int], int] = {}
        self.batches: Mapping[TP, Sequence[tuple[int, int]]] = {}
        self._machine = machine
        self._recording = recording

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)

    def arrive(self, topic: str, partition: int, records: Sequence[Any]) -> int:
        """Take in records of an underlying topic, and apart what came apart; see `Machine.arrive`."""
        ends = cuts(self.batches.get(TP(topic, partition), ()))
        inner = [at for at, record in enumerate(records) if at and record.offset in ends]
        taken = 0
        for begin, end in pairwise([0, *inner, len(records)]):
            some = self._arrive(topic, partition, records[begin:end])
            taken += some
            if some < end - begin:
                break
        return taken

    def _arrive(self, topic: str, partition: int, records: Sequence[Any]) -> int:
        step_ms = self._recording.now_ms
        self._recording.now_ms = self.arrived_ms.get((topic, partition, records[0].offset), step_ms)
        taken = self._machine.arrive(topic, partition, records)
        self._recording.now_ms = step_ms
        return taken
