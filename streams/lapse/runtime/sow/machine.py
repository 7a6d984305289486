"""The machine of a SOW shard: carries out records, commands and queries, and writes the compacted topic."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, NamedTuple

from lapse.core.lifetime import NEVER
from lapse.core.portions import Portions
from lapse.core.shard.changelog import Items
from lapse.core.sow import journal
from lapse.core.sow.records.record import payload_of
from lapse.core.sow.removal.deletion import PORTION
from lapse.core.sow.shard import SowShard
from lapse.core.sow.step import RunningDeletion, RunningQuery, Step, encode_changes
from lapse.protocol import topic as names
from lapse.protocol.command import Encoding
from lapse.runtime.authorization.command_authorizer import Admitted
from lapse.runtime.letters.expiry_rule import ExpiryRule
from lapse.runtime.shard.command_work import CommandWork, Portion
from lapse.runtime.shard.effects import Effects, StepInFlight
from lapse.runtime.shard.machine import ShardMachine
from lapse.runtime.sow.letters import Read, SowLetters
from lapse.runtime.sow.output import SowOutput
from lapse.runtime.sow.standing_predicate import StandingPredicates
from lapse.runtime.timers.clock import BY_THE_BROKER

_JOURNAL_BYTES: Final = 1 << 20
"""Changes beyond this number of bytes go ahead of the step's last RecordBatch."""

_STEP_RECORDS: Final = 2_500
_MOST_AT_ONCE: Final = 500
"""How many messages to take in before others have a turn, so that they wait for milliseconds only."""

_TURN_S: Final = 0.02
"""CPU for arriving records after which others have their turn, if subscriptions have filters, s."""

_DELIVERY_TURNS: Final = 4
"""The most parts of queries in one step. Each takes a millisecond or two."""


class _Query(NamedTuple):
    """A query that has begun, the encoding of its answers, its command's offset, and the work so far."""

    query: RunningQuery
    encoding: Encoding
    offset: int
    work: CommandWork


class _Deletion(NamedTuple):
    """A deletion that has begun, the encoding of its answer, its command's offset, and the work so far."""

    deletion: RunningDeletion
    encoding: Encoding
    offset: int
    work: CommandWork


class SowMachine(ShardMachine[SowShard, Step, StepInFlight[Step]]):
    """One shard of a SOW topic.

    Subscribers' updates and the compacted topic are written before the journal. After a crash both may be written again
    with the same bookmarks, but nothing is left out. A step may be journaled in several RecordBatches, so `step_bytes`
    stays 0. A repetition from the old offsets leads to the same records.

    Args:
        shard: the restored state machine.
        output: turns state, messages, events and letters into records.
        read: reads one record of an underlying topic, without moving other readers.
        rule: called with each record that leaves; None without an expiry rule (L15).
        clock_ms: returns the time of the broker's clock, ms since the epoch.
    """

    acts_ahead = True
    waits_for_updates = True

    def __init__(
        self,
        shard: SowShard,
        output: SowOutput,
        read: Read,
        rule: ExpiryRule | None = None,
        clock_ms: Callable[[], int] = lambda: NEVER,
    ) -> None:
        letters = SowLetters(shard, output, read)
        super().__init__(shard, output, rule, letters, letters.left())
        settings = shard.settings
        self._commands = shard.commands
        self.step_turns = _STEP_RECORDS // _MOST_AT_ONCE
        self.delivery_turns = _DELIVERY_TURNS
        self.delivery_patience_s = self.delivery_sendable_s = math.inf  # no delivery has a lease
        self.merged_by_time = settings.home.shared or settings.added_partitions
        """Whether updates of one key may be on several partitions, so that timestamps decide their order (C46)."""
        self._clock_ms = clock_ms
        self._output = output
        self._queries: deque[_Query] = deque()
        self._scan = Portion(settings.max_scan, settings.max_scan)
        self._portion = Portion(PORTION)
        self._standing = StandingPredicates(shard.state, _MOST_AT_ONCE)
        self._took_over_ms = -1

    def _begin(self) -> StepInFlight[Step]:
        return StepInFlight(Step())

    @property
    def instant_ms(self) -> int:
        """See `ShardMachine.instant_ms`."""
        return self.shard.state.now_ms

    def set_back(self, now_ms: int) -> None:
        """See `ShardMachine.set_back`. Queries must not wait for what was due by the instant of the take-over."""
        self._took_over_ms = min(self._took_over_ms, now_ms)
        self.shard.set_back(now_ms)

    # Records

    @property
    def waits_for_ends(self) -> bool:
        """Whether commands and timers wait for the logs: an unread update may give a record a new deadline (C1).

        A shard that has agreed to end takes no updates in, and waits only for the other shards' messages.
        """
        return not self.shard.agreement.frozen

    def room(self) -> int:
        """Return a number without a limit, or 0 once the shard has agreed to end."""
        return 0 if self.shard.agreement.frozen else 1 << 62

    def room_for(self, topic: str, partition: int) -> int:
        """Return a number without a limit."""
        return 1 << 62

    @property
    def step_records(self) -> int:
        """The greatest number of messages that a step takes in."""
        return _STEP_RECORDS

    @property
    def most_at_once(self) -> int:
        """How many messages to take in before others have a turn: fewer if filters are costly."""
        return self._standing.at_once

    def arrive(self, topic: str, partition: int, records: Sequence[Any]) -> int:
        """Take in records of an underlying topic: all of them, or as many as costly filters allow in the time."""
        if not self._standing.are_used:
            self._arrive(topic, partition, records)
            return len(records)
        taken, began = 0, time.thread_time()
        while taken < len(records) and time.thread_time() - began < _TURN_S:
            part = records[taken : self._standing.arrivals.end(records, taken)]
            with self._standing.at_work(len(part), self._standing.arrivals):
                self._arrive(topic, partition, part)
            self._end_too_costly()
            taken += len(part)
        return taken

    def _arrive(self, topic: str, partition: int, records: Sequence[Any]) -> None:
        taken = 0
        # The broker's own timestamps are never ahead of its clock, even if they are ahead of what is known of it.
        by_the_broker = bool(records) and getattr(records[-1], "timestamp_type", None) == BY_THE_BROKER
        clock_ms = NEVER if by_the_broker else self._clock_ms()
        while taken < len(records):
            # If the core takes only a part, the rest belongs to the same step: `finish` splits its changes.
            taken += self.shard.arrive(topic, partition, records[taken:] if taken else records, self._step, clock_ms)
        self.figures.counts["arrived"] += taken

    def _end_too_costly(self) -> None:
        """End subscriptions whose filters take too much CPU (X7)."""
        for subscription, refusal in self._standing.too_costly():
            self.shard.unsubscribe(subscription, self.instant_ms, self._step, refusal.text)

    def note_received(self, topic: str, partition: int) -> None:
        """Note records that have come. If the shard has agreed to end and they wait, that alone is use (Q18)."""
        if not self.room():
            self.shard.note_use(self._clock_ms(), self._step)

    # Commands, queries and time

    def _execute(self, admitted: Admitted) -> None:
        if not self._reach_schedule(admitted.at_ms):
            self.long_command.put_off(admitted.offset, partial(self._execute_late, admitted))
            return
        refusal = self._standing.refusal(admitted.command)
        if refusal is not None:
            self._refuse(admitted, refusal)
            return
        super()._execute(admitted)
        for deletion in self._step.deletions:
            begun = _Deletion(deletion, admitted.encoding, admitted.offset, CommandWork())
            self.long_command.put_off(admitted.offset, partial(self._continue_deletion, begun))
        self._step.deletions.clear()

    def _reach_schedule(self, at_ms: int) -> bool:
        """Let scheduled updates take effect that are due by a command's instant (C2, C47).

        Ticks do it as well, but a command may come before the tick: after an interruption all ticks come later. Records
        that have expired need not be removed first, because they do not exist for a command.

        Returns:
            Whether all have taken effect; otherwise the next step goes on (C60).
        """
        schedule = self.shard.state.schedule
        if self.shard.agreement.frozen or not schedule.is_due(at_ms):
            return True
        self.advance(at_ms)
        return not schedule.is_due(at_ms)

    def _execute_late(self, admitted: Admitted) -> None:
        """Carry out a command that waited for scheduled updates, or let it wait for more of them."""
        with self._noted(admitted.offset):
            self._execute(admitted)
        self._collect(admitted.encoding, admitted.offset)

    def _noted(self, offset: int) -> AbstractContextManager[None]:
        """Note a command while it is worked on, so that one that stops the worker repeatedly is set aside (X7)."""
        settings = self.shard.settings
        return self.under_way.noted(names.commands(settings.name), settings.partition, offset, offset)

    def _continue_deletion(self, begun: _Deletion) -> None:
        """Do a part of a deletion; if something is left, the next step does the next part."""
        deletion, encoding, offset, work = begun
        size = self._portion.size
        with self._noted(offset), work.portion_measured(size, self._portion):
            self.shard.continue_deletion(deletion, self._step, size)
        if work.is_spent and not deletion.finished:
            deletion.refuse(work.refusal(deletion.answer.command))
            if deletion.is_answered:
                self._step.answers.append(deletion.answer)
        self._collect(encoding, offset)
        if not deletion.finished:
            self.long_command.put_off(offset, partial(self._continue_deletion, begun))

    def advance(self, now_ms: int) -> None:
        """Do a bounded part of what is due."""
        if self.next_due_ms() < NEVER:
            most = self._standing.expire_at_once
            with self._standing.at_work(most, self._standing.expired):
                self.shard.advance(now_ms, self._step, most)
            self._end_too_costly()

    def deliver(self, now_ms: int) -> bool:
        """Send the next batch of one query, once records that expired before the take-over are gone (S9, C45)."""
        if self.next_due_ms() <= self._took_over_ms:
            return False
        while self._queries:
            one = self._queries.popleft()
            query = one.query
            if query.finished:
                continue
            scan = self._scan.size
            with self._noted(one.offset), one.work.portion_measured(scan, self._scan):
                self.shard.pull(query, now_ms, self._step, scan)
            if one.work.is_spent:
                self.shard.refuse(query, now_ms, self._step, one.work.refusal(query.command))
            self._collect(one.encoding, one.offset)
            if not query.finished:
                self._queries.append(one)
            break
        return bool(self._queries)

    def _collect(self, encoding: Encoding, offset: int) -> None:
        """Move new queries out of the core's step as well."""
        queries = self._step.queries
        self._queries.extend(_Query(query, encoding, offset, CommandWork()) for query in queries)
        queries.clear()
        super()._collect(encoding, offset)

    # Topics

    def begin_epoch(self, now_ms: int) -> Portions[Items]:
        """Begin an epoch; nothing must be journaled before its first step."""
        self._took_over_ms = now_ms
        self._end_of_others(now_ms)
        self.shard.take_over(now_ms, self._step)
        self._collect("avro", -1)
        yield from ()
        return []

    def replace(self, topics: Collection[str], now_ms: int) -> bool:
        """Let bookmarks of topics that were created anew name new updates only; the records stay (C42)."""
        return all(self.shard.replace_topic(topic, self._epoch, now_ms, self._step) for topic in topics)

    # The end of a step

    def _write(self, flight: StepInFlight[Step], effects: Effects) -> None:
        step = flight.core
        sources = self.shard.state.sources
        effects.before += self._output.events(step.events, sources)
        if step.changes:
            effects.before.append(self._output.state(step.changes, step.state_deletes, sources))
        if step.deliveries:
            effects.before += self._output.messages(step.deliveries, sources)
        changes = encode_changes(step)
        if step.change_bytes > _JOURNAL_BYTES:
            more, changes = _split(changes)
            effects.ahead += more
        effects.journal = changes
        if self.rule is not None:
            effects.ahead += self.rule.copied(step.removals)
        self.figures.sow_step(step)

    # Inquiries

    def gauges(self, now_ms: int = -1) -> dict[str, int]:
        """Return the numbers of records, scheduled updates, pending letters and subscriptions; see `depth`."""
        state = self.shard.state
        return {
            "records": len(state.entries) if now_ms < 0 else state.depth(now_ms),
            "scheduled": len(state.schedule),
            "dying": len(state.pending),
            "subscriptions": len(state.subscribers),
        }

    def look_up(self, key: bytes, now_ms: int) -> bytes | None:
        """Return a record's payload by its key; None without a record, or if it has expired."""
        entry = self.shard.state.entries.get(journal.RECORD + key)
        return None if entry is None or self.shard.state.is_due(entry, now_ms) else payload_of(entry)

    def look_through(self, now_ms: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the key and payload of every record."""
        for journal_key, entry in list(self.shard.state.entries.items()):
            if not self.shard.state.is_due(entry, now_ms):
                yield journal_key[1:], payload_of(entry)


def _split(changes: Items) -> tuple[Items, Items]:
    """Split changes into those that go ahead, and the last, for the batch with the source offsets.

    Message ids are among the last. If they were durable without the offsets, the shard would read the same records
    again after a crash, and take them for repeats.
    """
    changes.sort(key=lambda item: item[0][:1] == journal.IDS)
    size = 0
    for at in range(len(changes) - 1, -1, -1):
        key, value = changes[at]
        size += len(key) + len(value or b"") + 64
        if size > _JOURNAL_BYTES:
            return changes[: at + 1], changes[at + 1 :]
    return [], changes
