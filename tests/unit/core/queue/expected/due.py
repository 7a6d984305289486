"""What time brings, in the order of C2, and what a new owner begins with."""

from __future__ import annotations

from fractions import Fraction

from unit.core.queue.expected.message import LATER, NEVER, WAITING, Message, MessageEvent
from unit.core.queue.expected.subscriptions import Subscriptions


class Due(Subscriptions):
    """Deadlines, ends of leases and instants of schedules."""

    def advance(self, now_ms: int) -> None:
        for message in self.in_state("transferring", *WAITING):
            if self.late(message, now_ms):
                self._gone(message, now_ms, "time_limit")
        for message in self.in_state("leased", "delayed"):
            if message.until_ms <= now_ms:
                if message.state == "leased":
                    self.events.append(MessageEvent("lease_returned", message.bookmark, message.holder))
                    self.give_back(message, now_ms, self.back_off("lease", message), message.until_ms)
                else:
                    message.state = "available"
        for subscriber in list(self.subscribers.values()):
            if subscriber.last_seen_ms + subscriber.timeout_ms <= now_ms:
                self.unsubscribe(subscriber.id, now_ms, subscriber.last_seen_ms + subscriber.timeout_ms)
        self.come_due(now_ms)

    def come_due(self, now_ms: int) -> None:
        """By instant, then bookmark (C11); what there is no room for waits, and expires when it would enter (C51)."""
        room = self.room()
        for message in sorted(self.scheduled(), key=lambda m: (m.at_ms, m.bookmark)):
            due = message.at_ms <= now_ms
            if message.state == "held" and not (due and room):
                continue
            if self.late(message, now_ms) and (room or message.deadline_ms <= message.at_ms):
                self._gone(message, now_ms, "time_limit")
                message.state = "never was"
            elif due and room:
                room -= 1
                self.enter(message, now_ms)
            elif due:
                self.events.append(MessageEvent("held", message.bookmark))
                message.state = "held"

    def enter(self, message: Message, now_ms: int) -> None:
        """Give a message that was not visible its place; one that is beyond the limits leaves at once (C23, C73)."""
        message.state = "available"
        message.rank = message.rank if self.settings.traits.priority else None
        message.barrier = message.barrier and bool(self.settings.traits.barrier)
        message.group = message.group if self.settings.traits.group else None
        self.take_place(message.bookmark)
        if message.deliveries or message.cancels:
            self._leave_or_stay(message, now_ms)

    def next_due_ms(self) -> int | None:
        on = self.settings.expiration.enabled
        due = [s.last_seen_ms + s.timeout_ms for s in self.subscribers.values()]
        due += [m.until_ms for m in self.in_state("leased", "delayed")]
        due += [m.at_ms for m in self.scheduled() if m.at_ms < NEVER and (m.state != "held" or self.room())]
        if on:
            due += [
                m.deadline_ms
                for m in self.messages.values()
                if m.state in (*WAITING, "transferring", *LATER) and m.state != "held" and m.deadline_ms is not None
            ]
        return min(due, default=None)

    def set_back(self, now_ms: int) -> None:
        """The shard goes back with a clock that was set back; what it knew of the future counts as of now (C3)."""
        self.began_ms = min(self.began_ms, now_ms)
        for subscriber in self.subscribers.values():
            subscriber.last_seen_ms = min(subscriber.last_seen_ms, now_ms)

    def take_over(self, now_ms: int) -> None:
        self.began_ms = now_ms
        self.turn = -1
        self.served = []
        self.group_turn, self.group_tags = Fraction(0), {}
        if not self.rates():
            self.handed_out = []
        for subscriber in self.subscribers.values():
            subscriber.last_seen_ms = max(subscriber.last_seen_ms, now_ms)
            cap = self.settings.max_backlog
            subscriber.max_backlog = subscriber.asked if cap is None else min(subscriber.asked, cap)
        self.log_begin = {}
        for message in self.in_state(*WAITING):
            if self._limits(message):
                self._leave_or_stay(message, now_ms)
