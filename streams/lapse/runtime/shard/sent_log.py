"""Tracks the outputs of a shard step by step, so that the next owner can find those that are missing (C55).

A step's journal names the first step whose outputs may be missing, and where each deliveries topic stood before that
step. A new owner reads from there, and writes what is missing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

PROGRESS_KEY: Final = ":deliveries"
"""Key in the record of read positions. It resembles neither a topic's name nor a partition's key."""

INSTANTS: Final = "at"
"""Key beside the step's number: the instants that were taken from the clock, by name, for replays (X10)."""

STEPS: Final = "steps"
"""Key beside it: the preceding steps without changes, each with its end (`READ`) and its `INSTANTS`."""

READ: Final = "read"
"""Key in such a step: the next offset of each source behind it, by `topic:partition`."""

MOST_STEPS: Final = 192
"""The journal goes on at most so many steps behind a step whose outputs are not safe. Fewer than a queue's journal
holds, since a new owner must find there what that step handed out."""

Sent = asyncio.Future[Any]


class SentLog:
    """Outputs that are being written, in order.

    Args:
        floors: for each deliveries topic, an offset below all outputs of this epoch; empty if no owner looks for them.
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
        """Add the outputs of a step."""
        self._waiting.extend((step, sent) for sent in some)

    async def first(self) -> None:
        """Wait for the oldest output, and remove it. Raise its error if it failed."""
        step, sent = self._waiting.popleft()
        try:
            metadata = await sent
            if self._floors and metadata is not None and metadata.topic in self._floors:
                self._next_floors[metadata.topic] = metadata.offset
        finally:
            if not self._waiting or self._waiting[0][0] != step:
                # All of the step is safe. Its last batch is read again later, because its offset is that of its first
                # record.
                self._floors.update(self._next_floors)
                self._next_floors.clear()

    def holds_up(self, step: int) -> bool:
        """Return whether a step must not be journaled before the oldest output is safe."""
        return bool(self._floors and self._waiting) and self._waiting[0][0] <= step - MOST_STEPS

    def progress(self, step: int) -> dict[str, dict[str, Any]]:
        """Return what the journal of a step says of outputs.

        Args:
            step: the step that is journaled. Its own outputs are sent later.
        """
        if not self._floors:
            return {}
        first = self._waiting[0][0] if self._waiting else step
        return {PROGRESS_KEY: {"step": first, "from": dict(self._floors)}}
