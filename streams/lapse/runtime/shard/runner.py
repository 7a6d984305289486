"""The runner: the task that owns one shard, from its inbox to its outputs.

Every guarantee rests on the order of effects: dead letters and events, then the journal, then deliveries, then the
acknowledgment of the source offsets. A failed write ends the process, because recovery is the normal path. If a broker
refuses a write, it ends this shard only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from lapse.core.broker_offset import STEP_MS
from lapse.core.shard.changelog import Items
from lapse.runtime.event_loop_turns import in_turns
from lapse.runtime.journal import refused_shard
from lapse.runtime.journal.store import Fenced, JournalStore
from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.kafka.producer import BatchProducer
from lapse.runtime.kafka.refusals import REFUSALS
from lapse.runtime.letters.letter_writer import LetterWriter
from lapse.runtime.letters.refusal import Refusal
from lapse.runtime.shard.concurrent_writes import ConcurrentWrites
from lapse.runtime.shard.deliveries_under_way import DeliveriesUnderWay
from lapse.runtime.shard.effect_writer import EffectWriter
from lapse.runtime.shard.effects import Effects
from lapse.runtime.shard.gate import ArrivalGate, Gate
from lapse.runtime.shard.inbox import Inbox
from lapse.runtime.shard.intake import Intake
from lapse.runtime.shard.log import SilentLog
from lapse.runtime.shard.log_reader import LogReader
from lapse.runtime.shard.machine import Machine
from lapse.runtime.shard.pause import Pauses
from lapse.runtime.shard.reader import Reader
from lapse.runtime.shard.removed_log import RemovedLog
from lapse.runtime.shard.sent_log import AT_START, BEGIN, BEHIND
from lapse.runtime.shard.step_turns import StepTurns
from lapse.runtime.shard.step_work import StepWork, WorkAhead
from lapse.runtime.shard.taken_over import TakenOver
from lapse.runtime.shard.timeline import Timeline
from lapse.runtime.timers.clock import WorkerClock
from lapse.runtime.timers.early_stamp import EarlyStamps
from lapse.runtime.timers.ticker import Ticker
from lapse.runtime.tp import TP
from lapse.runtime.watch import Watch, end_process

_LOOK_AGAIN_S: Final = 0.05
"""How often to ask whether the consumer has passed records that it does not hand out, s."""

_REST_S: Final = 0.001
"""The pause behind a step that wrote nothing and left something to do, s: it has waited for no broker."""

_TURNS_TO_KAFKA: Final = 6
"""The greatest number of turns of the loop until a write is sent to Kafka."""


class Runner:
    """Owns one shard.

    Args:
        entity: name of the queue or SOW topic.
        partition: the shard's number.
        epoch: the shard's epoch.
        machine: the shard's state machine.
        store: keeps the journal.
        producer: writes the outputs.
        letters: writes the dead letters.
        reader: the consumer that feeds this runner.
        log: says where the logs end.
        clock: the broker's clock.
        watch: notices a frozen process.
        commands_topic: the topic of the shard's commands and ticks.
        found: the result of the take-over.
        turns: shared by the shards of a worker, limits how many begin a step at once.
        on_stopped: called when the entity is deleted and the shard has written its last record.
    """

    def __init__(
        self,
        *,
        entity: str,
        partition: int,
        epoch: int,
        machine: Machine,
        store: JournalStore,
        producer: BatchProducer,
        letters: LetterWriter,
        reader: Reader,
        log: LogReader,
        clock: WorkerClock,
        watch: Watch,
        commands_topic: str,
        found: TakenOver,
        turns: StepTurns,
        on_stopped: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.entity = entity
        self.partition = partition
        self.epoch = epoch
        self.machine = machine
        self._shown = shown = f"{entity}, partition {partition}"
        self._on_stopped = on_stopped
        self._clock = clock
        self._catch_up = found.catch_up
        self.topics = found.topics
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._may_run = asyncio.Event()
        commands, pauses = TP(commands_topic, partition), Pauses(watch, log)
        known = found.positions, found.merge_until
        self._inbox = Inbox(reader, machine, commands, *known, self._news.set, pauses, found.catch_up)
        self._early_stamps = EarlyStamps(entity, clock)
        self._removed = RemovedLog(entity, machine, self._inbox, log, self._news.set, found.gaps)
        self._arrival_gate = ArrivalGate(machine, self._inbox, log, self._news.set)
        self._timeline = Timeline(clock, machine.figures)
        self._ticker = Ticker(shown, commands, machine, producer, clock, self._news.set)
        gate = Gate(self._inbox, log, self._news.set)
        ticks = self._ticker.read, self._may_be_set_back
        self._intake = Intake(machine, self._inbox, gate, self._timeline, found.topics, *ticks)
        self._work = StepWork(machine, self._inbox, self._intake, self._ticker, clock, self._news, self._may_run)
        self._deliveries = DeliveriesUnderWay(shown, machine, producer, found.floors)
        self._writer = EffectWriter(
            partition=partition, epoch=epoch, store=store, producer=producer, letters=letters,
            deliveries=self._deliveries, topics=found.topics, clock=clock, watch=watch, figures=machine.figures,
        )  # fmt: skip
        self._unwritten = found.unwritten
        self._task: asyncio.Task[None] | None = None
        self._writing = ConcurrentWrites()
        self._durable: Mapping[TP, int] = {}
        """Per source, the next offset that is not in the journal of this process yet."""
        self._more = False
        self._stopped = False
        self._rested = False
        """Whether the shard had nothing to do before the step under way."""
        self._ahead = WorkAhead()
        self._store = store
        self._turns = turns

    async def start(self) -> None:
        """Make the epoch's beginning durable, and start the task. If that fails, the runner must be abandoned."""
        self.machine.begin_topics(self.topics.replaced, {tp: self.topics.since(tp.topic) for tp in self.sources})
        # Write these before the journal drops them. A crash in between repeats it (C55).
        unwritten = [] if self._unwritten is None else await self._unwritten(self._clock.now_ms())
        await self._deliveries.write(unwritten, self.machine.answers.left(), self._clock.now_ms())
        await self._deliveries.take_back(self._writing.end, AT_START)
        began = await in_turns(self.machine.begin_epoch(self._clock.now_ms()))
        await self._writer.begin(began, self._inbox.processed)
        self._inbox.open()
        self.machine.arrivals_are_in(0)
        self._may_run.set()
        self._news.set()  # messages may have expired while no worker ran
        if self.machine.rule is not None:
            self.machine.rule.start(self._news.set)
        self.machine.retry.start(self._writer.write_letters_again, self._news.set)
        self._task = asyncio.create_task(self._run(), name=f"shard {self.entity}-{self.partition}")

    def abandon(self) -> None:
        """Undo a start that failed, or that never came: a consumer of the shard's own may have brought records."""
        self._lose()

    async def pause(self) -> None:
        """Finish the step under way, and begin no other."""
        self._may_run.clear()
        await self._idle.wait()

    def resume(self) -> None:
        """Begin steps again."""
        self._may_run.set()

    async def stop(self) -> None:
        """Give the shard up."""
        await self.pause()
        self._stop_tasks()
        if self._task is not None:
            self._task.cancel()

    @property
    def sources(self) -> list[TP]:
        """The partitions of underlying topics that the shard reads."""
        return self._inbox.sources

    def adopt(self, tp: TP, topic_id: str) -> int:
        """Read one more source partition; return the first offset: 0, unless the partition was known before."""
        self.topics.learn(tp.topic, topic_id)
        offset = self.topics.absent.pop(f"{tp.topic}:{tp.partition}", 0)
        self._inbox.adopt(tp, offset)
        self.machine.note_received(*tp)  # before its first records come, acknowledgments may name them (Q13)
        return offset

    async def log_begins(self, tp: TP, offset: int) -> None:
        """Note that Kafka has removed the records below an offset (C40, C80)."""
        await self._inbox.pass_markers(tp, offset)
        self._removed.begins(tp, offset)

    def log_is_deleted(self, tp: TP) -> None:
        """Note that a log was deleted (C42)."""
        self._removed.is_deleted(tp)

    def receive(self, tp: TP, records: Sequence[Any]) -> None:
        """Take a batch into the inbox."""
        if not self._stopped:
            self._early_stamps.look(tp, records)
            expected, first = self._inbox.received[tp], records[0].offset
            if 0 < expected < first and tp != self._inbox.commands:
                self._removed.note_gap(tp, expected, first)
            self._inbox.receive(tp, records)
            if tp != self._inbox.commands:
                self.machine.note_received(*tp)
                self._timeline.note_arrival(records[-1].timestamp)

    @property
    def merging(self) -> list[TP]:
        """Partitions that are not read up to their ends at take-over, as far as is known."""
        return self._inbox.merging

    def reached(self, tp: TP, offset: int) -> None:
        """Note that everything below `offset` was received; there may be transaction markers behind the last record."""
        self._inbox.reached(tp, offset)

    # The loop

    async def _run(self) -> None:
        try:
            while True:
                if not self._may_run.is_set():
                    await self._writing.end()
                self._rested = not (self._writing or self._more or self._news.is_set())
                if not self._writing:
                    self._idle.set()
                    if not self._more:
                        await self._news.wait()
                    await self._may_run.wait()
                    self._idle.clear()
                await self._turns.turn()
                self._news.clear()
                self._ticker.check()
                await self._step()
                if self.machine.stopped and not self._ahead:
                    await self._stop_for_good()
                    return
                await asyncio.sleep(_REST_S if self._more and not self._writer.wrote else 0)
        except asyncio.CancelledError:
            raise
        except Fenced as error:
            self._store.lose(self.partition, error)
            self._lose()
        except (*REFUSALS, SilentLog) as error:
            refused_shard.check(self._shown, await self._writing.settle())
            self._lose()
            refused_shard.begin(self._store, self.partition, error)
        except BaseException as error:  # noqa: BLE001  # crash-only: any error ends the process
            end_process(f"{self._shown}: {str(error) or type(error).__name__}", error)

    def _lose(self) -> None:
        """Stop: another worker has the shard, or Kafka refuses its writes. Steps that are not written are void."""
        self._stopped = True
        self._writing.abandon()
        self._stop_tasks()
        self._idle.set()

    def _stop_tasks(self) -> None:
        """Stop what runs beside the steps."""
        self._ticker.stop()
        self._arrival_gate.stop()
        self._removed.stop()
        self._deliveries.stop()
        if self.machine.rule is not None:
            self.machine.rule.stop()
        self.machine.retry.stop()
        self._inbox.close()

    async def _stop_for_good(self) -> None:
        """Stop writing, because the entity is deleted and its topics are about to be (C4)."""
        self._stopped = True
        self._ticker.stop()
        await self._writing.end()
        await self._deliveries.end()
        self._idle.set()
        self._inbox.close()
        self._on_stopped(self.partition)

    def _may_be_set_back(self) -> bool:
        """Whether messages must wait until the broker's clock is measured, since it was perhaps set back (C3).

        While nothing is due, nobody measures it. A message that comes then with an early stamp shows it, or is late.
        """
        if not self._ticker.may_measure:
            return False
        return self._inbox.begins_before(self.machine.instant_ms - STEP_MS) and self._ticker.measures()

    async def _step(self) -> None:
        machine, figures = self.machine, self.machine.figures
        began = time.monotonic()
        self._writer.wrote = False
        if not self._inbox.is_empty:
            await machine.under_way.ready()
        await self._pass_end_of_commands()
        machine.begin_step()
        self._ticker.follow_back()
        await machine.hand_on(self._write_letters)
        ahead, self._ahead = self._ahead, WorkAhead()
        if not ahead.taken:  # a replay takes in all messages of a step at once
            await self._deliveries.take_back(self._writing.end, BEGIN)
        taken = ahead.taken + await self._intake.messages(machine.step_records - ahead.taken)
        await self._work.go_on()
        taken += await self._intake.commands(2 * machine.step_records - taken)
        while (held_ms := self._inbox.held_ms) is not None and await self._arrival_gate.let_pass(held_ms):
            taken += await self._intake.commands(2 * machine.step_records - taken)
        self._inbox.fetch_caught_up(taken)
        await self._arrival_gate.let_pass(self._ticker.reached_ms)
        await self._deliveries.take_back(self._writing.end, BEHIND)
        await self._work.let_act(machine.step_turns - ahead.turns)
        self._ticker.arm()  # before the letters are written, so that both are on their way together
        self._more = False
        if self.topics.replaced:
            self._close_topics()
        elif self._has_caught_up():
            self._removed.report(self._clock.now_ms())
            if not (taken and ahead.delivered and self._work.to_deliver):
                await self._work.deliver(1 if taken else machine.delivery_turns)
                taken += await self._work.take_in_late(machine.step_records - taken)
            self._more = self._work.to_deliver or self._removed.is_left
        decided = self._work.end_delivering()
        effects = await machine.finish(self._write_letters, self._write_expired, self._note_ahead)
        if decided is not None:
            self._timeline.decided(began)
        await self._write(effects, self._intake.processed(), decided)
        self._more = (
            self._more
            or self._intake.has_commands
            or self._intake.has_messages(taken)
            or bool(self._ahead)
            or machine.unfinished is not None
            or self._ticker.has_due_work
            or self._arrival_gate.must_ask(self._ticker.reached_ms)
        )
        took_s = time.monotonic() - began
        figures.step_duration.add(took_s)
        machine.note_step_time(took_s)
        self._ticker.arm()

    async def _pass_end_of_commands(self) -> None:
        """Skip commands of the take-over that were removed, or end in transaction markers (C40)."""
        if not self._has_caught_up():
            await self._inbox.pass_markers(self._inbox.commands, self._catch_up)
            if not self._has_caught_up():
                asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, self._news.set)

    async def _write(self, effects: Effects, processed: dict[TP, int], decided: float | None) -> None:
        """Write the effects in their order.

        Meanwhile the machine works on the next step: it takes in messages first, then queries have a turn. If that step
        is full, or something is due, it is ended as well. Its effects up to the journal are then sent beside this
        journal. At most two steps are written at once. A shard that is not busy makes no task for the write.
        """
        machine = self.machine
        if effects.must_arrive:  # the next step may depend on the instant at which Kafka has them
            await self._writing.end()
        if effects.must_arrive or self._has_nothing_ahead:
            await self._effect(effects, processed, decided)
            await asyncio.sleep(0)  # with the turn between two steps enough for the deliveries to leave before the next
            return
        writing = await self._writing.begin(lambda before: self._effect(effects, processed, decided, before))
        for _ in range(_TURNS_TO_KAFKA):
            await asyncio.sleep(0)
        ahead = self._ahead
        ahead.taken = await self._intake.messages(machine.step_records, lambda: self._work.is_over(writing))
        if machine.acts_ahead:
            ahead.turns = await self._work.let_act(machine.step_turns, until=writing)
            if self._work.to_deliver and not self._work.is_over(writing):
                await self._work.deliver(machine.delivery_turns, until=writing)
                ahead.delivered = True
        is_full = ahead.taken >= machine.step_records or ahead.turns >= machine.step_turns
        if not (is_full or self._ticker.has_due_work):
            await self._writing.end()

    @property
    def _has_nothing_ahead(self) -> bool:
        """Whether the shard is not busy, and nothing waits that the next step could begin with."""
        waits = self._inbox.holds_messages or self._ticker.has_due_work
        return self._rested and not (self._writing or self.machine.acts_ahead or waits)

    async def _effect(
        self,
        effects: Effects,
        processed: dict[TP, int],
        decided: float | None,
        after: asyncio.Task[None] | None = None,
    ) -> None:
        await self._writer.write(effects, processed, decided, after)
        self._inbox.durable(processed)
        self._durable = processed
        if effects.counted_to >= 0 and self.machine.written(effects, self._clock.now_ms()):
            self._news.set()

    async def _send_letters(self, letters: Sequence[Output | Packed], beside: bool = False) -> dict[int, Refusal]:
        if not beside:
            await self._writing.end()  # its journal shows that this process still owns the shard
        return await self._writer.write_letters(letters)

    async def _note_ahead(self, items: Items) -> None:
        await self._writing.end()  # journals are written one by one
        await self._writer.note(items)

    def _write_letters(self, letters: Sequence[Output | Packed]) -> Awaitable[dict[int, Refusal]]:
        return asyncio.create_task(self._send_letters(letters))

    def _write_expired(
        self, letters: Sequence[Output | Packed], behind: Mapping[TP, int]
    ) -> Awaitable[dict[int, Refusal]]:
        """Write letters of expired messages beside the journal of the step before (C60); return those that are refused.

        After a crash the same ticks are in the log, and nothing is handed out before they are read. So these messages
        expire again, with the same letter ids. That requires their arrivals in the journal, because the instant of an
        arrival may come from the clock.
        """
        known = all(self._durable.get(tp, 0) >= offset for tp, offset in behind.items())
        return asyncio.create_task(self._send_letters(letters, beside=known))

    def _close_topics(self) -> None:
        """Close the state of topics that were deleted and created again (C42).

        A queue reads its waiting commands first, so that messages acknowledged in time do not count as lost (C1). A SOW
        topic's commands wait for its updates instead. No new message is taken in meanwhile.
        """
        machine = self.machine
        if machine.waits_for_ends or self._has_caught_up():
            if machine.replace(self.topics.replaced, self._clock.now_ms()):
                self.topics.settle(self.epoch)
            self._more = True

    def _has_caught_up(self) -> bool:
        """Return whether the commands that were in the log at take-over were processed."""
        return self._inbox.processed[self._inbox.commands] >= self._catch_up
