"""The work that a runner does for the next step while the effects of one step are being written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class WorkAhead:
    """What is already done for the next step.

    Attributes:
        taken: number of messages and commands that were taken in.
        turns: number of turns in which timers acted.
        delivered: whether messages were handed out.
    """

    taken: int = 0
    turns: int = 0
    delivered: bool = False

    def __bool__(self) -> bool:
        return bool(self.taken or self.turns or self.delivered)
