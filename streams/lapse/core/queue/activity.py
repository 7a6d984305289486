"""Activity: when a queue was last used, so that a temporary one is known to be idle (Q18, C39).

Used is a queue by what arrives, by every command, and by a new configuration. A scheduled or delayed message that
becomes available is use, and so is every removal (C50). The queue is not idle at all while a subscription is open, a
message is scheduled or delayed, or something that was handed over is unfinished (C77). The journal learns of use now
and then only: after a restart the queue counts as used a little later than it was, never earlier.
"""

from __future__ import annotations

from typing import Final

from lapse.core.lifetime import NEVER
from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.decision import Decisions
from lapse.core.queue.segment import State
from lapse.core.queue.step import Step
from lapse.core.shard.agreement import Agreement

_PARTS: Final = 60
"""The journal is told of use once in so many parts of the idle time."""


class Activity:
    """When one shard was last used."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._state = decisions.state
        self._idle_ms = decisions.settings.idle_ms
        self._slack_ms = self._idle_ms // _PARTS
        # What was not journaled any more may have been as late as this.
        journaled = self._state.ending.used
        self._last_ms = 0 if journaled is None else journaled.at_ms + self._slack_ms

    @property
    def watched(self) -> bool:
        """Whether the queue is a temporary one."""
        return self._idle_ms > 0

    @property
    def last_ms(self) -> int:
        """When the shard was last used, ms since the epoch; after a restart perhaps a little later."""
        return self._last_ms

    def begin(self, now_ms: int, step: Step) -> None:
        """Begin an epoch: a shard that is new, or configured anew, is used now."""
        if not self.watched:
            return
        known = self._state.ending.used
        if known is None or known.configured != self._decisions.settings.configured:
            self._last_ms = max(self._last_ms, now_ms)
            self._journal(step)

    def use(self, now_ms: int, step: Step, agreement: Agreement[Step]) -> None:
        """The shard is used, which puts off the end of a temporary queue."""
        if self.watched:
            self.note(now_ms, step)
            agreement.used(now_ms, step)

    def note(self, now_ms: int, step: Step) -> None:
        """The shard is used."""
        if not self.watched or now_ms <= self._last_ms:
            return
        self._last_ms = now_ms
        known = self._state.ending.used
        if known is None or now_ms - known.at_ms >= self._slack_ms:
            self._journal(step)

    def idle_at_ms(self) -> int:
        """From when on the shard is idle if nothing happens, ms since the epoch; `NEVER` if it cannot be."""
        if not self.watched or self._state.subscriptions or self._state.scheduled or self._waits():
            return NEVER
        return self._last_ms + self._idle_ms

    def _waits(self) -> bool:
        """Whether a message is delayed, or a transfer is unfinished."""
        state = self._state
        under_way = list(state.transfers)
        if any(transfer.confirmed for transfer in under_way):
            return True
        if not under_way and state.index.untils.next_ms() >= NEVER:
            return False
        outlines = (state.outline(index) for index in state.segments)
        return any(one.count(State.DELAYED) or one.count(State.TRANSFERRING) for one in outlines)

    def _journal(self, step: Step) -> None:
        facts = {"configured": self._decisions.settings.configured}
        self._decisions.do(Change(ChangeKind.USED, until_ms=self._last_ms, facts=facts), step)
