"""Dead letters of messages whose records are in columns: `columns.c` packs them like `PackedLetters`, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.generation import FIRST_REWOUND
from lapse.core.queue.step import Messages
from lapse.protocol.dead_letter import Death
from lapse.runtime.kafka import columns
from lapse.runtime.kafka.fetched_rows import FetchedRows
from lapse.runtime.kafka.packed_run import PackedRun
from lapse.runtime.letters.packed_letter import PackedLetters, special, with_records

_RENAMED: Final = columns.Renamed(special())

_FEW: Final = 16
"""For fewer messages with the same counts, a call of the C library costs more than it saves."""


class RowLetters:
    """Packs the letters of one removal whose records are in columns.

    Args:
        death: see `PackedLetters`.
    """

    def __init__(self, death: Death) -> None:
        self._by_object = PackedLetters(death)

    def pack(self, messages: Messages, records: FetchedRows) -> Sequence[bytes]:
        """Return the letters of some messages, in order."""
        if messages.offsets[-1] >= FIRST_REWOUND:
            return self._by_object.pack(with_records(messages, records))
        counts = list(_alike(messages))
        if len(counts) * _FEW > len(messages) and len(counts) > 1:
            return self._by_object.pack(with_records(messages, records))
        runs: list[PackedRun] = []
        left: list[int] = []
        for first, stop in counts:
            data, ends = self._run(messages, records, first, stop)
            begins = np.concatenate(([0], ends[:-1]))
            left += (np.flatnonzero(ends == begins) + first).tolist()
            runs.append(PackedRun(data, ends))
        run = PackedRun.joined(runs)
        if not left:
            return run
        letters = list(run)
        rows = np.array(left, np.intp)
        objects = list(records)
        dead = with_records(messages.select(rows), [objects[at] for at in left])
        for at, letter in zip(left, self._by_object.pack(dead), strict=True):
            letters[at] = letter
        return letters

    def _run(
        self, messages: Messages, records: FetchedRows, first: int, stop: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        cancels = 0 if messages.cancels is None else int(messages.cancels[first])
        headers, frame = self._by_object.frame(int(messages.deliveries[first]), cancels)
        return columns.letters(
            records.of.data,
            records.of.spans,
            records.first + first,
            messages.offsets[first:stop],
            None if messages.deadlines_ms is None else messages.deadlines_ms[first:stop],
            headers,
            frame,
            _RENAMED,
        )


def _alike(messages: Messages) -> Iterator[tuple[int, int]]:
    """Yield first index and end of each run of messages with the same counts."""
    changes = np.diff(messages.deliveries) != 0
    if messages.cancels is not None:
        changes |= np.diff(messages.cancels) != 0
    begins = [0, *(np.flatnonzero(changes) + 1).tolist(), len(messages)]
    yield from pairwise(begins)
