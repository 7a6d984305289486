"""One shard of a test: the worker's own machine, driven step by step, and recovered from its journal after a crash."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any, Final

import orjson

from lapse.core.lifetime import NEVER
from lapse.core.shard.changelog import Changelog, Items, claim_key, epoch_header, progress_key
from lapse.protocol import header
from lapse.protocol import topic as names
from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.letters.refusal import Refusal
from lapse.runtime.queue.forwarded_copies import found_in
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.queue.unwritten import parse_noted, read_written
from lapse.runtime.shard.effects import Effects
from lapse.runtime.shard.inbox import Inbox
from lapse.runtime.shard.sent_log import PROGRESS_KEY
from lapse.runtime.tp import TP
from lapse.testing.memory_entity import Entity
from lapse.testing.memory_log import at_once
from lapse.testing.memory_reader import MemoryReader
from lapse.testing.unpacking import outputs_of

_STEP_RECORDS: Final = 20_000
_MOST_STEPS: Final = 100_000
"""A shard that does more steps without input is in an endless loop."""


class CrashPoint(StrEnum):
    """Where a worker crashes in a step. It has written what comes before in the order of effects, but not this."""

    LETTERS = "letters"
    EVENTS = "events"
    JOURNAL = "journal"
    DELIVERIES = "deliveries"


class Crash(Exception):  # an event of the test, not an error
    """The worker crashes here."""


class MemoryShard:
    """One shard, from its take-over to the next crash.

    Args:
        entity: the shard's entity.
        partition: the shard's number.

    Attributes:
        machine: the worker's own machine.
    """

    def __init__(self, entity: Entity, partition: int) -> None:
        self.entity = entity
        self.partition = partition
        self._cluster = entity.cluster
        self._commands = TP(names.commands(entity.name), partition)
        self._deliveries = names.deliveries(entity.name)
        changelog = Changelog()
        changelog.take_all(self._cluster.log(entity.changelog, partition))
        epochs, own = self._cluster.epochs, (entity.name, partition)
        self._epoch = epochs[own] = max(changelog.epoch, epochs.get(own, 0)) + 1
        self._claim(changelog)
        known: dict[str, Any] = orjson.loads(changelog.progress() or b"{}")
        noted = parse_noted(known.pop(PROGRESS_KEY, None))
        sources = [*entity.sources(partition)]
        read_to = {tp: known.get(f"{tp.topic}:{tp.partition}") for tp in [*sources, self._commands]}
        begins = entity.begins([tp for tp in sources if read_to[tp] is None])
        positions = {tp: begins.get(tp, 0) if offset is None else offset for tp, offset in read_to.items()}
        of_messages = {tp: offset for tp, offset in positions.items() if tp != self._commands and offset}
        self.machine = entity.machine(partition, self._epoch, changelog, of_messages)
        self.machine.recall(self._epoch, changelog.runtime)
        if isinstance(self.machine, QueueMachine):
            self.machine.shard.allowance.written_within_ms = 0
        reader, catch_up = MemoryReader(self._cluster), len(self._cluster.log(*self._commands))
        self._inbox = Inbox(reader, self.machine, self._commands, positions, None, lambda: None, catch_up=catch_up)
        self._take_over(noted)
        self._more = True
        self._advanced_ms = self._rested_ms = -1
        self._sources: list[TP] = []
        self._known_topics = -1

    def _claim(self, changelog: Changelog) -> None:
        """Begin an epoch like a worker's store: first tell readers of deliveries, then write the journal."""
        headers = [(header.KIND, b"epoch"), (header.EPOCH, b"%d" % self._epoch)]
        self._cluster.append(self._deliveries, self.partition, None, b"", headers)
        self._write_journal([(claim_key(self._epoch), b"lapse.testing")])
        changelog.take(claim_key(self._epoch), b"lapse.testing", epoch_header(self._epoch))

    def _take_over(self, noted: Any) -> None:
        """Write what was journaled and not written (C55), and make the epoch's beginning durable."""
        now_ms, log = self._cluster.now_ms, self.entity.log
        self.machine.begin_topics([], {})
        if isinstance(self.machine, QueueMachine):
            at_once(self.machine.forwarder.look(self._found_in))
        if noted is not None and isinstance(self.machine, QueueMachine):
            read = lambda: read_written(log, noted, [self._deliveries], self.partition)  # noqa: E731
            self._write([output for output, _ in at_once(self.machine.unwritten(noted, read, now_ms))])
        self._write(self.machine.answers.left())
        began = self.machine.take_over(now_ms)
        self._inbox.open()
        self.machine.arrivals_are_in(0)
        self._write_journal([*began, self._progress(0)])

    async def _found_in(self, target: str, since_ms: int, stems: Collection[bytes]) -> set[bytes]:
        """Look for forwarded messages in their target, as a worker does."""
        tps = [TP(target, number) for number in range(self._cluster.partitions().get(target, 0))]
        return await found_in(self.entity.log, tps, since_ms, stems)

    # Steps

    def next_due_ms(self) -> int:
        """Return when a timer is due next, ms since the epoch; `NEVER` if none is."""
        return int(self.machine.next_due_ms())

    def silence_ms(self) -> int:
        """Return for how long no present subscription may be silent, ms."""
        return min((_timeout_ms(one) for one in self.machine.shard.subscriptions()), default=NEVER)

    def work(self, crash: CrashPoint | None) -> bool:
        """Do all work of this instant; return whether there was any.

        Args:
            crash: where the worker crashes, if it gets there.

        Raises:
            Crash: it crashed.
            RuntimeError: the work of one instant has no end.
        """
        if not self._bring() and self._rested_ms == self._cluster.now_ms:
            return False
        worked = False
        for _ in range(_MOST_STEPS):
            if self.machine.stopped or not (self._more or self._has_something()):
                self._rested_ms = self._cluster.now_ms
                return worked
            self._step(crash)
            worked = True
            self._bring()
        raise RuntimeError(f"{self.entity.name}, partition {self.partition}: goes on and on at one instant")

    def _has_something(self) -> bool:
        waits = self._inbox.has_messages(0) or self._inbox.has_commands
        now_ms = self._cluster.now_ms
        due = self.machine.is_due(now_ms) or self.machine.waits_for_arrivals(now_ms)
        return waits or due or self._advanced_ms < now_ms

    def _bring(self) -> bool:
        """Bring new records of the shard's logs into the inbox; return whether there were any."""
        brought = False
        if self._known_topics != self._cluster.topics_changed:
            self._known_topics = self._cluster.topics_changed
            self._sources = [*self.entity.sources(self.partition), self._commands]
        for tp in self._sources:
            if tp not in self._inbox.received:
                self._inbox.adopt(tp, 0)
            first, log = self._inbox.received[tp], self._cluster.log(*tp)
            if first < len(log):
                self._inbox.receive(tp, log[first:])
                if tp != self._inbox.commands:
                    self.machine.note_received(*tp)
                brought = True
        return brought

    def _step(self, crash: CrashPoint | None) -> None:
        """Do one step, in the order of a worker's (`Runner._step`)."""
        machine, inbox, now_ms = self.machine, self._inbox, self._cluster.now_ms
        machine.begin_step()

        async def write(letters: Sequence[Output | Packed]) -> dict[int, Refusal]:
            self._write(letters, crash, CrashPoint.LETTERS)
            return {}

        async def note(items: Items) -> None:
            self._write_journal(items)

        at_once(machine.hand_on(write))
        taken = inbox.take_messages(machine.step_records)
        if machine.unfinished is not None:
            machine.continue_command()
        while machine.waits_for_arrivals(now_ms):
            machine.arrivals_are_in(now_ms)  # all arrivals are in: nothing is under way
        if machine.unfinished is None:
            taken += inbox.take_commands(_STEP_RECORDS, None, lambda _: None)
        before_ms, self._advanced_ms = self._advanced_ms, now_ms
        turns = 0
        while machine.is_due(now_ms) and turns < machine.step_turns:
            machine.advance(now_ms)
            turns += 1
        machine.note_step_time(0.0)
        more = machine.deliver(now_ms)
        moved = bool(taken or turns or before_ms < now_ms)
        effects = at_once(machine.finish(write, note=note))
        wrote = self._effect(effects, crash, taken)
        self._more = machine.unfinished is not None or (more and (moved or wrote))

    def _effect(self, effects: Effects, crash: CrashPoint | None, taken: int) -> bool:
        """Write the effects in their order; return whether there were any."""
        self._write(effects.before, crash, CrashPoint.EVENTS)
        items = [*effects.ahead, *effects.journal]
        if items or taken:
            if items and crash is CrashPoint.JOURNAL:
                raise Crash
            self._write_journal([*items, self._progress(effects.step)])
        self._write(effects.after, crash, CrashPoint.DELIVERIES)
        self.machine.answers.written(effects.kept)
        self.machine.written(effects, self._cluster.now_ms)
        return bool(effects.before or items or effects.after)

    def _write(
        self, some: Sequence[Output | Packed], crash: CrashPoint | None = None, point: CrashPoint | None = None
    ) -> None:
        if some and crash is not None and crash is point:
            raise Crash
        for topic, partition, key, value, headers in outputs_of(some):
            self._cluster.append(topic, partition, key, value, headers)

    def _write_journal(self, items: Items) -> None:
        for key, value in items:
            self._cluster.append(self.entity.changelog, self.partition, key, value, epoch_header(self._epoch))

    def _progress(self, step: int) -> tuple[bytes, bytes]:
        """Return the read positions, and from where on deliveries are looked for (C55)."""
        processed = self._inbox.processed.copy()
        if self.machine.unfinished is not None:
            processed[self._commands] = self.machine.unfinished
        known: dict[str, Any] = {f"{tp.topic}:{tp.partition}": offset for tp, offset in processed.items()}
        if isinstance(self.machine, QueueMachine):
            last = len(self._cluster.log(self._deliveries, self.partition)) - 1
            known[PROGRESS_KEY] = {"step": step, "from": {self._deliveries: last}}
        return progress_key(self._epoch), orjson.dumps(known)


def _timeout_ms(subscription: Any) -> int:
    """Return the heartbeat timeout of a subscription of either kind of shard, ms."""
    return int(getattr(subscription, "heartbeat_timeout_ms", 0)) or NEVER
