"""The machine of a queue shard: feeds it with records, commands and time, and writes what it decides."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from lapse.core.lifetime import NEVER
from lapse.core.portions import Portions
from lapse.core.queue.command import QueueCommands
from lapse.core.queue.journal.queue_journal import QueueJournal
from lapse.core.queue.journal.restored import Restored
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.core.shard.changelog import Items
from lapse.core.shard.retirement import ShardMessage
from lapse.protocol import topic as names
from lapse.runtime.authorization.command_authorizer import Admitted
from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.letters.expiry_rule import ExpiryRule
from lapse.runtime.letters.refusal import Write
from lapse.runtime.queue.arrivals import Arrivals
from lapse.runtime.queue.crowd import Crowd
from lapse.runtime.queue.delivery_writer import DeliveryWriter, patience_s, sendable_s
from lapse.runtime.queue.filter_evaluation import FilterEvaluator
from lapse.runtime.queue.forwarder import Forwarder
from lapse.runtime.queue.forwarding import Forwarding
from lapse.runtime.queue.in_flight import QueueStepInFlight
from lapse.runtime.queue.letters import QueueLetters
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.queue.parts_journal import PartsJournal
from lapse.runtime.queue.preparation import Preparation
from lapse.runtime.queue.replaced_topics import ReplacedTopics
from lapse.runtime.queue.rewind import Rewinder
from lapse.runtime.queue.step_records import StepRecords
from lapse.runtime.queue.sweep_horizon import UNKNOWN, SweepHorizon
from lapse.runtime.queue.unread_records import UnreadRecords
from lapse.runtime.queue.unsent import UnsentDeliveries
from lapse.runtime.queue.unwritten import JournaledDeliveries, Noted, Read
from lapse.runtime.queue.view import QueueView
from lapse.runtime.shard.command_work import CommandWork
from lapse.runtime.shard.effects import Effects
from lapse.runtime.shard.machine import ShardMachine
from lapse.runtime.shard.payload import PayloadWindow
from lapse.runtime.tp import TP

_STEP_RECORDS: Final = 10_000


class QueueMachine(ShardMachine[QueueShard, Step, QueueStepInFlight]):
    """One shard of a queue.

    Args:
        settings: settings of the queue.
        restored: contents of the changelog.
        epoch: the shard's epoch.
        payloads: the records behind the messages.
        output: turns events, letters and deliveries into records.
        publish_target: topic for a publish to the queue's name.
        merged_by_time: whether the queue has one order over all its partitions and topics (Q17).
        rule: called with each message that leaves; None without an expiry rule (L15).
        forwarding: forwards its messages; None if the queue does not forward (Q21).
        clock_ms: returns the time of the broker's clock, ms since the epoch.

    Attributes:
        crowd: lets due messages leave, as many as a step has room for.
        rewinder: carries out rewinds.
        forwarder: hands messages to another topic.
        now_ms: the latest instant that the machine knows, ms since the epoch.
    """

    acts_ahead = False
    """What is due or handed out may depend on the instant at which the step before was written (C60, C71)."""

    _commands: QueueCommands

    def __init__(
        self,
        settings: QueueSettings,
        restored: Restored,
        epoch: int,
        payloads: PayloadWindow,
        output: QueueOutput,
        publish_target: str,
        merged_by_time: bool = False,
        rule: ExpiryRule | None = None,
        forwarding: Forwarding | None = None,
        clock_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        shard = QueueShard(settings, restored.state)
        letters = QueueLetters(shard, payloads, output, rule)
        super().__init__(shard, output, rule, letters, restored.state.pending)
        self.merged_by_time = merged_by_time
        self.step_turns = self.delivery_turns = 1
        self.delivery_patience_s = patience_s(settings.lease_ms)
        self.delivery_sendable_s = sendable_s(settings.lease_ms)
        self.now_ms = 0
        self._payloads, self._output = payloads, output
        self._commands = QueueCommands(shard, publish_target, self.retry.why)
        self._parts = PartsJournal(epoch, self._commands.parts)
        self._records = StepRecords(shard, QueueJournal(restored.state, epoch, restored), self._parts, output)
        self._judge = FilterEvaluator(shard, payloads, lambda: self.under_way, _STEP_RECORDS)
        self._waiting: deque[Admitted] = deque()
        shard.allowance.counts_as_written = True
        self._handed_out = JournaledDeliveries(shard, restored.handed_out, output, payloads, restored.released)
        self._horizon = SweepHorizon(shard, payloads)
        self.rewinder = Rewinder(shard, payloads, self._horizon, lambda: self.under_way)
        self.long_command.hold(self.rewinder.unfinished)
        self.unread_records = UnreadRecords(shard, payloads)
        self.crowd = Crowd(shard)
        self._arrivals = Arrivals(shard, payloads, self._horizon, self.crowd, self.figures, clock_ms)
        self._replaced = ReplacedTopics(shard, payloads, self._horizon)
        self._view = QueueView(shard, payloads)
        self._preparation = Preparation(shard, self._commands, payloads, self._judge, self._view, self._horizon)
        self.forwarder = Forwarder(shard, payloads, forwarding)
        self._deliveries = DeliveryWriter(shard, payloads, output, self.forwarder)
        self.unsent: UnsentDeliveries = UnsentDeliveries(shard, output, lambda: self._flight, lambda: self.now_ms)

    def _begin(self) -> QueueStepInFlight:
        return QueueStepInFlight(Step())

    @property
    def instant_ms(self) -> int:
        """See `ShardMachine.instant_ms`."""
        return self.now_ms

    def set_back(self, now_ms: int) -> None:
        """See `ShardMachine.set_back`."""
        self.now_ms = self._flight.note_set_back(now_ms)
        self.shard.set_back(now_ms)

    def recall(self, epoch: int, journal: Mapping[bytes, bytes]) -> None:
        """See `ShardMachine.recall`; find also what a long command has done so far."""
        super().recall(epoch, journal)
        self._parts.recall(journal)

    # Messages

    @property
    def step_records(self) -> int:
        """The greatest number of messages that a step takes in: beside a crowd no more than may leave (C60)."""
        return min(_STEP_RECORDS, self.crowd.arrivals_allowed)

    @property
    def waits_for_ends(self) -> bool:
        """Whether commands wait until the logs are read: while it checks that nothing is left, with room (C1, L11)."""
        return self.shard.agreement.checking and self.shard.room() > 0

    @property
    def _is_busy(self) -> bool:
        """Whether commands wait, or one is not finished, so that later ones must wait as well."""
        return bool(self._waiting) or self.unfinished is not None

    def room(self) -> int:
        """Return how many more messages may become active; one at a time while a transfer waits for one (Q13)."""
        if self.unfinished is not None:
            return 0  # if a crash repeats a purge, it must not purge later arrivals
        return self.shard.room() or int(self.shard.has_early_transfer)

    def room_for(self, topic: str, partition: int) -> int:
        """Return how many more messages of an underlying partition may become active."""
        if self.unfinished is not None:
            return 0
        return self.room() if self.merged_by_time else self.shard.room_for(topic, partition)

    @property
    def most_at_once(self) -> int:
        """How many messages to take in before others have a turn: a whole step's, or fewer under costly filters."""
        return self._judge.filters.at_once(self.shard.matching.active)

    def arrive(self, topic: str, partition: int, records: Sequence[Any]) -> int:
        """Take in records of an underlying topic; return how many there was room for (C51)."""
        with self._judge.filters.at_work(self.shard.matching.active):
            taken = self._arrivals.take_in(topic, partition, records, self._flight, self.now_ms)
        self._judge.end_too_costly(self.now_ms, self._step)
        return taken

    def note_received(self, topic: str, partition: int) -> None:
        """Note records that have come. If there is no room for them, that alone is use of the queue (Q18)."""
        self._arrivals.note_received(topic, partition, self._flight, has_room=self.room_for(topic, partition) > 0)

    def note_take(self, ends: Mapping[TP, int]) -> None:
        """See `QueueStepInFlight.note_take`."""
        self._flight.note_take(ends)

    def set_aside(self, topic: str, partition: int, record: Any, why: str) -> None:
        """Make a dead letter of a record that stopped the worker repeatedly, without decoding it (X7)."""
        self._payloads.keep(topic, partition, [record])
        super().set_aside(topic, partition, record, why)
        self._flight.has_arrivals = True

    @property
    def step_bytes(self) -> int:
        """About how many bytes the step takes in the journal so far, including those of waiting commands."""
        return self._flight.journal_bytes()

    # Commands

    def _reach(self, at_ms: int) -> None:
        self.now_ms = max(self.now_ms, at_ms)
        if not self._waiting:
            self.crowd.reach(at_ms, self._step)

    def _take_shard_message(self, heard: ShardMessage, at_ms: int, offset: int) -> None:
        take = super()._take_shard_message
        self.crowd.reach(at_ms, self._step)
        if self.crowd.is_before(at_ms):
            self.long_command.put_off(offset, lambda: self._take_shard_message(heard, at_ms, offset))
        elif self.unread_records.begin(heard, lambda: take(heard, at_ms, offset)):
            self.long_command.hold(offset)
        else:
            take(heard, at_ms, offset)

    def _take(self, admitted: Admitted) -> None:
        """Carry out a command, or let it wait for payloads, or for earlier commands that do."""
        self._flight.stands_alone |= admitted.command.command != "heartbeat"
        self._commands.note_use(admitted.command, admitted.at_ms, self._step)
        admitted, refusal = self._preparation.admit(admitted)
        if refusal is not None:
            self._refuse(admitted, refusal)
            return
        if self._waiting or self._preparation.is_needed(admitted):
            # Something must be read first. Later commands wait as well, so that the order stays.
            self._waiting.append(admitted)
            self._flight.expect(len(admitted.command.bookmarks))
        else:
            self._carry_out(admitted)

    def _carry_out(self, admitted: Admitted) -> None:
        self.crowd.catch_up(lambda: self._commands.named_messages(admitted.command), admitted.at_ms, self._step)
        super()._carry_out(admitted)

    def _execute(self, admitted: Admitted) -> None:
        command, at_ms = admitted.command, admitted.at_ms
        self._parts.resume(admitted.offset)
        step, carry_out_part = self._step, self._commands.carry_out_part
        if self.crowd.is_before(at_ms, command.command) or carry_out_part(command, at_ms, step, admitted.row_filter):
            self._parts.note(admitted.offset)
            self.long_command.put_off(admitted.offset, lambda: self._do_next_part(admitted))
            return
        if command.command == "rewind" and (request := self._commands.rewind(command, at_ms, admitted.offset)):
            self.rewinder.begin(admitted, request)
            self.long_command.hold(admitted.offset)  # until its end, nothing else happens in the shard
            return
        super()._execute(admitted)
        self._parts.end()

    async def _rewind(self) -> None:
        """Do a part of a rewind; answer after the last part."""
        if await self.rewinder.continue_rewind(self._step):
            admitted, self._commands.counted = self.rewinder.end()
            self.long_command.end()
            if admitted is not None and self._commands.counted is None:
                self._refuse(admitted, UNKNOWN)
            elif admitted is not None:
                super()._execute(admitted)
                self._collect(admitted.encoding, admitted.offset)

    def continue_command(self) -> None:
        """See `ShardMachine.continue_command`; with the last part, forget what was read for the command."""
        if self.long_command.do_next_part():
            self._preparation.end()

    def _do_next_part(self, admitted: Admitted) -> None:
        self.crowd.reach(admitted.at_ms, self._step)
        self._execute(admitted)
        self._collect(admitted.encoding, admitted.offset)

    async def _carry_out_waiting(self) -> None:
        """Carry out the commands that waited until something was read."""
        settings = self.shard.settings
        while self._waiting and self.unfinished is None:
            admitted = self._waiting.popleft()
            self.crowd.reach(admitted.at_ms, self._step)
            refusal = await self._preparation.begin(admitted, self.now_ms, self._step)
            if refusal is not None:
                self._refuse(admitted, refusal)
            else:
                commands, offset = names.commands(settings.name), admitted.offset
                with self.under_way.noted(commands, settings.partition, offset, offset):
                    self._carry_out(admitted)
            if self.unfinished is None:
                self._preparation.end()

    # Time

    def waits_for_arrivals(self, at_ms: int) -> bool:
        """Return whether a scheduled message is due that must come behind earlier arrivals (C76)."""
        return self.shard.waits_for_arrivals(at_ms)

    def arrivals_are_in(self, to_ms: int) -> None:
        """Note that everything that arrived up to an instant was taken in."""
        self._flight.instants["in"] = to_ms
        self.shard.note_arrivals_until(to_ms)

    def advance(self, now_ms: int) -> None:
        """Do a bounded part of what is due, but not before waiting commands, which have earlier instants (C1)."""
        if self._is_busy or self.next_due_ms() == NEVER:
            return
        self.now_ms = max(self.now_ms, now_ms)
        self._arrivals.note_use(self._flight, self.now_ms)
        self.crowd.advance(now_ms, self._step)

    def written(self, effects: Effects, now_ms: int) -> bool:
        """Note that the effects of a step were written at `now_ms`; return whether a rate waited for that."""
        self._flight.instants |= {"written": now_ms} if effects.counted_to >= 0 else {}
        return effects.counted_to >= 0 and self.shard.allowance.note_written(effects.counted_to, now_ms)

    def note_step_time(self, seconds: float) -> None:
        """Choose the size of the next part of a crowd by the duration of the last step (C60)."""
        self.crowd.note_step_time(seconds)

    def deliver(self, now_ms: int) -> bool:
        """Hand out a bounded number of messages, after the waiting commands (C2); return True if there are more."""
        if self._is_busy:
            return True
        self._flight.instants["delivered"] = self.now_ms = max(self.now_ms, now_ms)
        self._arrivals.note_use(self._flight, self.now_ms)
        self.letters.let_go(self._step)
        more = self.shard.deliver(self.now_ms, self._step)
        self._flight.stands_alone |= more  # for example, messages must be judged first
        return more

    # Topics

    def begin_topics(self, replaced: Collection[str], since: Mapping[TP, int]) -> None:
        """Note which topics were created anew. The records of the old ones are not looked for (C42)."""
        self._replaced.begin(replaced, since)

    def replace(self, topics: Collection[str], now_ms: int) -> bool:
        """Let a bounded number of messages leave whose topics were created anew (C42); return whether none is left."""
        self.now_ms = max(self.now_ms, now_ms)
        return not self._is_busy and self._replaced.close(topics, self._epoch, self.now_ms, self._step)

    def held_sources(self) -> list[TP]:
        """Return the partitions of which the shard has messages."""
        return [TP(source.topic, source.partition) for source in self.shard.state.held_sources()]

    def log_begins(self, tp: TP, begin_offset: int, now_ms: int) -> bool:
        """Let a bounded number of messages leave whose records Kafka removed (C40); return whether none is left."""
        self.now_ms = max(self.now_ms, now_ms)
        return self.shard.truncate_below(tp.topic, tp.partition, begin_offset, self.now_ms, self._step)

    def missed(self, tp: TP, first: int, last: int) -> list[tuple[int, int]]:
        """Return the ranges that are lost of some that Kafka removed: those not acknowledged in advance."""
        return self.shard.without_acknowledged(tp.topic, tp.partition, first, last)

    def report_unread(self, tp: TP, ranges: Sequence[tuple[int, int]], now_ms: int) -> None:
        """Report messages that Kafka removed before they were read: one event for all, and no letters (C80)."""
        self._flight.unread += self._output.report_unread(tp.topic, tp.partition, ranges, now_ms)

    # The beginning of an epoch

    def begin_epoch(self, now_ms: int) -> Portions[Items]:
        """Begin an epoch; its first step applies lowered limits, and repeats barriers that may be unsent."""
        self._flight.instants["began"] = self.now_ms = max(self.now_ms, now_ms)
        self._horizon.begin(self.now_ms)
        items = yield from self._records.beginning()
        self.shard.take_over(now_ms, self._step, self._handed_out.has_found)
        self.shard.allowance.set_back_restored(now_ms)
        self._end_of_others(now_ms)
        self.forwarder.take_over(now_ms, self._step)
        for change in self._handed_out.released:
            self.shard.repeat_barrier(change, self._step)
        return items

    def release_memory(self) -> Portions[None]:
        """Free the memory of the shard and of its payloads; see `ShardMachine.release_memory`."""
        yield from super().release_memory()
        yield from self._payloads.release_memory()

    async def unwritten(self, noted: Noted, read: Read, now_ms: int) -> list[tuple[Output | Packed, int]]:
        """See `JournaledDeliveries.unwritten`. Users get only what they may still read (C55, X4)."""
        self._flight.instants["looked"] = now_ms
        receivers = {one.id for one in self.shard.subscriptions() if not self._admission.ended(one)}
        return await self._handed_out.unwritten(noted, read, receivers, now_ms, self._step)

    async def hand_on(self, write: Write) -> None:
        """Hand on what the last step leased to the forwarder, before anything else can happen to it (C38)."""
        now_ms, step = self.now_ms, self._step
        judge = lambda places: self._judge.places(places, CommandWork(), now_ms, step)  # noqa: E731
        await self.forwarder.hand_on(now_ms, step, write, judge)

    # The end of a step

    async def _complete(self) -> Items:
        await self._rewind()
        if await self.unread_records.look():
            self.long_command.end()
        await self._carry_out_waiting()
        if self.shard.unjudged:
            await self._judge.places(self.shard.unjudged, CommandWork(), self.now_ms, self._step)
        self._judge.end_too_costly(self.now_ms, self._step)
        self._flight.instants |= self.crowd.step_ends() | self.rewinder.step_ends()
        return self._records.lost(self._step)

    async def _hand_over(self, step: Step, effects: Effects, write: Write) -> None:
        await self._deliveries.write(step, effects, self.now_ms)

    def _write(self, flight: QueueStepInFlight, effects: Effects) -> None:
        self._records.put(flight, effects)
        effects.instants = flight.instants | self.long_command.noted(self._waiting)
        effects.stands_alone = flight.stands_alone or self.unfinished is not None
        self.figures.queue_step(flight.core)
        # The next step's journal begins with the state before any message of that step.
        self._flight.has_arrivals |= flight.has_arrivals
        self._replaced.end_step()
        self._flight.instants["from"] = self.now_ms
        self._flight.ahead += self._records.ahead()

    # Inquiries

    def gauges(self, now_ms: int = -1) -> dict[str, int]:
        """See `QueueView.gauges`."""
        return self._view.gauges(now_ms)

    async def oldest_ms(self, now_ms: int = -1) -> int | None:
        """Return the arrival of the first message that has not expired, ms since the epoch; None without one (Q15)."""
        return await self._view.oldest_ms(now_ms)

    def look_through(self, now_ms: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the bookmark of every message, and its state as JSON."""
        return self._view.messages(now_ms)
