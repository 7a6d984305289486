"""Quiet steps changed nothing. The next journal says where they ended, so that a replay can repeat them (X10).

What they read must not be taken in together with what came later. A heartbeat that came before a message lets nothing
be due that concerns the message, and a question waits for its answer until its own step has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lapse.runtime.shard.sent_log import INSTANTS, READ

Steps = list[dict[str, dict[str, Any]]]
"""Of each step how far it read, by the places that it read on from, and what it did by the clock."""


class QuietSteps:
    """The quiet steps of a shard since its last journal."""

    def __init__(self) -> None:
        self._read: dict[str, int] = {}
        self._steps: Steps = []
        self._goes_on = False
        """Whether the next one may be gone through together with the last one."""

    def begin(self, read: Mapping[str, int]) -> None:
        """Know where the sources are read from, by place."""
        self._read = dict(read)

    def add(self, read: Mapping[str, int], instants: Mapping[str, int], *, alone: bool) -> bool:
        """Note a step that has ended without a journal.

        Args:
            read: next offset of each source behind it, by place.
            instants: what was done by the clock, by name; ms since the epoch.
            alone: whether it is to be gone through by itself; others are joined with their neighbours.

        Returns:
            Whether it was noted. One that has read nothing, and does not stand alone, is none.
        """
        moved = {place: offset for place, offset in read.items() if self._read.get(place) != offset}
        if not moved and not alone:
            return False
        if self._goes_on and not alone:
            self._steps[-1][READ] |= moved
            self._steps[-1][INSTANTS] |= instants
        else:
            self._steps.append({READ: moved, INSTANTS: dict(instants)})
        self._goes_on = not alone
        self._read |= moved
        return True

    def take(self, read: Mapping[str, int]) -> Steps:
        """Hand over what was noted, to be journaled with a step that has read so far."""
        steps, self._steps, self._goes_on = self._steps, [], False
        self._read = dict(read)
        return steps
