"""Activity: what keeps a temporary SOW topic in use, and how its journal learns of use (Q18, C50)."""

from __future__ import annotations

from lapse.core.shard.activity import USED, Used
from lapse.core.sow.state import SowState
from lapse.core.sow.step import Step


class UsableSowShard:
    """What the activity asks of a SOW shard (`lapse.core.shard.activity.UsableShard`)."""

    __slots__ = ("_state",)

    def __init__(self, state: SowState) -> None:
        self._state = state

    @property
    def used(self) -> Used | None:
        """What the journal says; None = nothing yet."""
        return self._state.used

    def keep_used(self, used: Used, step: Step) -> None:
        """Journal it."""
        self._state.change(step, USED, used.encode())

    def is_protected(self) -> bool:
        """Whether somebody is subscribed, or an update is scheduled; records alone protect nothing."""
        return bool(self._state.subscribers) or len(self._state.schedule) > 0
