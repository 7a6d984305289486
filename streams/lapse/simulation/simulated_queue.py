"""A queue in virtual time: real shards (`lapse.core`), with simulated consumers and arrivals."""

from __future__ import annotations

import dataclasses
import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from lapse.config import QueueConfig
from lapse.core.lifetime import ENQUEUE_AT_MS, NEVER
from lapse.core.queue.modes import Semantics
from lapse.core.queue.settlement.settlement import Claim, Result, SettleAction
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Delivery, Messages, Step
from lapse.core.queue.subscriptions.subscription import Subscription
from lapse.core.record import Record
from lapse.core.shard.event import EventKind
from lapse.simulation.arrival import Arrivals
from lapse.simulation.crew import Consumer, Crew, Handed, Work
from lapse.simulation.outcome import Outcome

_NEVER_SILENT_MS: Final = NEVER
"""Consumers of a simulation are never lost, so they need no heartbeats."""

_ROUNDS: Final = 30
_FEW: Final = 1_000
"""The simulation counts as endless beyond `_FEW` deliveries, plus `_ROUNDS` for each message."""

_CANCEL, _ACKNOWLEDGE, _SETTLED = SettleAction.CANCEL, SettleAction.ACKNOWLEDGE, Result.SETTLED
_LEASE_RETURNED, _CANCELLED = EventKind.LEASE_RETURNED, EventKind.CANCELLED

_ENDS: Final = {
    EventKind.ACKNOWLEDGED: "acknowledged",
    EventKind.DELIVERED_AT_MOST_ONCE: "delivered_at_most_once",
    EventKind.BARRIER_RELEASED: "barrier_released",
    EventKind.REPEATED: "repeated",
}


class SimulatedQueue:
    """A queue, from its first message until nothing more can happen.

    At one instant arrivals come first, then what is due, then settlements, then deliveries (C2).

    Args:
        name: name of the queue.
        config: its settings.
        arrivals: the arriving messages.
        crew: the consumers.
        seed: the seed of the consumers' random values.
    """

    def __init__(self, name: str, config: QueueConfig, arrivals: Arrivals, crew: Crew, seed: int = 0) -> None:
        self._arrivals = list(arrivals)
        self._crew = crew
        self._work = Work(crew, seed)
        count = 1 if config.ordering == "total" else max(1, arrivals.partitions)
        settings = [config.settings(name, partition, count) for partition in range(count)]
        # The queue is always in use, and nobody deletes it, so idle time plays no part.
        self._shards = [QueueShard(dataclasses.replace(one, idle_ms=0)) for one in settings]
        self._once = settings[0].semantics is Semantics.AT_MOST_ONCE
        self._has_barriers = settings[0].traits.barrier is not None
        self._has_target_depth = settings[0].target_depth is not None
        self._cap = settings[0].max_backlog
        """The most unsettled deliveries that a consumer may have of one shard; None = no cap."""
        bounds = settings[0].rate, settings[0].group_rate
        self._is_bounded = self._has_target_depth or any(one is not None for one in bounds)
        """Whether a delivery or an acknowledgment can bring nearer what a shard does by itself."""
        self._outside: list[deque[tuple[str, int, list[Record]]]] = [deque() for _ in self._shards]
        self._consumers = [Consumer(at, f"consumer-{at + 1}") for at in range(crew.subscribers)]
        self._named = {one.name: one for one in self._consumers}
        self._finishes: list[tuple[int, int, Handed, Consumer]] = []
        self._order = 0
        self._next = 0
        self._arrive_ms = [*(one.at_ms for one in arrivals), NEVER]
        self._places: dict[tuple[str, int], dict[int, int]] = {}
        """By topic and partition: the indexes of messages among the arrivals, by offset."""
        for at, one in enumerate(self._arrivals):
            self._places.setdefault((one.topic, one.partition), {})[one.record.offset] = at
        came_ms = np.array([_available_ms(one.at_ms, one.record) for one in arrivals], np.int64)
        self._outcome = Outcome(came_ms, arrivals.first_ms)
        self._first_ms, self._begun_ms = self._outcome.first_ms.data, self._outcome.begun_ms.data
        """Views of the outcome's columns, which read and write single numbers in half of the time."""
        self._message_counts = [0] * count
        self._due_ms: list[int] = []
        """When each shard has something to do by itself at the earliest, ms since the epoch.

        It is computed again wherever it can come nearer. What has left can put it off, which is found out in time.
        """

        self._subscriptions: list[list[Subscription]] = []
        """The subscriptions of each consumer, by shards."""

        self._by_shard: list[list[Subscription]] = []
        """The subscriptions of each shard, by consumers."""

        self._held: list[list[int]] = []
        """By shard, how many messages each consumer has."""

        self._held_in: list[int] = []
        """By shard, how many messages consumers have."""

        self._room: list[int] = []
        """How many more messages each consumer takes, from all shards together."""

    def run(self) -> Outcome:
        """Let everything happen; return the outcome."""
        self._begin()
        outcome, most = self._outcome, _FEW + _ROUNDS * len(self._arrivals)
        # Messages that are left after the last instant live forever, or wait for a consumer.
        while (now_ms := self._next_instant_ms()) < NEVER:
            if outcome.deliveries > most:
                outcome.endless = True
                break
            self._run_instant(now_ms)
        return outcome

    # One instant

    def _begin(self) -> None:
        now_ms = self._outcome.began_ms
        step = Step()
        for shard in self._shards:
            shard.take_over(now_ms, step)
        self._subscriptions = [
            [
                shard.subscribing.subscribe(one.name, one.name, self._crew.backlog, _NEVER_SILENT_MS, "", now_ms, step)
                for shard in self._shards
            ]
            for one in self._consumers
        ]
        self._by_shard = [list(here) for here in zip(*self._subscriptions, strict=True)] or [[] for _ in self._shards]
        self._held = [[0] * len(here) for here in self._by_shard]
        self._held_in = [0] * len(self._shards)
        self._room = [self._crew.backlog] * len(self._consumers)
        self._due_ms = [shard.next_due_ms() for shard in self._shards]

    def _next_instant_ms(self) -> int:
        next_ms, dues_ms = self._arrive_ms[self._next], self._due_ms
        if self._finishes and self._finishes[0][0] < next_ms:
            next_ms = self._finishes[0][0]
        while (due_ms := min(dues_ms)) < next_ms:
            at = dues_ms.index(due_ms)
            self._shards[at].forget_gone(due_ms)  # most leases that would end now were settled long ago
            dues_ms[at] = self._shards[at].next_due_ms()
            if dues_ms[at] <= due_ms:
                return due_ms
        return next_ms

    def _run_instant(self, now_ms: int) -> None:
        steps: dict[int, Step] = {}
        """By number, the shards to which something has happened, and what."""
        if self._arrive_ms[self._next] <= now_ms:
            self._arrive(now_ms, steps)
            for at, step in steps.items():
                self._take_in(at, now_ms, step)
        advanced = min(self._due_ms) <= now_ms  # also what came due by an arrival
        if advanced:
            self._advance(now_ms, steps)
        finished = self._settle(now_ms, steps) if self._finishes and self._finishes[0][0] <= now_ms else []
        # Room that a consumer has got in one shard is room in all of them.
        self._serve(now_ms, steps, range(len(self._shards)) if finished or advanced else sorted(steps))
        for consumer in finished:
            self._begin_work(consumer, now_ms)

    def _advance(self, now_ms: int, steps: dict[int, Step]) -> None:
        """Let shards do what is due."""
        for at, due_ms in enumerate(self._due_ms):
            if due_ms <= now_ms:
                shard, step = self._shards[at], _step_of(at, steps)
                shard.advance(now_ms, step)
                while (due_ms := shard.next_due_ms()) <= now_ms and shard.is_due(now_ms):
                    shard.advance(now_ms, step)
                self._due_ms[at] = due_ms
                if step.changes:
                    self._recount(at)

    def _serve(self, now_ms: int, steps: Mapping[int, Step], shards: Iterable[int]) -> None:
        """Note what happened in shards, and let them hand out what their consumers have room for."""
        for at, step in steps.items():
            if self._outside[at]:
                self._take_in(at, now_ms, step)
            self._note(at, step, now_ms)
        counts, held, barriers, room = self._message_counts, self._held_in, self._has_barriers, self._room
        if counts == held and not barriers:
            return  # no message waits anywhere
        for at in shards:
            if barriers or counts[at] > held[at]:
                if not barriers and not (room and max(room) > 0):
                    break
                self._deliver(at, now_ms)

    def _arrive(self, now_ms: int, steps: dict[int, Step]) -> None:
        """Bring the messages of this instant to their shards, which get a step."""
        after = bisect_right(self._arrive_ms, now_ms, self._next)
        for _, topic, partition, record in self._arrivals[self._next : after]:
            at = partition % len(self._shards)
            outside = self._outside[at]
            if outside and outside[-1][:2] == (topic, partition):
                outside[-1][2].append(record)
            else:
                outside.append((topic, partition, [record]))
            self._message_counts[at] += 1
            if at not in steps:
                steps[at] = Step()
        self._next = after

    def _take_in(self, at: int, now_ms: int, step: Step) -> None:
        """Take in messages that have arrived, as far as there is room (Q13)."""
        shard, outside = self._shards[at], self._outside[at]
        while outside:
            topic, partition, records = outside[0]
            room = shard.room_for(topic, partition) if self._has_target_depth else len(records)
            part = records[:room] if room < len(records) else records
            taken = shard.arrive(topic, partition, part, step, now_ms) if part else 0
            if taken < len(records):
                del records[:taken]
                break
            outside.popleft()
        self._due_ms[at] = shard.next_due_ms()

    def _settle(self, now_ms: int, steps: dict[int, Step]) -> list[Consumer]:
        """Let consumers settle the messages that they finish now; return these consumers."""
        finished: list[Consumer] = []
        claims: dict[tuple[int, Consumer, bool], list[Claim]] = {}
        finishes = self._finishes
        while finishes and finishes[0][0] <= now_ms:
            _, _, one, consumer = heapq.heappop(finishes)
            consumer.handed.popleft()
            consumer.working = False
            finished.append(consumer)
            at, place, times, until_ms = one
            _, topic, partition, record = self._arrivals[place]
            offset = record.offset
            gives_back = until_ms > 0 and self._work.cancels(one)
            claims.setdefault((at, consumer, gives_back), []).append(Claim(topic, partition, offset, offset, times))
        for (at, consumer, gives_back), claimed in claims.items():
            shard, action = self._shards[at], _CANCEL if gives_back else _ACKNOWLEDGE
            outcomes = shard.settle(action, consumer.name, claimed, now_ms, _step_of(at, steps))
            if self._recount_one(at, consumer.number) != -len(claimed):
                self._recount(at)  # it settled too late, perhaps what another consumer has now
            if gives_back or self._is_bounded:
                self._due_ms[at] = shard.next_due_ms()
            if not self._once:
                for _, _, first, last, result in outcomes:
                    if result is not _SETTLED:
                        self._outcome.in_vain += last - first + 1
        return finished

    def _deliver(self, at: int, now_ms: int) -> None:
        """Hand out what can be handed out."""
        shard, more = self._shards[at], True
        while more:
            if len(self._shards) > 1:
                self._grant(at)
            step = Step()
            more = shard.deliver(now_ms, step)
            for delivery in step.deliveries:
                self._hand(at, delivery, now_ms)
                if 0 < delivery.until_ms < self._due_ms[at]:
                    self._due_ms[at] = delivery.until_ms
            if step.events or step.removals:
                self._note(at, step, now_ms)
            elif step.changes:
                self._outcome.ended_at_ms = now_ms
            more = more and bool(step.deliveries)
        if self._is_bounded:
            self._due_ms[at] = shard.next_due_ms()

    def _recount(self, at: int) -> None:
        """Count what consumers have of a shard, after that may have changed."""
        for number in range(len(self._consumers)):
            self._recount_one(at, number)

    def _recount_one(self, at: int, number: int) -> int:
        """Do the same for one consumer, by its number. Return how many more messages it has than before."""
        held = self._held[at]
        more = self._by_shard[at][number].outstanding - held[number]
        if more:
            held[number] += more
            self._held_in[at] += more
            self._room[number] -= more
        return more

    def _grant(self, at: int) -> None:
        """Set how many more messages each consumer takes from a shard, as clients do with several shards (Q3)."""
        cap = self._cap
        for mine, free in zip(self._by_shard[at], self._room, strict=True):
            granted = mine.outstanding + free if free > 0 else mine.outstanding
            # The effect of repeated `subscribe` commands, without changes for a journal that nobody writes.
            mine.max_backlog = granted if cap is None or granted < cap else cap

    def _hand(self, at: int, delivery: Delivery, now_ms: int) -> None:
        consumer, messages, first_ms = self._named[delivery.subscription], delivery.messages, self._first_ms
        handed, until_ms = consumer.handed, delivery.until_ms
        for place, count in zip(self._arrival_indexes(messages), messages.deliveries.tolist(), strict=True):
            if first_ms[place] < 0:
                first_ms[place] = now_ms
            if not delivery.barrier:  # a barrier takes no backlog, and nobody settles it (Q12)
                self._outcome.deliveries += 1
                handed.append(Handed(at, place, count, until_ms))
                if len(handed) == 1:
                    self._begin_work(consumer, now_ms)
        self._recount_one(at, consumer.number)

    def _begin_work(self, consumer: Consumer, now_ms: int) -> None:
        """Let a consumer begin with its first delivery. Like a client, it drops deliveries whose leases are over."""
        if consumer.working:
            return
        handed = consumer.handed
        while handed and 0 < handed[0].until_ms <= now_ms:
            handed.popleft()
            self._outcome.dropped += 1
        if not handed:
            return
        one = handed[0]
        if self._begun_ms[one.at] < 0:
            self._begun_ms[one.at] = now_ms
        work_ms = self._work.work_ms(one)
        self._outcome.busy_ms += work_ms
        self._order += 1
        consumer.working = True
        heapq.heappush(self._finishes, (now_ms + work_ms, self._order, one, consumer))

    # Results

    def _note(self, at: int, step: Step, now_ms: int) -> None:
        outcome = self._outcome
        if step.changes:  # without changes, a timer came for a message that had left
            outcome.ended_at_ms = now_ms
        if not step.removals and not step.events:
            return  # true for most steps
        for removal in step.removals:
            self._end_messages(at, self._arrival_indexes(removal.messages), "+".join(removal.reasons), removal.at_ms)
        for event in step.events:
            messages: Any = event.messages
            fate = _ENDS.get(event.kind)
            if fate is not None:
                self._end_messages(at, self._arrival_indexes(messages), fate, event.at_ms)
            elif event.kind is _LEASE_RETURNED:
                outcome.lapsed += len(messages)
            elif event.kind is _CANCELLED:
                outcome.cancelled += len(messages)

    def _end_messages(self, at: int, places: list[int], fate: str, at_ms: int) -> None:
        self._outcome.end(places, fate, at_ms)
        self._message_counts[at] -= len(places)

    def _arrival_indexes(self, messages: Messages) -> list[int]:
        """Return the indexes of messages among the arrivals."""
        places = self._places[messages.topic, messages.partition]
        if len(messages.offsets) == 1:
            return [places[messages.offsets.item()]]
        return [places[offset] for offset in messages.offsets.tolist()]


def _step_of(at: int, steps: dict[int, Step]) -> Step:
    """Return the step of a shard, by its number, beginning it if necessary."""
    step = steps.get(at)
    if step is None:
        step = steps[at] = Step()
    return step


def _available_ms(at_ms: int, record: Record) -> int:
    """Return when a message can first be handed out, ms since the epoch: when it arrives, or when it is scheduled."""
    return max([at_ms, *_scheduled_ms(record.headers)])


def _scheduled_ms(headers: Iterable[tuple[str, bytes]]) -> list[int]:
    return [int(value) for name, value in headers if name == ENQUEUE_AT_MS and value.isdigit() and len(value) < 19]
