"""A naive queue shard, written from the contract: one dict entry per message, every rule a loop over all of them.

Slow and plain on purpose. Nothing of `lapse.core.queue` is used but its settings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from lapse.core.queue.settings import Fairness, Leasing, QueueSettings, Semantics

Bookmark = tuple[str, int, int]
REASONS = (
    "time_limit",
    "forced_expire",
    "max_deliveries",
    "max_cancels",
    "invalid_lifetime",
    "purged",
    "withdrawn",
    "log_truncated",
)
WAITING = ("available", "delayed")


@dataclass
class Published:
    """A record of an underlying topic, with what its headers mean said plainly.

    Attributes:
        ttl_ms: stated relative lifetime; 0 = never; None = not stated.
        expires_at_ms: stated absolute deadline.
        enqueue_at_ms: stated schedule.
        broken: the headers cannot be read.
        redriven_for: the queue that a redriven record is for; empty = not redriven.
    """

    offset: int
    timestamp: int
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    ttl_ms: int | None = None
    expires_at_ms: int | None = None
    enqueue_at_ms: int | None = None
    broken: bool = False
    redriven_for: str = ""
    key: bytes | None = None
    value: bytes | None = b""


@dataclass
class Message:
    bookmark: Bookmark
    state: str
    deadline_ms: int | None
    at_ms: int = 0
    until_ms: int = 0
    holder: str = ""
    deliveries: int = 0
    cancels: int = 0


@dataclass
class Subscriber:
    id: str
    number: int
    max_backlog: int
    timeout_ms: int
    last_seen_ms: int


@dataclass(frozen=True)
class Sent:
    subscription: str
    bookmark: Bookmark
    deadline_ms: int | None
    deliveries: int
    cancels: int
    until_ms: int


@dataclass(frozen=True)
class Gone:
    bookmark: Bookmark
    reasons: tuple[str, ...]
    letter: bool
    deadline_ms: int | None
    at_ms: int
    deliveries: int = 0
    cancels: int = 0


class Oracle:
    def __init__(self, settings: QueueSettings) -> None:
        self.settings = settings
        self.messages: dict[Bookmark, Message] = {}
        self.order: list[Bookmark] = []
        self.subscribers: dict[str, Subscriber] = {}
        self.next_offset: dict[tuple[str, int], int] = {}
        self.next_number = 0
        self.turn = -1
        self.paused = False
        self.deliveries: list[Sent] = []
        self.removals: list[Gone] = []

    # Small questions

    def late(self, message: Message, now_ms: int) -> bool:
        on = self.settings.expiration.enabled
        return on and message.deadline_ms is not None and message.deadline_ms <= now_ms

    def outstanding(self, subscription: str) -> int:
        held = [m for m in self.messages.values() if m.holder == subscription and m.state in ("leased", "sent")]
        return len(held)

    def space(self, subscriber: Subscriber) -> int:
        return max(0, subscriber.max_backlog - self.outstanding(subscriber.id))

    def in_state(self, *states: str) -> list[Message]:
        return [self.messages[b] for b in self.order if self.messages[b].state in states]

    def scheduled(self) -> list[Message]:
        return [m for m in self.messages.values() if m.state == "scheduled"]

    # Arrival (L1 to L12)

    def deadline(self, record: Published, duration_ms: int | None) -> int | None:
        """The deadline, None = never; raises ValueError where there can be none (C6, C9)."""
        start_ms = max(record.timestamp, -1 if record.enqueue_at_ms is None else record.enqueue_at_ms)
        ceiling_ms = duration_ms if self.settings.expiration.model == "ceiling" else None
        durations: list[int] = []
        absolutes: list[int] = []
        if record.expires_at_ms is not None:
            absolutes.append(record.expires_at_ms)
        elif record.ttl_ms is None:
            durations += [] if duration_ms is None else [duration_ms]
        elif record.ttl_ms > 0:
            durations.append(record.ttl_ms)
        if ceiling_ms is not None:
            durations.append(ceiling_ms)
        if durations:
            if start_ms == -1 or start_ms + min(durations) >= 2**63 - 1:
                raise ValueError
            absolutes.append(start_ms + min(durations))
        return min(absolutes) if absolutes and min(absolutes) < 2**63 - 1 else None

    def arrive(self, topic: str, partition: int, records: list[Published]) -> None:
        duration_ms = self.settings.expiration_of(topic).default_ms
        for record in records:
            if record.offset < self.next_offset.get((topic, partition), 0):
                continue
            self.next_offset[topic, partition] = record.offset + 1
            if record.redriven_for not in ("", self.settings.name):
                continue
            bookmark = (topic, partition, record.offset)
            try:
                if record.broken:
                    raise ValueError
                deadline_ms = self.deadline(record, duration_ms)
            except ValueError:
                self._gone(Message(bookmark, "", None), record.timestamp, "invalid_lifetime")
                continue
            message = Message(bookmark, "available", deadline_ms)
            if self.late(message, record.timestamp):
                self._gone(message, record.timestamp, "time_limit")
            elif record.enqueue_at_ms is not None and record.enqueue_at_ms > record.timestamp:
                message.state, message.at_ms = "scheduled", record.enqueue_at_ms
                self.messages[bookmark] = message
            else:
                self.messages[bookmark] = message
                self.order.append(bookmark)

    # Subscriptions

    def subscribe(self, subscription: str, max_backlog: int, timeout_ms: int, now_ms: int) -> None:
        if self.settings.max_backlog is not None:
            max_backlog = min(max_backlog, self.settings.max_backlog)
        known = self.subscribers.get(subscription)
        if known is None:
            known = self.subscribers[subscription] = Subscriber(subscription, self.next_number, 0, 0, 0)
            self.next_number += 1
        known.max_backlog, known.timeout_ms, known.last_seen_ms = max_backlog, timeout_ms, now_ms

    def heard(self, subscription: str, now_ms: int) -> bool:
        known = self.subscribers.get(subscription)
        if known is not None:
            known.last_seen_ms = max(known.last_seen_ms, now_ms)
        return known is not None

    def unsubscribe(self, subscription: str, now_ms: int) -> bool:
        if subscription not in self.subscribers:
            return False
        for message in self.in_state("leased"):
            if message.holder == subscription:
                self.give_back(message, now_ms)
        for message in self.in_state("sent"):
            if message.holder == subscription:
                message.state, message.holder = "gone", ""
        del self.subscribers[subscription]
        return True

    # What time brings, in the order of C2

    def advance(self, now_ms: int) -> None:
        for message in self.in_state(*WAITING):
            if self.late(message, now_ms):
                self._gone(message, now_ms, "time_limit")
        for message in self.in_state("leased", "delayed"):
            if message.until_ms <= now_ms:
                if message.state == "leased":
                    self.give_back(message, now_ms)
                else:
                    message.state = "available"
        for subscriber in list(self.subscribers.values()):
            if subscriber.last_seen_ms + subscriber.timeout_ms <= now_ms:
                self.unsubscribe(subscriber.id, now_ms)
        for message in sorted(self.scheduled(), key=lambda m: (m.at_ms, m.bookmark)):
            if self.late(message, now_ms):
                self._gone(message, now_ms, "time_limit")
                message.state = "never was"
            elif message.at_ms <= now_ms:
                message.state = "available"
                self.order.append(message.bookmark)

    def next_due_ms(self) -> int | None:
        on = self.settings.expiration.enabled
        due = [s.last_seen_ms + s.timeout_ms for s in self.subscribers.values()]
        due += [m.until_ms for m in self.in_state("leased", "delayed")]
        due += [m.at_ms for m in self.scheduled()]
        if on:
            due += [
                m.deadline_ms
                for m in self.messages.values()
                if m.state in (*WAITING, "scheduled") and m.deadline_ms is not None
            ]
        return min(due, default=None)

    def take_over(self, now_ms: int) -> None:
        self.turn = -1
        for subscriber in self.subscribers.values():
            subscriber.last_seen_ms = max(subscriber.last_seen_ms, now_ms)
        for message in self.in_state("sent"):
            message.state, message.holder = "gone", ""
        for message in self.in_state(*WAITING):
            if self._limits(message):
                self._leave_or_stay(message, now_ms)

    # Delivery (Q3, Q5 to Q7)

    def deliver(self, now_ms: int) -> None:
        if self.paused:
            return
        for bookmark in self.order:
            message = self.messages[bookmark]
            if message.state != "available" or self.late(message, now_ms):
                continue
            subscriber = self.choose()
            if subscriber is None:
                return
            once = self.settings.semantics is Semantics.AT_MOST_ONCE
            message.state = "sent" if once else "leased"
            message.holder = subscriber.id
            message.deliveries += 1
            message.until_ms = 0 if once else now_ms + self.settings.lease_ms
            self.deliveries.append(
                Sent(
                    subscriber.id, bookmark, message.deadline_ms, message.deliveries, message.cancels, message.until_ms
                )
            )

    def choose(self) -> Subscriber | None:
        open_ones = [s for s in self.subscribers.values() if self.space(s)]
        if not open_ones:
            return None
        if self.settings.fairness is Fairness.FAST:
            chosen = open_ones[0]
        elif self.settings.fairness is Fairness.PROPORTIONAL:
            chosen = min(open_ones, key=lambda s: Fraction(self.outstanding(s.id), s.max_backlog))
        else:
            later = [s for s in open_ones if s.number > self.turn]
            chosen = min(later or open_ones, key=lambda s: s.number)
        self.turn = chosen.number if self.settings.fairness is Fairness.ROUND_ROBIN else self.turn
        return chosen

    # Settlement (Q8, Q9, C13 to C18)

    def judge(
        self, verb: str, bookmark: Bookmark, subscription: str, token: int | None, now_ms: int, alone: bool
    ) -> str:
        topic, partition, offset = bookmark
        if offset >= self.next_offset.get((topic, partition), 0):
            return "unknown"
        message = self.messages.get(bookmark)
        if message is None:
            return "already_settled"
        strict = self.settings.leasing is Leasing.STRICT
        stale = token is not None and token != message.deliveries
        match message.state:
            case "scheduled":
                return "settled" if verb == "cancel" and alone else "scheduled"
            case "gone" | "never was":
                return "already_settled"
            case "expired":
                return "time_limit"
            case "sent":
                return "not_leased" if verb == "renew" else "settled"
            case "leased":
                if (strict or verb == "renew") and message.holder != subscription:
                    return "not_holder"
                if stale and (strict or verb != "acknowledge"):
                    return "stale"
                return "settled"
        if self.late(message, now_ms):
            return "time_limit"
        if strict or verb in ("cancel", "renew"):
            return "not_leased"
        return "stale" if verb == "expire" and stale else "settled"

    def settle(
        self,
        verb: str,
        subscription: str,
        named: list[tuple[Bookmark, int | None, bool]],
        now_ms: int,
        delay_ms: int = 0,
        lease_ms: int | None = None,
    ) -> list[tuple[Bookmark, str]]:
        answers = []
        for bookmark, token, alone in named:
            result = self.judge(verb, bookmark, subscription, token, now_ms, alone)
            answers.append((bookmark, result))
            if result != "settled":
                continue
            message = self.messages[bookmark]
            if message.state == "scheduled":
                self._gone(message, now_ms, "withdrawn")
                message.state = "never was"
            elif message.state == "sent" or verb == "acknowledge":
                message.state, message.holder = "gone", ""
            elif verb == "renew":
                asked_ms = self.settings.lease_ms if lease_ms is None else min(lease_ms, self.settings.max_lease_ms)
                message.until_ms = now_ms + asked_ms
            elif verb == "expire":
                late = ["time_limit"] if self.late(message, now_ms) else []
                self._gone(message, now_ms, "forced_expire", *late)
            else:
                message.cancels += 1
                self.give_back(message, now_ms, delay_ms)
        return answers

    def give_back(self, message: Message, now_ms: int, delay_ms: int = 0) -> None:
        message.holder = ""
        message.state = "delayed" if delay_ms else "available"
        message.until_ms = now_ms + delay_ms
        self._leave_or_stay(message, now_ms)

    def purge(self, now_ms: int, leased: bool) -> tuple[int, int]:
        kept = 0 if leased else len(self.in_state("leased"))
        out = self.in_state(*WAITING, *(["leased"] if leased else [])) + self.scheduled()
        for message in out:
            was = message.state
            self._gone(message, now_ms, "purged", *(["time_limit"] if self.late(message, now_ms) else []))
            if was == "scheduled":
                message.state = "never was"
        return len(out), kept

    # Leaving, for all reasons that hold

    def _limits(self, message: Message) -> list[str]:
        settings, holds = self.settings, []
        if settings.max_deliveries and message.deliveries >= settings.max_deliveries:
            holds.append("max_deliveries")
        if settings.max_cancels and message.cancels > settings.max_cancels:
            holds.append("max_cancels")
        return holds

    def _leave_or_stay(self, message: Message, now_ms: int) -> None:
        holds = self._limits(message) + (["time_limit"] if self.late(message, now_ms) else [])
        if holds:
            self._gone(message, now_ms, *holds)

    def _gone(self, message: Message, now_ms: int, *reasons: str) -> None:
        ordered = tuple(reason for reason in REASONS if reason in reasons)
        wanted = {str(reason) for reason in self.settings.dead_letter_reasons}
        letter = bool(self.settings.dead_letter_topic) and bool(wanted.intersection(ordered))
        self.removals.append(
            Gone(message.bookmark, ordered, letter, message.deadline_ms, now_ms, message.deliveries, message.cancels)
        )
        message.state, message.holder = ("expired" if "time_limit" in ordered else "gone"), ""
