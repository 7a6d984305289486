"""Quiet steps: steps without changes. The next journal says where they ended, so that a replay repeats them (X10).

A replay must not join their input with later input. A heartbeat before a message makes nothing due that concerns the
message, and a question is answered at the end of its own step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lapse.runtime.shard.sent_log import INSTANTS, READ

Steps = list[dict[str, dict[str, Any]]]
"""For each step, how far it read, by `topic:partition`, and the instants that it took from the clock."""


class QuietSteps:
    """The quiet steps of a shard since its last journal."""

    def __init__(self) -> None:
        self._read: dict[str, int] = {}
        self._steps: Steps = []
        self._goes_on = False
        """Whether a replay may join the next step with the last one."""

    def begin(self, read: Mapping[str, int]) -> None:
        """Set the positions from which the sources are read, by `topic:partition`."""
        self._read = dict(read)

    def add(self, read: Mapping[str, int], instants: Mapping[str, int], *, alone: bool) -> bool:
        """Note a step that ended without a journal.

        Args:
            read: next offset of each source behind the step, by `topic:partition`.
            instants: what it took from the clock, by name, ms since the epoch.
            alone: whether a replay must not join it with its neighbours.

        Returns:
            Whether it was noted. A step that read nothing and need not stand alone is not noted.
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
        """Return the noted steps, to be journaled with a step that has read up to `read`."""
        steps, self._steps, self._goes_on = self._steps, [], False
        self._read = dict(read)
        return steps
