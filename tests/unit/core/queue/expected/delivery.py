"""What is handed out next, to whom, and what rates, groups and barriers hold back (Q3, Q5 to Q7)."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

from lapse.core.queue.rates.rate import Rate
from lapse.core.queue.settings import Fairness, Semantics
from unit.core.queue.expected.message import FILTERS, WAITING, Bookmark, Message, MessageEvent, Sent, Subscriber
from unit.core.queue.expected.state import State


class Deliveries(State):
    """The choice of message and subscription."""

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
                self.events.append(MessageEvent("delivered_at_most_once", message.bookmark, subscriber.id))
            self.send(subscriber, message, message.until_ms)

    def unsent(self, deliveries: list[tuple[str, Bookmark, int]], now_ms: int) -> None:
        """Some deliveries were journaled and never sent, so they do not count (C55, Q9)."""
        for message in self.in_state("leased"):
            if (message.holder, message.bookmark, message.deliveries) in deliveries:
                message.deliveries -= 1
                message.last, message.holder = self.subscribers[message.holder].number, ""
                message.state = "available"
                self._leave_or_stay(message, now_ms)

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
        self.events.append(MessageEvent("barrier_released", barrier.bookmark))
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
