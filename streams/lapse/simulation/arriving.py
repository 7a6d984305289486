"""Hands recorded batches to a machine, while the clock shows what it showed when each batch arrived."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.tp import TP
from lapse.simulation.recording import Recording


def cuts(batches: Iterable[tuple[int, int]]) -> set[int]:
    """Return the offsets at which records must be divided: the ends of batches.

    If a crowd left no room for a part of a batch, that part was offered again. So a batch within another one is no
    division, because they arrived together.

    Args:
        batches: first offset, and offset behind the last, of each batch.
    """
    queued = [*batches]
    ends = {one for batch in queued for one in batch}
    return {one for one in ends if not any(first < one < last for first, last in queued)}


class ArrivingAsRecorded:
    """A machine for an inbox, which divides batches as they were recorded. All other calls go to the real machine.

    Args:
        machine: takes the messages in.
        recording: has the clock of the machine.

    Attributes:
        arrived_ms: by topic, partition and first offset, when batches of this step arrived, ms since the epoch.
        batches: by partition, first offset and offset behind the last of records that arrived together in this step, as
            far as that was recorded.
    """

    def __init__(self, machine: QueueMachine, recording: Recording) -> None:
        self.arrived_ms: Mapping[tuple[str, int, int], int] = {}
        self.batches: Mapping[TP, Sequence[tuple[int, int]]] = {}
        self._machine = machine
        self._recording = recording

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)

    def arrive(self, topic: str, partition: int, records: Sequence[Any]) -> int:
        """Take in records of an underlying topic, divided as they arrived; see `ShardMachine.arrive`."""
        ends = cuts(self.batches.get(TP(topic, partition), ()))
        inner = [at for at, record in enumerate(records) if at and record.offset in ends]
        taken = 0
        for begin, end in pairwise([0, *inner, len(records)]):
            arrived = self._arrive(topic, partition, records[begin:end])
            taken += arrived
            if arrived < end - begin:
                break
        return taken

    def _arrive(self, topic: str, partition: int, records: Sequence[Any]) -> int:
        step_ms = self._recording.now_ms
        self._recording.now_ms = self.arrived_ms.get((topic, partition, records[0].offset), step_ms)
        taken = self._machine.arrive(topic, partition, records)
        self._recording.now_ms = step_ms
        return taken
