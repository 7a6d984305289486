"""Retiring: a queue shard's part in the agreement on the queue's end (C4, C39, L11, Q18)."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from lapse.core.letter import FORWARDER
from lapse.core.lifetime import NEVER
from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.decision import Decisions
from lapse.core.queue.delivery.dispatch import STEP_MESSAGES
from lapse.core.queue.inquiry.inquiry import Inquiry
from lapse.core.queue.life.message_state import State
from lapse.core.queue.life.table import Guard, Trigger
from lapse.core.queue.life.transitions import Transitions
from lapse.core.queue.schedule.schedule import SCHEDULED_AT_ONCE, Schedule
from lapse.core.queue.step import Step
from lapse.core.queue.transfer.transfer_target import TransferTarget
from lapse.core.shard.activity import Activity
from lapse.core.shard.retirement import Cause, Holder, Report, Retirement

_GUARDS: Final = {Cause.DELETE: None, Cause.IDLE: Guard.IDLE}


class RetirableQueueShard:
    """Gives the agreement access to a queue shard, as a `lapse.core.shard.agreement.RetirableShard`.

    Attributes:
        has_unread: whether there are records for a new shard that still waits for older ones, as of the last look at
            the logs; true if not known (C81).
        event_prefix: see `RetirableShard`.
    """

    event_prefix: ClassVar[str] = ""

    def __init__(
        self,
        decisions: Decisions,
        transitions: Transitions,
        schedule: Schedule,
        inquiry: Inquiry,
        activity: Activity[Step],
        transfer_target: TransferTarget,
    ) -> None:
        self.has_unread = True
        self._decisions = decisions
        self._state = decisions.state
        self._transitions = transitions
        self._schedule = schedule
        self._inquiry = inquiry
        self._activity = activity
        self._transfer_target = transfer_target

    @property
    def retirement(self) -> Retirement | None:
        """The journaled retirement; None = in service."""
        return self._state.ending.retirement

    def journal_retirement(self, retirement: Retirement | None, step: Step) -> None:
        """Journal a retirement, or its end."""
        facts = {} if retirement is None else {"retirement": retirement.encode().decode()}
        self._decisions.apply_change(Change(ChangeKind.RETIRING, facts=facts), step)

    def report(self, cause: Cause, force: bool, now_ms: int) -> Report:
        """Report the shard's messages, and whether it can end.

        An idle queue may hold messages, a deleted one only if the deletion is forced. A transfer whose messages are not
        known to have arrived always prevents the end, because they would be lost with this shard (C77). The same holds
        for a record that a transfer has put here, read or not. It also holds for records that a new shard has not read
        because it waits for older ones: they cannot leave with a letter, and may be of a transfer (C81).
        """
        depth = self._inquiry.depth()
        counts = {name: depth[name] for name in ("leased", "available", "delayed", "scheduled", "dying")}
        left = sum(over.count for transfer in self._state.transfers for over in transfer.confirmed)
        unread = sum(self._transfer_target.unread.values())
        under_way = {"transferring": depth["transferring"] + left, "unconfirmed": depth["unconfirmed"] + unread}
        counts |= {name: count for name, count in under_way.items() if count}
        if depth["held"]:
            counts["held"] = depth["held"]
        transfers = self._transfers() if any(under_way.values()) else ()
        waits = self._decisions.settings.waits and self.has_unread
        if cause is Cause.IDLE:
            idle_at_ms = self._activity.idle_at_ms()
            used = waits or unread
            last_ms = now_ms if idle_at_ms >= NEVER or used else self._activity.last_ms
            return Report(willing=idle_at_ms <= now_ms and not used, counts=counts, active_ms=last_ms)
        willing = not waits and (not any(counts.values()) or (force and not transfers))
        return Report(willing=willing, counts=counts, holders=self._holders(), transfers=transfers, waits=waits)

    def remove_some(self, retirement: Retirement, now_ms: int, step: Step) -> bool:
        """Remove some of the remaining messages, leased ones too. Return whether none is left."""
        guard = _GUARDS[retirement.cause]
        removed = 0
        for index in sorted(self._state.segments):
            if removed >= STEP_MESSAGES:
                return False
            if not self._state.outline(index).occupied:
                continue
            segment = self._state.segments[index]
            slots = self._transitions.slots_to_change(Trigger.RETIRE, segment, guard=guard)
            if len(slots):
                removed += len(slots)
                self._transitions.apply_trigger(Trigger.RETIRE, [(segment, slots)], now_ms, step, guard=guard)
            self._state.segments.make_room()
        left = min(STEP_MESSAGES - removed, SCHEDULED_AT_ONCE)
        return left > 0 and len(self._schedule.purge(now_ms, step, Trigger.RETIRE, guard, most=left)) < left

    def is_subscribed(self) -> bool:
        """Return whether a client is subscribed. The queue's own forwarder does not count."""
        return bool(self._state.subscriptions.keys() - {FORWARDER})

    def idle_at_ms(self) -> int:
        """Return the instant from which the shard is idle if it is not used before, ms since the epoch."""
        return self._activity.idle_at_ms()

    def idle_ms(self) -> int:
        """Return after how long without use the shard counts as idle, ms."""
        return self._activity.idle_ms

    def _transfers(self) -> tuple[str, ...]:
        """Return the ids of the unfinished transfers from or to this shard."""
        known = {transfer.id for transfer in self._state.transfers} | self._transfer_target.unread.keys()
        return tuple(sorted(known | {one.transfer for _, one in self._state.scheduled.items() if one.transfer}))

    def _holders(self) -> tuple[Holder, ...]:
        counts: dict[int, tuple[int, int]] = {}
        for index in sorted(self._state.segments):
            if not self._state.outline(index).count(State.LEASED):
                continue
            segment = self._state.segments.look(index)
            if segment.holder is None or segment.until_ms is None:
                continue
            leased = np.flatnonzero(segment.state[: segment.used] == State.LEASED)
            for number in np.unique(segment.holder[leased]).tolist():
                mine = leased[segment.holder[leased] == number]
                count, until_ms = counts.get(number, (0, 0))
                counts[number] = count + len(mine), max(until_ms, int(segment.until_ms[mine].max()))
        holders: list[Holder] = []
        for number, (count, until_ms) in counts.items():
            known = self._state.subscription_table.find(number)
            name, client = ("nobody who is known", "") if known is None else (known.id, known.client)
            holders.append(Holder(name, client, count, until_ms))
        return tuple(holders)
