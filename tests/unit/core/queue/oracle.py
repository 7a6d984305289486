"""A naive queue shard, written from the contract: one dict entry per message, every rule a loop over all of them.

Slow and plain on purpose. Nothing of `lapse.core.queue` is used but its settings; positions are read as the core does.
"""

from __future__ import annotations

import copy
import hashlib
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

from lapse.core.generation import generation_of, offset_of, position_of
from lapse.core.queue.rates.rate import Rate
from lapse.core.queue.settings import Fairness, Leasing, QueueSettings, Semantics

Bookmark = tuple[str, int, int]
Ends = dict[tuple[str, int], int]
"""By topic and partition, the first offset that was written behind the instant of a sweep."""
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
        message_id: its `lapse-message-id`; empty = none.
        retry: what its `lapse-retry-delay-ms` says; None = not stated.
        transferred: (queue, transfer) that has put it there.
        counts: deliveries and cancels that its header states.
        body: what its value says.
    """

    offset: int
    timestamp: int
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    ttl_ms: int | None = None
    expires_at_ms: int | None = None
    enqueue_at_ms: int | None = None
    broken: bool = False
    redriven_for: str = ""
    transferred: tuple[str, str] | None = None
    counts: tuple[int, int] = (0, 0)
    message_id: bytes = b""
    retry: bytes | None = None
    key: bytes | None = None
    value: bytes | None = b""
    body: dict = field(default_factory=dict)


@dataclass
class Message:
    bookmark: Bookmark
    state: str
    deadline_ms: int | None
    at_ms: int = 0
    until_ms: int = 0
    since_ms: int = 0
    holder: str = ""
    last: int = -1
    deliveries: int = 0
    cancels: int = 0
    body: dict = field(default_factory=dict)
    rank: int | None = None
    barrier: bool = False
    group: object = None
    transfer: str = ""
    then_ms: int = 0
    retry: bytes | None = None
    came: bool = False
    """Whether it came by a transfer."""


NEVER = 2**63 - 1
LATER = ("scheduled", "beyond", "held", "unconfirmed")
"""Without a place; `beyond` waits for room (C51), `held` is on its way to elsewhere."""
Restricted = tuple[str, dict[Bookmark, dict]]
"""What a user may see at most, and what every record says that was ever written."""

FILTERS: dict[str, Callable[[dict], bool]] = {
    "": lambda body: True,
    "/f = 1": lambda body: body.get("f") == 1,
    "/f > 0": lambda body: (body.get("f") or 0) > 0,
    "/b = 'yes'": lambda body: body.get("b") == "yes",
}


def _is_in_reach(bookmark: Bookmark, ends: Ends | None) -> bool:
    """Whether a sweep takes a message; what was brought back came before it (C1)."""
    return generation_of(bookmark[2]) > 0 or bookmark[2] < (ends or {}).get(bookmark[:2], NEVER)


@dataclass
class Subscriber:
    id: str
    number: int
    max_backlog: int
    timeout_ms: int
    last_seen_ms: int
    asked: int = 0
    filter: str = ""
    payload: str = "inline"


@dataclass(frozen=True)
class Sent:
    subscription: str
    bookmark: Bookmark
    deadline_ms: int | None
    deliveries: int
    cancels: int
    until_ms: int
    barrier: bool = False
    payload: str = "inline"


@dataclass(frozen=True)
class Told:
    """An event about one message, and whose doing it was."""

    kind: str
    bookmark: Bookmark
    subscription: str = ""


@dataclass(frozen=True)
class Gone:
    bookmark: Bookmark
    reasons: tuple[str, ...]
    letter: bool
    deadline_ms: int | None
    at_ms: int
    deliveries: int = 0
    cancels: int = 0


def chance(bookmark: Bookmark, count: int) -> float:
    """A number from 0 to 1 that a message's name and its delivery count give, by splitmix64 (C68)."""
    topic, partition, offset = bookmark
    seed = hashlib.blake2b(f"{topic}:{partition}".encode(), digest_size=8).digest()
    mixed = int.from_bytes(seed, "little") + offset * 0x9E3779B97F4A7C15 + count * 0xBF58476D1CE4E5B9
    mixed %= 1 << 64
    for shift, times in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> shift)) * times % (1 << 64)
    return ((mixed ^ (mixed >> 31)) >> 11) / (1 << 53)


class Oracle:
    def __init__(self, settings: QueueSettings) -> None:
        self.settings = settings
        self.messages: dict[Bookmark, Message] = {}
        self.order: list[Bookmark] = []
        self.subscribers: dict[str, Subscriber] = {}
        self.next_offset: dict[tuple[str, int], int] = {}
        self.next_number = 0
        self.turn = -1
        self.served: list[int] = []
        self.handed_out: list[tuple[int, object]] = []
        self.group_turn = Fraction(0)
        self.group_tags: dict[object, Fraction] = {}
        self.began_ms = 0
        self.paused = False
        self.deliveries: list[Sent] = []
        self.removals: list[Gone] = []
        self.remembered: set[Bookmark] = set()
        self.events: list[Told] = []
        self.seen: dict[tuple[str, int, bytes], int] = {}
        self.released: list[tuple[Bookmark, list[str]]] = []
        self.pending: dict[Bookmark, Gone] = {}
        self.places: dict[Bookmark, int] = {}
        self.next_place = 0
        self.left_at: dict[Bookmark, int] = {}
        self.since: dict[str, int] = {}
        self.log_begin: dict[str, int] = {}
        self.transfers: dict[str, list[tuple[Bookmark, Bookmark]]] = {}
        self.elsewhere: set[Bookmark] = set()
        self.never: set[Bookmark] = set()
        self.spans: list[tuple[tuple[str, int], int, range, set[int]]] = []

    def __deepcopy__(self, memo: dict[int, object]) -> Oracle:
        """Copy itself in C: the world copies its oracle at each commit, and `copy` walks it in Python."""
        return pickle.loads(pickle.dumps(self, pickle.HIGHEST_PROTOCOL))

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
        return [m for m in self.messages.values() if m.state in LATER]

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

    def arrive(self, topic: str, partition: int, records: list[Published], now_ms: int = 0) -> None:
        """What is due comes before a record that is stamped then or later, however late it is read (C76)."""
        duration_ms = self.settings.expiration_of(topic).default_ms
        for record in records:
            if record.offset < self.next_offset.get((topic, partition), 0):
                continue
            if self.room():
                self.come_due(min(record.timestamp, now_ms))
            if not self.room():
                break
            self.next_offset[topic, partition] = record.offset + 1
            acknowledged = (topic, partition, record.offset) in self.remembered
            self.remembered = {
                one for one in self.remembered if one[:2] != (topic, partition) or one[2] > record.offset
            }
            if acknowledged:
                continue
            if record.redriven_for not in ("", self.settings.name):
                continue
            if record.transferred is not None and record.transferred[0] != self.settings.name:
                continue
            bookmark = (topic, partition, record.offset)
            if record.transferred is None and self.repeats(topic, partition, record):
                self.events.append(Told("repeated", bookmark))
                continue
            try:
                if record.broken:
                    raise ValueError
                deadline_ms = self.deadline(record, duration_ms)
            except ValueError:
                self._gone(Message(bookmark, "", None), max(record.timestamp, now_ms), "invalid_lifetime")
                continue
            message = Message(bookmark, "available", deadline_ms, body=record.body, retry=record.retry)
            self.read_traits(message)
            if self.late(message, record.timestamp):
                self._gone(message, max(record.timestamp, now_ms), "time_limit")
                continue
            if record.message_id and self.settings.dedup_window_ms and record.transferred is None:
                self.seen[topic, partition, record.message_id] = record.timestamp
            if record.transferred is not None:
                message.state, message.transfer, message.came = "unconfirmed", record.transferred[1], True
                message.deliveries, message.cancels = record.counts
                message.at_ms, message.then_ms = NEVER, record.enqueue_at_ms or 0
                self.messages[bookmark] = message
            elif record.enqueue_at_ms is not None and record.enqueue_at_ms > record.timestamp:
                message.state, message.at_ms = "scheduled", record.enqueue_at_ms
                self.messages[bookmark] = message
                self.events.append(Told("scheduled", bookmark))
            else:
                self.messages[bookmark] = message
                self.take_place(bookmark)

    def repeats(self, topic: str, partition: int, record: Published) -> bool:
        """Whether the record's id entered within the window before it (X6, C43)."""
        seen_ms = self.seen.get((topic, partition, record.message_id))
        return (
            bool(record.message_id)
            and seen_ms is not None
            and (record.timestamp - seen_ms < self.settings.dedup_window_ms)
        )

    # Bringing back what has left (Q22, C61 to C63)

    def rewind(
        self,
        firsts: dict[str, int],
        log: dict[tuple[str, int], list[Published]],
        now_ms: int,
        *,
        kept: bool = False,
        handed_over: bool = False,
        text: str = "",
        dry_run: bool = False,
    ) -> int:
        """Bring back what has left, in the order of the log; how many messages that are."""
        waiting: dict[tuple[str, int], list[Published]] = {}
        generations: dict[tuple[str, int], int] = {}
        live_in: dict[tuple[str, int], set[int]] = {}
        wanted: dict[tuple[str, int], set[int]] = {}
        for source, next_offset in self.next_offset.items():
            first = firsts.get(source[0], next_offset)
            if first >= next_offset:
                continue
            generations[source] = self.generation(source) + 1
            live_in[source] = {offset_of(b[2]) for b in self.there() if b[:2] == source}
            # Each record has its turn, also one that stays out: a producer's clock may go back.
            waiting[source] = [one for one in log.get(source, []) if first <= one.offset < next_offset]
            came = {one.offset for one in self.as_they_came(source, log.get(source, []), next_offset)}
            wanted[source] = came - live_in[source]
        count, brought = 0, set()
        while any(waiting.values()):
            source = min((s for s in waiting if waiting[s]), key=lambda s: (waiting[s][0].timestamp, s))
            record = waiting[source].pop(0)
            name = (*source, record.offset)
            if record.offset not in wanted[source]:
                continue
            if name in self.never or (name in self.elsewhere and not handed_over) or not FILTERS[text](record.body):
                continue
            stamped = record if kept else replace(record, timestamp=now_ms)
            try:
                deadline_ms = self.deadline(stamped, self.settings.expiration_of(source[0]).default_ms)
            except ValueError:
                continue
            bookmark = (*source, position_of(record.offset, generations[source]))
            message = Message(bookmark, "available", deadline_ms, body=record.body, retry=record.retry)
            if self.late(message, now_ms):
                continue
            count += 1
            if dry_run:
                continue
            self.read_traits(message)
            brought.add(source)
            self.events.append(Told("rewound", bookmark))
            self.messages[bookmark] = message
            if record.enqueue_at_ms is not None and record.enqueue_at_ms > now_ms:
                message.state, message.at_ms = "scheduled", record.enqueue_at_ms
            elif self.room() and not any(m.state == "beyond" for m in self.messages.values()):
                self.enter(message, now_ms)
            else:
                message.state, message.at_ms = "beyond", now_ms
        for source in sorted(brought):  # a rewind that brings nothing back leaves nothing behind
            coming = range(firsts[source[0]], self.next_offset[source])
            self.spans.append((source, generations[source], coming, live_in[source]))
        return count

    def generation(self, source: tuple[str, int]) -> int:
        return max((generation for of, generation, _, _ in self.spans if of == source), default=0)

    def there(self) -> list[Bookmark]:
        """Messages that a rewind leaves alone, whatever their generation (C62)."""
        placed = self.in_state("leased", "sent", "transferring", *WAITING)
        return [*(m.bookmark for m in (*placed, *self.scheduled())), *self.pending]

    def as_they_came(self, source: tuple[str, int], records: list[Published], behind: int) -> list[Published]:
        """Records that became messages of this queue when they were read, or would have."""
        seen, found = self.seen, []
        self.seen = {}
        for record in records:
            mine = record.redriven_for in ("", self.settings.name)
            mine &= record.transferred is None or record.transferred[0] == self.settings.name
            if record.offset >= behind or not mine:
                continue
            if record.transferred is None and self.repeats(*source, record):
                continue
            try:
                if record.broken:
                    raise ValueError
                deadline_ms = self.deadline(record, self.settings.expiration_of(source[0]).default_ms)
            except ValueError:
                continue
            if self.late(Message((*source, record.offset), "", deadline_ms), record.timestamp):
                continue
            if record.message_id and self.settings.dedup_window_ms and record.transferred is None:
                self.seen[(*source, record.message_id)] = record.timestamp
            found.append(record)
        self.seen = seen
        return found

    def is_unheard_of(self, bookmark: Bookmark) -> bool:
        """Whether nothing of this name was read, or brought back."""
        position, source = bookmark[2], bookmark[:2]
        return offset_of(position) >= self.next_offset.get(source, 0) or generation_of(position) > self.generation(
            source
        )

    def left_behind(self, bookmark: Bookmark) -> bool:
        """Whether a later rewind went over a message, and did not find it live (C61)."""
        topic, partition, position = bookmark
        return any(
            of == (topic, partition)
            and generation > generation_of(position)
            and offset_of(position) in coming
            and offset_of(position) not in live
            for of, generation, coming, live in self.spans
        )

    def read_traits(self, message: Message) -> None:
        """Priority, barrier and group, as far as the queue asks for them now (Q11, Q12, Q20, C31, C32)."""
        traits, body = self.settings.traits, message.body
        value = body.get("p")
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**70
        message.rank = int(value) if traits.priority and number and 0 <= int(value) < 2**64 else None
        message.barrier = bool(traits.barrier) and body.get("b") == "yes"
        group = body.get("g")
        group = int(group) if isinstance(group, float) and group.is_integer() else group
        message.group = repr(group) if traits.group and isinstance(group, str | int | float) else None

    def room(self) -> int:
        if self.settings.target_depth is None:
            return 1 << 62
        return max(0, self.settings.target_depth - len(self.in_state("leased", "transferring", *WAITING)))

    # Subscriptions

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
                self.events.append(Told("lease_returned", message.bookmark, message.holder))
                wait_ms = 0 if lost_at_ms is None else self.back_off("lost", message)
                self.give_back(message, now_ms, wait_ms, lost_at_ms)
        for message in self.in_state("sent"):
            if message.holder == subscription:
                message.state, message.holder = "gone", ""
        del self.subscribers[subscription]
        return True

    # What time brings, in the order of C2

    def advance(self, now_ms: int) -> None:
        for message in self.in_state("transferring", *WAITING):
            if self.late(message, now_ms):
                self._gone(message, now_ms, "time_limit")
        for message in self.in_state("leased", "delayed"):
            if message.until_ms <= now_ms:
                if message.state == "leased":
                    self.events.append(Told("lease_returned", message.bookmark, message.holder))
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
            if message.state == "beyond" and not (due and room):
                continue
            if self.late(message, now_ms) and (room or message.deadline_ms <= message.at_ms):
                self._gone(message, now_ms, "time_limit")
                message.state = "never was"
            elif due and room:
                room -= 1
                self.enter(message, now_ms)
            elif due:
                self.events.append(Told("held", message.bookmark))
                message.state = "beyond"

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
        due += [m.at_ms for m in self.scheduled() if m.at_ms < NEVER and (m.state != "beyond" or self.room())]
        if on:
            due += [
                m.deadline_ms
                for m in self.messages.values()
                if m.state in (*WAITING, "transferring", *LATER) and m.state != "beyond" and m.deadline_ms is not None
            ]
        return min(due, default=None)

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

    # Delivery (Q3, Q5 to Q7)

    def deliver(self, now_ms: int) -> None:
        if self.paused:
            return
        while self.release_barrier(now_ms):
            pass
        settings = self.settings
        once = settings.semantics is Semantics.AT_MOST_ONCE
        waiting = self.before_the_barrier()
        if settings.traits.priority:
            places = {bookmark: place for place, bookmark in enumerate(self.order)}
            waiting.sort(key=lambda m: (*self.urgency(m), places[m.bookmark]))
        waiting = [m for m in waiting if m.state == "available" and not self.late(m, now_ms)]
        for message in self.in_turn(waiting, now_ms):
            subscriber = self.choose(message)
            if subscriber is None:
                continue
            if self.rates():
                whose = self.rated(message) if self.group_rate() else None
                self.handed_out.append((self.counts_at(now_ms), whose))
            message.state = "sent" if once else "leased"
            message.holder = subscriber.id
            message.deliveries += 1
            message.until_ms = 0 if once else now_ms + settings.lease_ms
            message.since_ms = now_ms
            if once:
                self.events.append(Told("delivered_at_most_once", message.bookmark, subscriber.id))
            self.send(subscriber, message, message.until_ms)

    def counts_at(self, now_ms: int) -> int:
        """As of when a delivery counts: while the clock is behind an earlier one, as of that."""
        return max([now_ms, *(at_ms for at_ms, _ in self.handed_out)])

    def group_rate(self) -> Rate | None:
        return self.settings.group_rate if self.settings.traits.group else None

    def rates(self) -> list[Rate]:
        return [rate for rate in (self.settings.rate, self.group_rate()) if rate is not None]

    def rated(self, message: Message) -> object:
        """What a message's delivery counts for: its group, or itself alone (C70)."""
        return message.bookmark if message.group is None else message.group

    def lets_go(self, rate: Rate, now_ms: int, of: object = None) -> bool:
        """Whether one more delivery keeps a rate in every half-open window (C71)."""
        begin_ms = self.counts_at(now_ms) - rate.per_ms
        return sum(at_ms > begin_ms and of in (None, whose) for at_ms, whose in self.handed_out) < rate.count

    def frees_ms(self, now_ms: int) -> int | None:
        """When something that waits for a rate, and that somebody takes, may go."""
        instants = {at_ms + rate.per_ms for at_ms, _ in self.handed_out for rate in self.rates()}
        for instant_ms in sorted(one for one in instants if one > now_ms):
            later = copy.deepcopy(self)
            later.deliver(instant_ms)
            if later.deliveries:
                return instant_ms
        return None

    def in_turn(self, waiting: list[Message], now_ms: int) -> Iterator[Message]:
        """What can be handed out, in the order in which it is; each is handed out before the next is asked for."""
        rate = self.settings.rate
        if not self.settings.traits.group:
            yield from (m for m in waiting if rate is None or self.lets_go(rate, now_ms))
            return
        at = {message.bookmark: place for place, message in enumerate(waiting)}
        while candidates := self.of_groups([m for m in waiting if m.state == "available"], now_ms):
            if rate is not None and not self.lets_go(rate, now_ms):
                return
            first = min(candidates, key=lambda m: (*self.urgency(m), self.tag(m.group), at[m.bookmark]))
            self.group_turn = self.tag(first.group)
            self.group_tags[first.group] = self.group_turn + Fraction(1, self.weight(first.group))
            yield first

    def of_groups(self, waiting: list[Message], now_ms: int) -> list[Message]:
        """Which of some messages in order their groups let go, and somebody takes (Q20, Q25)."""
        limit = self.settings.group_limit
        busy = Counter(m.group for m in self.in_state("leased", "sent"))
        if limit == 1:
            busy = Counter(m.group for m in self.in_state("leased", "delayed", "sent", "transferring"))
        found = []
        for message in waiting:
            if message.group is not None and busy[message.group] >= limit:
                continue
            if message.group is not None and limit == 1:
                busy[message.group] += 1  # the first of a group holds the others back, though nobody takes it
            rate = self.group_rate()
            if rate is not None and not self.lets_go(rate, now_ms, self.rated(message)):
                continue
            if any(self.space(s) and FILTERS[s.filter](message.body) for s in self.subscribers.values()):
                found.append(message)
        return found

    def urgency(self, message: Message) -> tuple[bool, int]:
        if not self.settings.traits.priority:
            return True, 0
        return message.rank is None, -(message.rank or 0)

    def tag(self, group: object) -> Fraction:
        """Where a group would start if it were served now: nobody has credit for absence (C71)."""
        return max(self.group_turn, self.group_tags.get(group, Fraction(0)))

    def weight(self, group: object) -> int:
        return next((n for text, n in self.settings.group_weights.items() if group in (repr(text), text)), 1)

    def send(self, subscriber: Subscriber, message: Message, until_ms: int, barrier: bool = False) -> None:
        counts = (message.deliveries, message.cancels)
        payload = "inline" if barrier else subscriber.payload
        self.deliveries.append(
            Sent(subscriber.id, message.bookmark, message.deadline_ms, *counts, until_ms, barrier, payload)
        )

    def before_the_barrier(self) -> list[Message]:
        """Messages that are there, in order, up to the first barrier."""
        there = self.in_state("leased", "sent", "transferring", *WAITING)
        if self.settings.traits.barrier:
            barriers = [at for at, message in enumerate(there) if message.barrier]
            del there[min(barriers, default=len(there)) :]
        return there

    def release_barrier(self, now_ms: int) -> bool:
        """Send the barrier before which nothing is left to everyone whom it concerns (Q12, C34)."""
        there = self.in_state("leased", "sent", "transferring", *WAITING)
        if not self.settings.traits.barrier or not there or not there[0].barrier or not self.subscribers:
            return False
        barrier = there[0]
        if barrier.state != "available" or self.late(barrier, now_ms):
            return False
        if any(self.left_at[bookmark] <= self.places[barrier.bookmark] for bookmark in self.pending):
            return False  # a letter of one before it is not safe yet (C48)
        receivers = [one for one in self.subscribers.values() if FILTERS[one.filter](barrier.body)]
        for subscriber in receivers:
            self.send(subscriber, barrier, 0, barrier=True)
        self.events.append(Told("barrier_released", barrier.bookmark))
        self.released.append((barrier.bookmark, [one.id for one in receivers]))
        barrier.state = "gone"
        return True

    def choose(self, message: Message) -> Subscriber | None:
        open_ones = [s for s in self.subscribers.values() if self.space(s) and FILTERS[s.filter](message.body)]
        if not open_ones:
            return None
        # Whoever had it last gets it again only if nobody else takes it (C49).
        open_ones = [s for s in open_ones if s.number != message.last] or open_ones
        if self.settings.fairness is Fairness.FAST:
            chosen = open_ones[0]
        elif self.settings.fairness is Fairness.PROPORTIONAL:
            least = min(Fraction(self.outstanding(s.id), s.max_backlog) for s in open_ones)
            equal = [s for s in open_ones if Fraction(self.outstanding(s.id), s.max_backlog) == least]
            chosen = min(equal, key=lambda s: self.served.index(s.number) if s.number in self.served else -1)
        else:
            later = [s for s in open_ones if s.number > self.turn]
            chosen = min(later or open_ones, key=lambda s: s.number)
        self.turn = chosen.number if self.settings.fairness is Fairness.ROUND_ROBIN else self.turn
        self.served = [number for number in self.served if number != chosen.number] + [chosen.number]
        return chosen

    # Settlement (Q8, Q9, C13 to C18)

    def judge(
        self,
        action: str,
        bookmark: Bookmark,
        subscription: str,
        token: int | None,
        now_ms: int,
        alone: bool,
        log_ends: dict[tuple[str, int], int],
    ) -> str:
        topic, partition, offset = bookmark
        if self.is_unheard_of(bookmark):
            inactive = self.settings.target_depth is not None and offset < log_ends.get((topic, partition), 0)
            if action != "acknowledge" or not inactive:
                return "unknown"
            return "already_settled" if bookmark in self.remembered else "settled"
        message = self.messages.get(bookmark)
        if message is None or message.state in ("gone", "never was"):
            return "already_settled"
        strict = self.settings.leasing is Leasing.STRICT
        never = token is not None and token > message.deliveries
        stale = token is not None and token != message.deliveries
        match message.state:
            case "scheduled" | "beyond":
                return self.judge_unseen(action, message, now_ms, alone)
            case "held" | "unconfirmed" | "transferring":
                return self.judge_under_way(message, now_ms)
            case "expired":
                return "time_limit"
            case "sent":
                if action == "renew":
                    return "not_leased"
                return "not_holder" if strict and message.holder != subscription else "settled"
            case "leased":
                if (strict or action == "renew") and message.holder != subscription:
                    return "not_holder"
                if never or (stale and (strict or action != "acknowledge")):
                    return "stale"
                return "settled"
        if self.late(message, now_ms):
            return "time_limit"
        if strict or action in ("cancel", "renew"):
            return "not_leased"
        return "stale" if never or (action == "expire" and stale) else "settled"

    def spared(self, bookmark: Bookmark, alone: bool, result: str) -> str:
        """Only its own bookmark takes a barrier that waits (C86)."""
        message = self.messages.get(bookmark)
        waits = message is not None and message.barrier and self.settings.traits.barrier and message.state in WAITING
        return "not_leased" if waits and not alone and result == "settled" else result

    def hides(self, bookmark: Bookmark, subscription: str, with_row_filter: Restricted) -> bool:
        """Whether a message is not there for a user who may not see it, and does not hold it (X4)."""
        message = self.messages.get(bookmark)
        if message is not None and message.state in ("leased", "sent") and message.holder == subscription:
            return False
        row_filter, bodies = with_row_filter
        bookmark = (*bookmark[:2], offset_of(bookmark[2]))
        return bookmark not in bodies or not FILTERS[row_filter](bodies[bookmark])

    def judge_unseen(self, action: str, message: Message, now_ms: int, alone: bool) -> str:
        """What a settlement is told of a message before its instant, or one that is held."""
        if action == "acknowledge" and message.state == "beyond":
            return "settled"
        if action == "cancel" and alone:
            return "time_limit" if self.late(message, now_ms) else "settled"
        return "scheduled"

    def judge_under_way(self, message: Message, now_ms: int) -> str:
        """What a settlement is told of a message that is being transferred."""
        if message.state == "unconfirmed":
            return "scheduled"
        late = message.state == "transferring" and self.late(message, now_ms)
        return "time_limit" if late else "transferring"

    def settle(
        self,
        action: str,
        subscription: str,
        named: list[tuple[Bookmark, int | None, int | None, bool]],
        now_ms: int,
        delay_ms: int | None = None,
        lease_ms: int | None = None,
        log_ends: dict[tuple[str, int], int] | None = None,
        with_row_filter: Restricted | None = None,
    ) -> list[tuple[Bookmark, str]]:
        answers = []
        log_ends = {} if with_row_filter or log_ends is None else log_ends  # what is not read yet cannot be judged
        for bookmark, token, epoch, alone in named:
            of_another = epoch is not None and epoch < self.since.get(bookmark[0], 0)
            if of_another or (bookmark, "stale") in answers:
                answers.append((bookmark, "stale"))
                continue
            if with_row_filter and self.hides(bookmark, subscription, with_row_filter):
                result = "unknown"
            else:
                result = self.judge(action, bookmark, subscription, token, now_ms, alone, log_ends)
                result = self.spared(bookmark, alone, result)
                if result in ("already_settled", "time_limit") and self.left_behind(bookmark):
                    answers.append((bookmark, "stale"))
                    continue
            answers.append((bookmark, result))
            if result != "settled":
                continue
            if bookmark not in self.messages:
                self.remembered.add(bookmark)
                self.events.append(Told("acknowledged", bookmark, subscription))
                continue
            message = self.messages[bookmark]
            if message.state in ("scheduled", "beyond"):
                if action == "acknowledge":
                    self.events.append(Told("acknowledged", bookmark, subscription))
                else:
                    self._gone(message, now_ms, "withdrawn")
                message.state = "never was"
            elif message.state == "sent" or action == "acknowledge":
                if message.state != "sent":
                    self.events.append(Told("acknowledged", bookmark, subscription))
                message.state, message.holder = "gone", ""
            elif action == "renew":
                self.events.append(Told("renewed", bookmark, subscription))
                asked_ms = self.settings.lease_ms if lease_ms is None else min(lease_ms, self.settings.max_lease_ms)
                message.until_ms = now_ms + asked_ms
            elif action == "expire":
                late = ["time_limit"] if self.late(message, now_ms) else []
                self._gone(message, now_ms, "forced_expire", *late)
            else:
                message.cancels += 1
                self.events.append(Told("cancelled", bookmark, subscription))
                self.give_back(message, now_ms, self.back_off("cancel", message) if delay_ms is None else delay_ms)
        return answers

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

    def shown(self, text: str) -> list[tuple]:
        """What a peek shows, row by row (Q15)."""
        later = sorted(self.scheduled(), key=lambda m: (m.at_ms, m.bookmark))
        later = [m for m in later if FILTERS[text](m.body)]
        rows = []
        for m in [*(self.messages[b] for b in self.selected(text)), *later]:
            state, until_ms = m.state, m.at_ms if m.state in ("scheduled", "beyond") else m.until_ms
            if state == "available":
                until_ms = None
            elif m.transfer:
                state = {"held": "transferring"}.get(m.state, m.state)
                until_ms = (m.until_ms if m.state == "transferring" else m.then_ms) or None
            state = {"beyond": "held"}.get(state, state)
            since_ms = m.since_ms if state == "leased" else None
            holder = m.holder or m.transfer
            rows.append((m.bookmark, state, m.deadline_ms, m.deliveries, m.cancels, holder, until_ms, since_ms))
        sources = list(self.next_offset)
        last = sorted(self.pending.values(), key=lambda g: (g.at_ms, sources.index(g.bookmark[:2]), g.bookmark))
        dying = [
            (gone.bookmark, "dying", gone.deadline_ms, gone.deliveries, gone.cancels, "", None, None) for gone in last
        ]
        return rows if text else rows + dying

    def depth(self) -> dict[str, int]:
        """How many messages are in each state (Q15, C12)."""
        counts = {state: len(self.in_state(state)) for state in ("available", "leased", "delayed", "transferring")}
        later = [m.state for m in self.scheduled()]
        return {
            **counts,
            "transferring": counts["transferring"] + later.count("held"),
            "scheduled": later.count("scheduled"),
            "held": later.count("beyond"),
            "unconfirmed": later.count("unconfirmed"),
            "dying": len(self.pending),
            "depth": sum(counts.values()),
        }

    def selected(self, text: str, ends: Ends | None = None, sent_to: str | None = None) -> list[Bookmark]:
        """What a filter covers, and what was sent to a subscription, or to any (`""`), when it settles (C18)."""
        found = self.in_state("leased", "transferring", *WAITING, *(() if sent_to is None else ("sent",)))
        found = [m for m in found if m.state != "sent" or sent_to in ("", m.holder)]
        return [m.bookmark for m in found if FILTERS[text](m.body) and _is_in_reach(m.bookmark, ends)]

    def truncated(self, bookmarks: list[Bookmark], now_ms: int, handed_out: bool = False) -> None:
        """Kafka no longer has some records (C40); a lease protects them, and what was sent has left (C79, C80)."""
        held = ("leased", "sent") if handed_out else ()
        for message in self.in_state("transferring", *WAITING, *held):
            if message.bookmark in bookmarks:
                message.deliveries -= message.state in held  # nobody saw it
                self._gone(message, now_ms, "log_truncated", *(["time_limit"] if self.late(message, now_ms) else []))

    def log_begins(self, topic: str, begin_offset: int, now_ms: int) -> None:
        """Kafka has removed the records of a topic below an offset (C40)."""
        if (topic, 0) in self.next_offset:  # of what was never read nothing is noted; it does not come
            self.log_begin[topic] = max(begin_offset, self.log_begin.get(topic, 0))
        self._cut(topic, begin_offset, now_ms, self.in_state("transferring", *WAITING))

    def _cut(self, topic: str, begin_offset: int, now_ms: int, there: list[Message]) -> None:
        for message in [*there, *self.scheduled()]:
            if message.bookmark[0] == topic and offset_of(message.bookmark[2]) < begin_offset:
                was = message.state
                self._gone(message, now_ms, "log_truncated", *(["time_limit"] if self.late(message, now_ms) else []))
                if was in LATER:
                    message.state = "never was"
        self.remembered = {one for one in self.remembered if one[0] != topic or one[2] >= begin_offset}

    def replaced(self, topic: str, epoch: int, now_ms: int) -> None:
        """A topic was deleted and created again (C42)."""
        self._cut(topic, 1 << 62, now_ms, self.in_state("leased", "transferring", *WAITING))
        self.log_begin.pop(topic, None)
        self.order = [bookmark for bookmark in self.order if bookmark[0] != topic]
        self.messages = {bookmark: message for bookmark, message in self.messages.items() if bookmark[0] != topic}
        self.seen = {name: at_ms for name, at_ms in self.seen.items() if name[0] != topic}
        self.spans = [span for span in self.spans if span[0][0] != topic]
        self.elsewhere = {one for one in self.elsewhere if one[0] != topic}
        self.never = {one for one in self.never if one[0] != topic}
        if (topic, 0) in self.next_offset:
            self.next_offset[topic, 0] = 0
            self.since[topic] = epoch

    def purge(self, now_ms: int, leased: bool, text: str = "", ends: Ends | None = None) -> tuple[int, int]:
        def reaches(bookmark: Bookmark) -> bool:
            return _is_in_reach(bookmark, ends)

        stays = ("transferring",) if leased else ("transferring", "leased")
        kept = len([m for m in self.in_state(*stays) if FILTERS[text](m.body) and reaches(m.bookmark)])
        kept += len([m for m in self.scheduled() if m.transfer and FILTERS[text](m.body) and reaches(m.bookmark)])
        out = [m for m in self.in_state(*WAITING, *(["leased"] if leased else [])) if FILTERS[text](m.body)]
        out += [m for m in self.scheduled() if not m.transfer and FILTERS[text](m.body)]
        out = [m for m in out if reaches(m.bookmark)]
        for message in out:
            was = message.state
            self._gone(message, now_ms, "purged", *(["time_limit"] if self.late(message, now_ms) else []))
            if was in LATER:
                message.state = "never was"
        return len(out), kept

    # Letters that the broker refuses (C27)

    def take_place(self, bookmark: Bookmark) -> None:
        self.order.append(bookmark)
        self.places[bookmark] = self.next_place
        self.next_place += 1

    def keep_pending(self, gone: Gone) -> None:
        self.pending[gone.bookmark] = gone

    def letter_written(self, bookmark: Bookmark) -> None:
        if bookmark in self.pending:
            self.removals.append(self.pending.pop(bookmark))

    # Handing over to, and taking over from, another deployment (Q17)

    def mine(self, transfer: str, *states: str) -> list[Message]:
        """What a transfer holds, or has put here."""
        return [m for m in self.messages.values() if m.transfer == transfer and m.state in states]

    def judge_hold(self, transfer: str, bookmark: Bookmark, now_ms: int) -> str:
        if self.is_unheard_of(bookmark):
            return "unknown"
        message = self.messages.get(bookmark)
        if message is None or message.state in ("gone", "never was", "sent"):
            return "already_settled"
        if message.state in ("transferring", "held") and message.transfer != transfer:
            return "time_limit" if message.state == "transferring" and self.late(message, now_ms) else "transferring"
        if message.state in ("leased", "unconfirmed"):
            return "leased" if message.state == "leased" else "scheduled"
        return "time_limit" if message.state == "expired" or self.late(message, now_ms) else "settled"

    def hold(
        self, transfer: str, claims: list[list[Bookmark]], most: int, now_ms: int
    ) -> tuple[dict[Bookmark, str], bool]:
        """Hold messages: of each claim those with places first; what each bookmark would be answered without limit."""
        answers = {b: self.judge_hold(transfer, b, now_ms) for claim in claims for b in claim}
        room = most - len(self.mine(transfer, "transferring", "held"))
        for claim in claims:
            for later in (False, True):
                for bookmark in claim:
                    message = self.messages.get(bookmark)
                    if message is None or answers[bookmark] != "settled":
                        continue
                    if message.state in ("transferring", "held") or (message.state in LATER) is not later:
                        continue
                    if room <= 0:
                        return answers, True
                    room -= 1
                    self.events.append(Told("transferring", bookmark))
                    self.transfers.setdefault(transfer, [])
                    message.transfer = transfer
                    if later:
                        message.state, message.then_ms, message.at_ms = "held", message.at_ms, NEVER
                    else:
                        message.until_ms = message.until_ms if message.state == "delayed" else 0
                        message.state, message.last = "transferring", -1
        return answers, False

    def confirm(self, transfer: str, pairs: list[tuple[Bookmark, Bookmark]], now_ms: int) -> list[tuple[Bookmark, str]]:
        answers = []
        for bookmark, there in pairs:
            result = self.judge_hold(transfer, bookmark, now_ms)
            message = self.messages.get(bookmark)
            if result == "settled":
                if message.state not in ("transferring", "held"):
                    result = "scheduled" if message.state in ("scheduled", "beyond") else "not_leased"
                else:
                    self.events.append(Told("transferred", bookmark))
                    self.transfers[transfer].append((bookmark, there))
                    self.elsewhere.add((*bookmark[:2], offset_of(bookmark[2])))
                    message.state = "gone" if message.state == "transferring" else "never was"
                    message.transfer = ""
            elif message is not None and message.state in ("scheduled", "beyond"):
                result = "scheduled"
            answers.append((bookmark, result))
        return answers

    def finish(self, transfer: str) -> None:
        if transfer in self.transfers:
            self.transfers[transfer] = []
            if not self.mine(transfer, "transferring", "held"):
                del self.transfers[transfer]

    def hand_back(self, transfer: str, now_ms: int) -> int:
        placed = self.mine(transfer, "transferring")
        self.events += [Told("transfer_cancelled", m.bookmark) for m in self.mine(transfer, "transferring", "held")]
        for message in placed:
            message.transfer = ""
            message.state = "delayed" if message.until_ms > now_ms else "available"
            self._leave_or_stay(message, now_ms)
        later = sorted(self.mine(transfer, "held"), key=lambda m: (m.then_ms, m.bookmark))
        for message in later:
            self.let_go(message, now_ms)
        self.finish(transfer)
        return len(placed) + len(later)

    def let_go(self, message: Message, now_ms: int) -> None:
        message.transfer = ""
        if self.late(message, now_ms):
            self._gone(message, now_ms, "time_limit")
            message.state = "never was"
        elif message.then_ms <= now_ms:
            if self.room() and not any(m.state == "beyond" for m in self.messages.values()):
                self.enter(message, now_ms)
            else:
                self.events.append(Told("held", message.bookmark))
                message.at_ms = message.then_ms if message.state == "held" else now_ms
                message.state = "beyond"
        else:
            message.state, message.at_ms = "scheduled", message.then_ms

    def accept(self, transfer: str, bookmarks: list[Bookmark], now_ms: int) -> list[tuple[Bookmark, str]]:
        answers = []
        for bookmark in bookmarks:
            message = self.messages.get(bookmark)
            if bookmark[2] >= self.next_offset.get(bookmark[:2], 0):
                result = "unknown"
            elif message is None or message.state not in ("unconfirmed", "held"):
                result = "already_settled"
            elif message.state == "held" or message.transfer != transfer:
                result = "unknown"
            elif self.late(message, now_ms):
                result = "time_limit"
            else:
                result = "settled"
                self.events.append(Told("transfer_confirmed", bookmark))
                self.let_go(message, now_ms)
            answers.append((bookmark, result))
        return answers

    def spare(self, least_life_ms: int, now_ms: int, came: bool, text: str = "") -> list[Bookmark]:
        """What nobody takes here now, in the order of delivery (Q26, C73, C74)."""
        asking = [one for one in self.subscribers.values() if came or self.space(one)]
        there = [] if self.paused else self.before_the_barrier()
        there.sort(key=self.urgency)
        return [
            message.bookmark
            for message in there
            if message.state == "available"
            and message.came is came
            and FILTERS[text](message.body)
            and not self.late(message, now_ms + least_life_ms)
            and not any(FILTERS[one.filter](message.body) for one in asking)
        ]

    def wanted(self) -> int:
        """How many messages more the subscriptions would take that take anything (Q26)."""
        space = sum(0 if self.paused or one.filter else self.space(one) for one in self.subscribers.values())
        waiting = [one for one in self.messages.values() if one.state in ("available", "unconfirmed", "beyond")]
        return space - len(waiting)

    def demands(self, not_matched: Callable[[str, Bookmark], bool]) -> dict[str, int]:
        """The same by filter; which waiting messages a filter is known not to match, tells the caller."""
        demands = {one.filter: 0 for one in self.subscribers.values() if one.filter and not self.paused}
        for text in demands:
            space = sum(self.space(one) for one in self.subscribers.values() if one.filter == text)
            waiting = [
                one
                for one in self.messages.values()
                if one.state in ("unconfirmed", "beyond")
                or (one.state == "available" and not not_matched(text, one.bookmark))
            ]
            demands[text] = space - len(waiting)
        return demands

    def matches(self, text: str, bookmark: Bookmark) -> bool:
        return FILTERS[text](self.messages[bookmark].body)

    def discard(self, transfer: str, now_ms: int) -> int:
        thrown = self.mine(transfer, "unconfirmed")
        for message in thrown:
            self._gone(message, now_ms, "withdrawn", *(["time_limit"] if self.late(message, now_ms) else []))
            message.state, message.transfer = "never was", ""
        return len(thrown)

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
        holds += (
            ["log_truncated"] if offset_of(message.bookmark[2]) < self.log_begin.get(message.bookmark[0], 0) else []
        )
        if holds:
            self._gone(message, now_ms, *holds)

    def _gone(self, message: Message, now_ms: int, *reasons: str) -> None:
        ordered = tuple(reason for reason in REASONS if reason in reasons)
        wanted = {str(reason) for reason in self.settings.dead_letter_reasons}
        letter = bool(self.settings.dead_letter_topic) and bool(wanted.intersection(ordered))
        self.left_at[message.bookmark] = self.places.get(message.bookmark, self.next_place)
        self.removals.append(
            Gone(
                message.bookmark,
                ordered,
                letter,
                message.deadline_ms,
                max(now_ms, self.began_ms),
                message.deliveries,
                message.cancels,
            )
        )
        if message.state == "unconfirmed":
            self.never.add(message.bookmark)
        message.state, message.holder = ("expired" if "time_limit" in ordered else "gone"), ""
