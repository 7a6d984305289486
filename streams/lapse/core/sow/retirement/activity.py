"""Activity: what keeps a temporary SOW topic in use, and how its use is journaled (Q18, C50)."""

from __future__ import annotations

from lapse.core.shard.activity import USED, LastUse
from lapse.core.sow.state import SowState
from lapse.core.sow.step import Step


class UsableSowShard:
    """Gives the activity access to a SOW shard, as a `lapse.core.shard.activity.UsableShard`."""

    __slots__ = ("_state",)

    def __init__(self, state: SowState) -> None:
        self._state = state

    @property
    def last_use(self) -> LastUse | None:
        """The journaled last use; None = none yet."""
        return self._state.used

    def journal_use(self, used: LastUse, step: Step) -> None:
        """Journal a use."""
        self._state.apply_change(step, USED, used.encode())

    def is_protected(self) -> bool:
        """Return whether a client is subscribed, or an update is scheduled. Records alone do not protect the topic."""
        return bool(self._state.subscribers) or len(self._state.schedule) > 0
