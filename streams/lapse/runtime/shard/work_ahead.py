"""Work that a runner does for the next step while the effects of one are being written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class WorkAhead:
    """What the next step has of its work already.

    Attributes:
        taken: how many messages and commands were taken in.
        turns: how often timers were let act.
        delivered: whether messages were handed out.
    """

    taken: int = 0
    turns: int = 0
    delivered: bool = False

    def __bool__(self) -> bool:
        return bool(self.taken or self.turns or self.delivered)
