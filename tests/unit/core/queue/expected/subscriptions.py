"""Who receives, and what comes back when a subscription, a lease or a delivery ends (Q24, C68, C69)."""

from __future__ import annotations

from fractions import Fraction

from unit.core.queue.expected.message import NEVER, Message, MessageEvent, Subscriber, chance
from unit.core.queue.expected.state import State


class Subscriptions(State):
    """Subscriptions and what they hold."""

    def subscribe(
        self,
        subscription: str,
        max_backlog: int,
        timeout_ms: int,
        now_ms: int,
        text: str = "",
        payload: str = "inline",
    ) -> None:
        asked = max_backlog
        if self.settings.max_backlog is not None:
            max_backlog = min(max_backlog, self.settings.max_backlog)
        known = self.subscribers.get(subscription)
        if known is None:
            known = self.subscribers[subscription] = Subscriber(subscription, self.next_number, 0, 0, 0)
            self.next_number += 1
        known.max_backlog, known.timeout_ms, known.last_seen_ms = max_backlog, timeout_ms, now_ms
        known.asked, known.filter, known.payload = asked, text, payload

    def heard(self, subscription: str, now_ms: int) -> bool:
        known = self.subscribers.get(subscription)
        if known is not None:
            known.last_seen_ms = max(known.last_seen_ms, now_ms)
        return known is not None

    def unsubscribe(self, subscription: str, now_ms: int, lost_at_ms: int | None = None) -> bool:
        if subscription not in self.subscribers:
            return False
        for message in self.in_state("leased"):
            if message.holder == subscription:
                self.events.append(MessageEvent("lease_returned", message.bookmark, message.holder))
                wait_ms = 0 if lost_at_ms is None else self.back_off("lost", message)
                self.give_back(message, now_ms, wait_ms, lost_at_ms)
        for message in self.in_state("sent"):
            if message.holder == subscription:
                message.state, message.holder = "gone", ""
        del self.subscribers[subscription]
        return True

    def back_off(self, cause: str, message: Message) -> int:
        """How long a message waits before its next delivery (Q24, C68, C69), ms."""
        rule, stated = self.settings.retry, message.retry
        if cause not in [str(one) for one in rule.on]:
            return 0
        readable = stated is not None and stated.isdigit() and len(stated) <= 15
        wait_ms = int(stated) if readable else rule.delay_ms
        for _ in range(message.deliveries - 1):
            wait_ms = min(wait_ms * Fraction(rule.factor), Fraction(rule.max_delay_ms))
        wait_ms = min(round(wait_ms), rule.max_delay_ms)
        if not rule.jitter:
            return wait_ms
        spread = 2.0 * chance(message.bookmark, message.deliveries) - 1.0
        return min(round(wait_ms * (1.0 + rule.jitter * spread)), rule.max_delay_ms)

    def give_back(self, message: Message, now_ms: int, delay_ms: int = 0, since_ms: int | None = None) -> None:
        until_ms = min((now_ms if since_ms is None else since_ms) + delay_ms, NEVER)
        delay_ms = delay_ms and max(0, until_ms - now_ms)  # a wait that is over already is none
        holder = self.subscribers.get(message.holder)
        message.last = -1 if delay_ms or holder is None else holder.number
        message.holder = ""
        message.state = "delayed" if delay_ms else "available"
        message.until_ms = until_ms
        self._leave_or_stay(message, now_ms)
