"""The outputs of a shard, step by step, and where the next owner has to look for them (C55).

A step's journal says which step is the first whose outputs are not known to be safe, and where each deliveries topic
stood before it. A new owner reads on from there, and writes what is missing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

PROGRESS_KEY: Final = ":deliveries"
"""In the record of read positions; neither a topic's name nor a partition's place looks like it."""

INSTANTS: Final = "at"
"""Beside it: what was done by the clock, by name, so that a recording can be gone through again (X10)."""

STEPS: Final = "steps"
"""And the steps before it that changed nothing: where each ended (`READ`), and its `INSTANTS`."""

READ: Final = "read"
"""Next offset of each source behind a step, by its place."""

Sent = asyncio.Future[Any]


class SentLog:
    """Outputs on their way, in their order.

    Args:
        floors: of each deliveries topic an offset below which no output of this epoch stands; empty = none is to be
            looked for.
    """

    def __init__(self, floors: Mapping[str, int]) -> None:
        self._floors = dict(floors)
        self._next_floors: dict[str, int] = {}
        self._waiting: deque[tuple[int, Sent]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sent]:
        return (sent for _, sent in self._waiting)

    def add(self, step: int, some: Iterable[Sent]) -> None:
        """Know all that a step sent."""
        self._waiting.extend((step, sent) for sent in some)

    async def first(self) -> None:
        """Wait for what was sent first, and forget it; what became of it is raised."""
        step, sent = self._waiting.popleft()
        try:
            metadata = await sent
            if self._floors and metadata.topic in self._floors:
                self._next_floors[metadata.topic] = metadata.offset
        finally:
            if not self._waiting or self._waiting[0][0] != step:
                # All of the step is safe. Its last batch is read once more, for its offset is that of its first record.
                self._floors.update(self._next_floors)
                self._next_floors.clear()

    def progress(self, step: int) -> dict[str, dict[str, Any]]:
        """What the journal of a step says of this.

        Args:
            step: the one that is journaled; its own outputs are still to come.
        """
        if not self._floors:
            return {}
        first = self._waiting[0][0] if self._waiting else step
        return {PROGRESS_KEY: {"step": first, "from": dict(self._floors)}}
