"""Retiring: a SOW shard's part in the agreement on the topic's end (C4, L11, Q18)."""

from __future__ import annotations

from itertools import islice
from typing import ClassVar, Final

from lapse.core.lifetime import NEVER
from lapse.core.reason import Reason
from lapse.core.shard.activity import Activity
from lapse.core.shard.retirement import RETIREMENT, Cause, Report, Retirement
from lapse.core.sow import journal
from lapse.core.sow.removal.removal import Removals
from lapse.core.sow.state import SowState
from lapse.core.sow.step import Step
from lapse.core.sow.updates.record_updates import RecordUpdates

_AT_ONCE: Final = 10_000
"""How many records may leave in one step."""

_REASONS: Final = {Cause.DELETE: Reason.PURGED, Cause.IDLE: Reason.AUTO_DELETED}


class RetirableSowShard:
    """Gives the agreement access to a SOW shard, as a `lapse.core.shard.agreement.RetirableShard`.

    Attributes:
        event_prefix: see `RetirableShard`.
    """

    __slots__ = ("_activity", "_removals", "_state", "_updates")

    event_prefix: ClassVar[str] = "the SOW topic, "

    def __init__(self, state: SowState, updates: RecordUpdates, removals: Removals, activity: Activity[Step]) -> None:
        self._state = state
        self._updates = updates
        self._removals = removals
        self._activity = activity

    @property
    def retirement(self) -> Retirement | None:
        """The journaled retirement; None = in service."""
        return self._state.retirement

    def journal_retirement(self, retirement: Retirement | None, step: Step) -> None:
        """Journal a retirement, or its end, behind the step's other changes."""
        step.changes.pop(RETIREMENT, None)
        self._state.apply_change(step, RETIREMENT, None if retirement is None else retirement.encode())

    def report(self, cause: Cause, force: bool, now_ms: int) -> Report:
        """Report the unexpired records (L10), and whether the shard can end. An idle SOW topic may hold records."""
        state = self._state
        counts = {"records": state.depth(now_ms), "scheduled": len(state.schedule), "dying": len(state.pending)}
        if cause is Cause.IDLE:
            idle_at_ms = self._activity.idle_at_ms()
            last_ms = now_ms if idle_at_ms >= NEVER else self._activity.last_ms
            return Report(willing=idle_at_ms <= now_ms, counts=counts, active_ms=last_ms)
        return Report(willing=force or not any(counts.values()), counts=counts)

    def remove_some(self, retirement: Retirement, now_ms: int, step: Step) -> bool:
        """Remove some of the remaining records. Return whether none is left."""
        state = self._state
        reason = _REASONS[retirement.cause]
        for journal_key, entry in list(islice(state.entries.items(), _AT_ONCE)):
            if state.is_due(entry, now_ms):
                self._removals.expire(journal_key, entry, now_ms, step)
            else:
                self._removals.purge(journal_key, entry, now_ms, step, reason)
        for journal_key, _ in list(islice(state.schedule, _AT_ONCE)):
            self._updates.remove_version(journal_key, reason, now_ms, step)
        if state.entries or state.schedule:
            return False
        for journal_key in list(islice(state.tombstones, _AT_ONCE)):
            state.apply_change(step, journal.TOMBSTONE + journal_key[1:], None)
        return not state.tombstones

    def is_subscribed(self) -> bool:
        """Return whether a client is subscribed."""
        return bool(self._state.subscribers)

    def idle_at_ms(self) -> int:
        """Return when the shard will be idle unless it is used, ms since the epoch; `NEVER` if it is protected."""
        return self._activity.idle_at_ms()

    def idle_ms(self) -> int:
        """Return after how long without use the shard counts as idle, ms."""
        return self._activity.idle_ms
