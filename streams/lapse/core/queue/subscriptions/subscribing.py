"""Subscribing: how subscriptions begin, stay alive, change and end (Q3, Q5, C5, C20)."""

from __future__ import annotations

from lapse.core.expression import compile_filter
from lapse.core.letter import FORWARDER
from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.decision import Decisions
from lapse.core.queue.delivery.retry_cause import Cause
from lapse.core.queue.inquiry.matching import Matching
from lapse.core.queue.life.table import Trigger
from lapse.core.queue.life.transitions import Transitions
from lapse.core.queue.modes import Semantics
from lapse.core.queue.step import Step
from lapse.core.queue.subscriptions.subscription import Payload, Subscription
from lapse.core.shard.event import EventKind, ShardEvent


class Subscribing:
    """Begins, changes and ends the subscriptions of one shard.

    Args:
        decisions: the shard's decisions.
        transitions: puts leased messages back into the queue.
        matching: keeps the results of the subscriptions' filters.
    """

    def __init__(self, decisions: Decisions, transitions: Transitions, matching: Matching) -> None:
        self._decisions = decisions
        self._state = decisions.state
        self._settings = decisions.settings
        self._transitions = transitions
        self._matching = matching
        self._keep_filters()

    def subscribe(
        self,
        subscription: str,
        client: str,
        max_backlog: int,
        heartbeat_timeout_ms: int,
        filter_text: str,
        now_ms: int,
        step: Step,
        payload: Payload = "inline",
        row_filter: str = "",
    ) -> Subscription:
        """Begin a subscription, or replace its options and keep its leases (Q3, C20).

        The filter already includes the row filter of the subscription's user (X4).

        Raises:
            ExpressionError: the filter cannot be compiled.
        """
        if filter_text:
            compile_filter(filter_text)
        known = self._state.subscriptions.get(subscription)
        facts = Subscription(
            id=subscription,
            number=self._state.subscription_table.next_number if known is None else known.number,
            client=client,
            max_backlog=self._capped(max_backlog),
            asked_backlog=max_backlog,
            heartbeat_timeout_ms=heartbeat_timeout_ms,
            filter=filter_text,
            last_seen_ms=now_ms,
            payload=payload,
            row_filter=row_filter,
            began_ms=now_ms if known is None else known.began_ms,
        ).facts()
        self._decisions.apply_change(Change(ChangeKind.SUBSCRIBED, holder=facts["number"], facts=facts), step)
        self._keep_filters()
        if known is None:
            step.events.append(ShardEvent(EventKind.SUBSCRIBED, now_ms, subscription=subscription, detail=client))
        return self._state.subscriptions[subscription]

    def note_heartbeat(self, subscription: str, now_ms: int) -> bool:
        """Note a sign of life of a subscription. Return False if the shard does not know it (Q5)."""
        known = self._state.subscriptions.get(subscription)
        if known is None:
            return False
        self._state.subscription_table.note_heard(known, now_ms)
        return True

    def subscriptions(self) -> list[Subscription]:
        """Return the subscriptions of clients, without the forwarder."""
        return [one for one in self._state.subscriptions.values() if one.id != FORWARDER]

    def count_hanging(self, now_ms: int) -> int:
        """Return the number of messages of subscriptions that hang (Q15)."""
        lease_ms = self._settings.lease_ms
        return sum(one.outstanding for one in self.subscriptions() if one.hangs_since_ms(now_ms, lease_ms))

    def unsubscribe(
        self, subscription: str, now_ms: int, step: Step, detail: str = "", lost_at_ms: int | None = None
    ) -> bool:
        """End a subscription, and put its leased messages back into the queue (Q5).

        They wait again at once, or after their back-off if the consumer was lost at `lost_at_ms` (Q24). Return False if
        the shard does not know the subscription.
        """
        known = self._state.subscriptions.get(subscription)
        if known is None:
            return False
        self._state.segments.make_room()
        at, held = Trigger.LOSE_CONSUMER, self._decisions.backlog_places(known.number)
        if lost_at_ms is None:
            self._transitions.apply_trigger(at, held, now_ms, step)
        else:
            self._note_lost(known, lost_at_ms, step)
            self._transitions.return_messages(at, Cause.LOST, held, now_ms, step, since_ms=lost_at_ms)
        self._decisions.apply_change(Change(ChangeKind.UNSUBSCRIBED, holder=known.number, facts={"id": known.id}), step)
        self._keep_filters()
        step.events.append(ShardEvent(EventKind.UNSUBSCRIBED, now_ms, subscription=subscription, detail=detail))
        return True

    def end_too_costly(self, subscription: str, now_ms: int, step: Step, detail: str) -> None:
        """End a subscription whose filter takes too much CPU (X7). A new owner could measure less, so it is told."""
        self._note_lost(self._state.subscriptions[subscription], now_ms + 1, step)
        self.unsubscribe(subscription, now_ms, step, detail)

    def _note_lost(self, known: Subscription, at_ms: int, step: Step) -> None:
        """Have it journaled ahead that a subscription ends (C5).

        This is a decision of the worker. Others follow in the step, for example that a message leaves with a letter.
        After a crash the log alone would not lead to it again, since a new owner gives consumers a whole timeout.
        """
        if known.outstanding:
            step.lost.append(known.facts_when_lost(at_ms))

    def end_lost(self, now_ms: int, step: Step) -> None:
        """End subscriptions that were not heard of for too long (Q5)."""
        if self._state.subscription_table.lost_at_ms > now_ms:
            return
        for lost in [one for one in self._state.subscriptions.values() if one.lost_at_ms <= now_ms]:
            why = f"not heard of for {now_ms - lost.last_seen_ms} ms"
            self.unsubscribe(lost.id, now_ms, step, why, lost.lost_at_ms)

    def restart_timeouts(self, now_ms: int) -> None:
        """Give every subscription one full heartbeat timeout from now, unless its consumer is lost (C5)."""
        for subscription in self._state.subscriptions.values():
            if not subscription.lost:
                self._state.subscription_table.note_heard(subscription, now_ms)
            if self._settings.semantics is Semantics.AT_MOST_ONCE:
                subscription.idle_until_ms = now_ms

    def apply_backlog_cap(self, step: Step) -> None:
        """Apply a changed cap on backlogs to the open subscriptions (Q3)."""
        for known in list(self._state.subscriptions.values()):
            max_backlog = self._capped(known.asked_backlog)
            if max_backlog != known.max_backlog and not known.lost:
                facts = {**known.facts(), "max_backlog": max_backlog}
                self._decisions.apply_change(Change(ChangeKind.SUBSCRIBED, holder=known.number, facts=facts), step)

    def _capped(self, backlog: int) -> int:
        return backlog if self._settings.max_backlog is None else min(backlog, self._settings.max_backlog)

    def _keep_filters(self) -> None:
        self._matching.set_subscribed(one.filter for one in self._state.subscriptions.values())
