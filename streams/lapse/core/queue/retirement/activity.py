"""Activity: what keeps a temporary queue in use, and how its use is journaled (Q18, C50, C77)."""

from __future__ import annotations

from lapse.core.lifetime import NEVER
from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.decision import Decisions
from lapse.core.queue.life.message_state import PROTECTING
from lapse.core.queue.step import Step
from lapse.core.shard.activity import LastUse


class UsableQueueShard:
    """Gives the activity access to a queue shard, as a `lapse.core.shard.activity.UsableShard`."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._state = decisions.state

    @property
    def last_use(self) -> LastUse | None:
        """The journaled last use; None = none yet."""
        return self._state.ending.used

    def journal_use(self, used: LastUse, step: Step) -> None:
        """Journal a use."""
        self._decisions.apply_change(
            Change(ChangeKind.USED, until_ms=used.at_ms, facts={"configured": used.configured}), step
        )

    def is_protected(self) -> bool:
        """Return whether a client is subscribed, a message is scheduled or delayed, or a transfer is unfinished."""
        state = self._state
        if state.subscriptions or state.scheduled:
            return True
        under_way = list(state.transfers)
        if any(transfer.confirmed for transfer in under_way):
            return True
        if not under_way and state.index.untils.next_ms() >= NEVER:
            return False
        outlines = (state.outline(index) for index in state.segments)
        return any(one.count(protecting) for one in outlines for protecting in PROTECTING)
