"""A runner: the task that owns one shard, from its inbox to its outputs.

The order of effects is the one that every guarantee rests on: dead letters and events, then the journal, then
deliveries, then the acknowledgment of the source offsets. Any failed write ends the process; recovery is the normal
path.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import orjson
from faust.types import TP

from lapse.core.lifetime import NEVER
from lapse.runtime.changelog import progress_key
from lapse.runtime.clock import BrokerClock
from lapse.runtime.letter_writer import LetterWriter, Refusal
from lapse.runtime.machine import Effects, Machine
from lapse.runtime.one_order import OneOrder
from lapse.runtime.payload import LogReader
from lapse.runtime.producer import TOO_LARGE, BatchProducer, Output
from lapse.runtime.store import Items, JournalStore
from lapse.runtime.topic_id import KnownTopics
from lapse.runtime.watch import Watch, end_process

logger = logging.getLogger(__name__)

TICK_KEY: Final = b"\x00tick"
_TICK_SPACING_S: Final = 0.005
_MEASURE_EVERY_S: Final = 1.0
_STEP_BYTES: Final = 1 << 18
"""A step that is so large takes no further commands: all its changes have to fit into one RecordBatch."""

_SATURATED_RECORDS: Final = 50_000
_LEAST_SATURATED_RECORDS: Final = 2_000


class Reader(Protocol):
    """What a runner asks of the consumer that feeds it."""

    def received(self, reader: object, tp: TP, offset: int) -> None:
        """A shard has, and wants to go on at, `offset`."""

    def finished(self, reader: object, offsets: Mapping[TP, int]) -> None:
        """What a shard has made durable: everything before these offsets."""

    def saturate(self, reader: object, tp: TP) -> None:
        """A shard cannot keep up with a partition."""

    def relieve(self, reader: object, tp: TP | None = None) -> None:
        """A shard has caught up, with one partition or with all."""

    def forget(self, reader: object) -> None:
        """A shard is given up."""

    async def next_offset(self, tp: TP) -> int:
        """What will be read next."""


class Runner:
    """Owns one shard.

    Args:
        entity: the queue or SOW topic.
        partition: the shard's partition.
        epoch: the reign.
        machine: the shard's state machine.
        store: keeps the journal.
        producer: writes the outputs.
        letters: writes the dead letters.
        reader: the consumer that feeds this runner.
        log: says where the logs end.
        clock: the broker's clock.
        watch: notices a frozen process.
        commands_topic: where this shard's commands and ticks stand.
        positions: next offset per source partition, as the journal says.
        catch_up: commands below it were in the log at take-over; nothing is delivered before they are read.
        topics: which topics the positions are about.
        merge_until: where the underlying partitions of a shard in one order ended at take-over.
        on_laid_down: told when the shard has written its last, because its entity is deleted.
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
        clock: BrokerClock,
        watch: Watch,
        commands_topic: str,
        positions: dict[TP, int],
        catch_up: int,
        topics: KnownTopics,
        merge_until: dict[TP, int] | None = None,
        on_laid_down: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.entity = entity
        self.partition = partition
        self.epoch = epoch
        self.machine = machine
        self._on_laid_down = on_laid_down
        self._store = store
        self._producer = producer
        self._letters = letters
        self._reader = reader
        self._log = log
        self._clock = clock
        self._watch = watch
        self._commands = TP(commands_topic, partition)
        self._received = dict(positions)
        self._processed = dict(positions)
        self._catch_up = catch_up
        self.topics = topics
        self._begins: dict[TP, int] = {}
        self._begun: dict[TP, int] = {}
        self._merge_until = dict(merge_until or {}) if machine.one_order else {}
        self._one_order = OneOrder()
        self._inbox: dict[TP, deque[Sequence[Any]]] = {tp: deque() for tp in positions}
        self._waiting = 0
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._may_run = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._tick_under_way = False
        self._last_tick_at = 0.0
        self._reached_ms = 0
        self._gate: tuple[int, dict[TP, int]] | None = None
        self._open_until = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._sent: deque[asyncio.Future[Any]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._journaled_at = 0.0
        self._more = False
        self._taken_ahead = self._turns_ahead = 0
        self._laid_down = False

    async def start(self) -> None:
        """Make the reign's beginning durable, and run."""
        since = {tp: self.topics.since(tp.topic) for tp in self.sources}
        self.machine.begin_topics(self.topics.replaced, {tp: epoch for tp, epoch in since.items() if epoch})
        began = self.machine.take_over(self._clock.now_ms())
        await self._store.commit(self.partition, self.epoch, began, [self._progress(self._processed)])
        self._journaled_at = time.monotonic()
        for tp, offset in self._received.items():
            self._reader.received(self, tp, offset)
        self._may_run.set()
        self._news.set()  # what expired while nothing ran is due now
        if self.machine.rule is not None:
            self.machine.rule.start(self._news.set)
        self.machine.retry.start(self._write_again, self._news.set)
        self._task = asyncio.create_task(self._run(), name=f"shard {self.entity}-{self.partition}")

    async def pause(self) -> None:
        """Finish the step that is under way and begin no other."""
        self._may_run.clear()
        await self._idle.wait()

    def resume(self) -> None:
        """Go on."""
        self._may_run.set()

    async def stop(self) -> None:
        """Give the shard up."""
        await self.pause()
        if self._timer is not None:
            self._timer.cancel()
        if self.machine.rule is not None:
            self.machine.rule.stop()
        self.machine.retry.stop()
        for task in [*self._tasks, *([self._task] if self._task else [])]:
            task.cancel()
        self._reader.forget(self)

    @property
    def sources(self) -> list[TP]:
        """The partitions of underlying topics that the shard reads."""
        return [tp for tp in self._received if tp != self._commands]

    def adopt(self, tp: TP, topic_id: str) -> None:
        """Read one more source partition, from its beginning on."""
        if self.topics.is_another(tp.topic, topic_id):
            end_process(
                f"{self.entity}, partition {self.partition}: topic {tp.topic} was deleted and created again; what is "
                "known of the old one is closed at the next start"
            )
        self.topics.learn(tp.topic, topic_id)
        self._received[tp] = self._processed[tp] = 0
        self._inbox[tp] = deque()

    def log_begins(self, tp: TP, offset: int) -> None:
        """Learn that Kafka has removed what stood below an offset (C40)."""
        if offset > self._begun.get(tp, 0):
            self._begins[tp] = self._begun[tp] = offset
            self._news.set()

    def receive(self, tp: TP, records: Sequence[Any]) -> None:
        """Take a batch into the inbox."""
        if self._laid_down:
            return
        expected = self._received[tp]
        if records[0].offset < expected:
            records = [record for record in records if record.offset >= expected]
            if not records:
                return
        self._received[tp] = records[-1].offset + 1
        self._reader.received(self, tp, self._received[tp])
        self._inbox[tp].append(records)
        self._waiting += len(records)
        if tp != self._commands and self._piled_up(tp) > self._room_for(tp):
            self._reader.saturate(self, tp)
        self._news.set()

    @property
    def merging(self) -> list[TP]:
        """Partitions that are not read to where they ended at take-over, as far as is known."""
        return list(self._merge_until)

    def reached(self, tp: TP, offset: int) -> None:
        """Note that everything below `offset` was received: behind the last record, markers may stand."""
        if self._merge_until.get(tp, NEVER) <= offset:
            del self._merge_until[tp]
            self._news.set()

    def _piled_up(self, tp: TP) -> int:
        """Records that wait: of all partitions; in one order of this one, for another may have to come first."""
        return sum(map(len, self._inbox[tp])) if self.machine.one_order else self._waiting

    def _room_for(self, tp: TP) -> int:
        """How many may wait before a partition is left out of the fetch."""
        if not self.machine.one_order:
            return _SATURATED_RECORDS
        return max(_SATURATED_RECORDS // (len(self._inbox) - 1), _LEAST_SATURATED_RECORDS)

    # The loop

    async def _run(self) -> None:
        try:
            while True:
                self._idle.set()
                if not self._more:
                    await self._news.wait()
                await self._may_run.wait()
                self._idle.clear()
                self._news.clear()
                await self._step()
                if self.machine.laid_down and not (self._taken_ahead or self._turns_ahead):
                    await self._lay_down()
                    return
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  # crash-only: whatever it is, the process ends
            end_process(f"{self.entity}, partition {self.partition}: {str(error) or type(error).__name__}", error)

    async def _lay_down(self) -> None:
        """Write nothing any more: the entity is deleted, and its topics are about to be (C4)."""
        self._laid_down = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        while self._sent:
            await self._sent.popleft()
        self._idle.set()
        self._reader.forget(self)
        self._on_laid_down(self.partition)

    async def _step(self) -> None:
        machine, figures = self.machine, self.machine.figures
        began = time.monotonic()
        ahead = machine.maintain()
        taken, self._taken_ahead = self._taken_ahead, 0
        taken += await self._take_in(machine.step_records - taken)
        if not machine.waits_for_ends or await self._open_gate():
            taken += self._take_commands(taken)
        self._relieve(taken)
        turns, self._turns_ahead = self._turns_ahead, 0
        await self._let_act(machine.step_turns - turns)
        self._more = False
        if self.topics.replaced:
            self._close_topics()
        elif self._processed[self._commands] >= self._catch_up:
            self._truncate()
            self._more = machine.deliver(self._clock.now_ms()) or bool(self._begins)
        effects = await machine.finish(self._write_letters)
        await self._write(effects, ahead, self._processed.copy())
        may_take = machine.room() and not self.topics.replaced
        left = any(
            batches
            for tp, batches in self._inbox.items()
            if (
                self._gate is None or not machine.waits_for_ends
                if tp == self._commands
                else may_take and (taken or not self._merge_until)
            )
        )
        self._more = (
            self._more
            or left
            or bool(self._taken_ahead or self._turns_ahead)
            or machine.next_due_ms() <= self._reached_ms
        )
        figures.step_duration.add(time.monotonic() - began)
        self._arm()

    async def _write(self, effects: Effects, ahead: Items, processed: dict[TP, int]) -> None:
        """Write the effects in their order; a machine that can goes on meanwhile, for the next step."""
        if not self.machine.takes_ahead:
            await self._effect(effects, ahead, processed)
            return
        writing = asyncio.create_task(self._effect(effects, ahead, processed))
        await asyncio.sleep(0)
        self._taken_ahead = await self._take_in(self.machine.step_records, until=writing)
        self._turns_ahead = await self._let_act(self.machine.step_turns, until=writing)
        await writing

    async def _effect(self, effects: Effects, ahead: Items, processed: dict[TP, int]) -> None:
        figures = self.machine.figures
        if effects.before:
            await self._confirm()
            for future in await self._producer.send(effects.before):
                await future
        if effects.journal or ahead or time.monotonic() - self._journaled_at > 1:
            self._watch.check()
            sent = time.monotonic()
            await self._store.commit(self.partition, self.epoch, ahead, [*effects.journal, self._progress(processed)])
            self._journaled_at = time.monotonic()
            figures.journaled(ahead)
            figures.journaled(effects.journal)
            timestamp_ms = self._store.last_timestamp_ms
            if timestamp_ms is not None:
                self._clock.measured(sent, self._journaled_at, timestamp_ms)
        if effects.after:
            await self._collect_sent()
            self._sent.extend(await self._producer.send(effects.after))
            while effects.must_arrive and self._sent:
                await self._sent_one()
        self._reader.finished(self, processed)

    async def _confirm(self) -> None:
        """Before something is written that cannot be undone: does the shard still belong to this process?"""
        self._watch.check()
        if time.monotonic() - self._journaled_at > self._watch.session_s / 2:
            await self._store.confirm(self.partition)

    async def _write_letters(self, letters: Sequence[Output]) -> dict[int, Refusal]:
        await self._confirm()
        return await self._letters.write(letters)

    async def _write_again(self, letters: Sequence[Output]) -> dict[int, Refusal]:
        # Beside the steps. A letter too many does no harm: it has the same id (D3).
        self._watch.check()
        return await self._letters.write(letters)

    async def _take_in(self, most: int, until: asyncio.Future[None] | None = None) -> int:
        """Hand messages to the machine; returns how many.

        Args:
            most: about so many.
            until: take no more once this is done, or the shard is to pause.
        """
        taken = 0
        while taken < most and not self.topics.replaced:
            if until is not None and (until.done() or not self._may_run.is_set()):
                break
            at_once = min(self.machine.most_at_once, most - taken)
            some = self._take_messages(at_once)
            taken += some
            if some < at_once:
                break
            if taken < most or until is not None:
                await asyncio.sleep(0)  # others have their turn, too
        return taken

    async def _let_act(self, most: int, until: asyncio.Future[None] | None = None) -> int:
        """Let happen what is due by the last tick that was read; returns how many turns it took.

        Args:
            most: turns.
            until: begin none once this is done, or the shard is to pause.
        """
        turns = 0
        while turns < most and self.machine.next_due_ms() <= self._reached_ms:
            if until is not None and (until.done() or not self._may_run.is_set()):
                break
            self.machine.advance(self._reached_ms)
            turns += 1
            if turns < most or until is not None:
                await asyncio.sleep(0)
        return turns

    def _close_topics(self) -> None:
        """Close what is known of topics that were created again (C42).

        Not before the commands that waited were read: what was acknowledged in time does not count as lost (C1). A SOW
        topic's commands wait for its updates instead, and nothing of it is lost. Nothing new is taken in meanwhile.
        """
        machine = self.machine
        if machine.waits_for_ends or self._processed[self._commands] >= self._catch_up:
            if machine.replace(self.topics.replaced, self._clock.now_ms()):
                self.topics.settle(self.epoch)
            self._more = True

    def _truncate(self) -> None:
        """Let go of what Kafka has removed (C40)."""
        now_ms = self._clock.now_ms()
        for tp, offset in list(self._begins.items()):
            if not self.machine.log_begins(tp, offset, now_ms):
                break
            del self._begins[tp]

    def _take_messages(self, most: int) -> int:
        """Hand messages to the machine, before the commands that may be about them; returns how many."""
        if self.machine.one_order:
            return self._take_merged(most)
        taken = 0
        for tp, batches in self._inbox.items():
            if tp == self._commands:
                continue
            while batches and taken < most:
                room = min(self.machine.room(), most - taken)
                if not room:
                    break
                records = batches.popleft()
                if len(records) > room:
                    batches.appendleft(records[room:])
                    records = records[:room]
                taken += len(records)
                self.machine.arrive(tp.topic, tp.partition, records)
                self._processed[tp] = records[-1].offset + 1
        return taken

    def _take_merged(self, most: int) -> int:
        """Hand messages of all partitions over in one order: timestamp, then topic, partition, offset (C33).

        At take-over a partition that is not read to where it ended then holds the later ones of the others back.
        """
        inbox = {tp: batches for tp, batches in self._inbox.items() if tp != self._commands}
        held = []
        for tp, end in list(self._merge_until.items()):
            if self._received.get(tp, end) >= end:
                del self._merge_until[tp]
            else:
                held.append(tp)
        taken = 0
        for tp, records in self._one_order.take(inbox, held, min(most, self.machine.room())):
            self.machine.arrive(tp.topic, tp.partition, records)
            self._processed[tp] = records[-1].offset + 1
            taken += len(records)
        return taken

    def _take_commands(self, before: int) -> int:
        """Hand commands and ticks to the machine, as many as a step has room for; returns how many."""
        commands = self._inbox[self._commands]
        gated = self.machine.waits_for_ends
        taken = 0
        while commands and before + taken < 2 * self.machine.step_records:
            if gated and commands[0][-1].offset >= self._open_until:
                break
            records = commands.popleft()
            for at, record in enumerate(records):
                if self.machine.step_bytes > _STEP_BYTES:
                    commands.appendleft(records[at:])
                    return taken
                if record.key == TICK_KEY:
                    self._ticked(record)
                else:
                    self.machine.command(record)
                taken += 1
                self._processed[self._commands] = record.offset + 1
        return taken

    def _relieve(self, taken: int) -> None:
        """Have partitions fetched again whose records no longer pile up here."""
        if taken:
            self._waiting -= taken
            if self.machine.one_order:
                for tp in self.sources:
                    if self._piled_up(tp) < self._room_for(tp) // 2:
                        self._reader.relieve(self, tp)
            elif self._waiting < _SATURATED_RECORDS // 2:
                self._reader.relieve(self)

    async def _collect_sent(self) -> None:
        """Wait for deliveries that were sent before; a failed one ends the process as any write does."""
        while self._sent and (self._sent[0].done() or len(self._sent) > 64):
            await self._sent_one()

    async def _sent_one(self) -> None:
        try:
            await self._sent.popleft()
        except TOO_LARGE as error:
            # It was alone in its batch. If it is a delivery, its lease ends, and it is tried again.
            logger.error(
                "%s, partition %d: a record for clients is larger than its topic takes: %s",
                self.entity,
                self.partition,
                error,
            )

    def _progress(self, processed: Mapping[TP, int]) -> tuple[bytes, bytes]:
        offsets = {f"{tp.topic}:{tp.partition}": offset for tp, offset in processed.items()}
        return progress_key(self.epoch), orjson.dumps({**offsets, **self.topics.facts})

    # Time

    def _ticked(self, record: Any) -> None:
        self._tick_under_way = False
        self._clock.seen(record.timestamp)
        self._reached_ms = max(self._reached_ms, record.timestamp)
        self.machine.figures.tick_lag.add(max(0, self._clock.now_ms() - record.timestamp) / 1000)

    async def _open_gate(self) -> bool:
        """Let commands and ticks through once everything is read that the logs held when they came (C1)."""
        underlying = [tp for tp in self._received if tp != self._commands]
        if self._gate is None:
            if not self._inbox[self._commands]:
                return False
            self._gate = (self._received[self._commands], await self._log.ends(underlying))
        until, ends = self._gate
        for tp in underlying:
            if self._processed[tp] < ends[tp]:
                behind = self._processed[tp] != self._received[tp]
                if behind or await self._reader.next_offset(tp) < ends[tp] or self._processed[tp] != self._received[tp]:
                    self._later(0.002, self._news.set)
                    return False
        self._gate = None
        self._open_until = until
        return True

    def _arm(self) -> None:
        """Have a tick sent when the next timer is due, or when the clock wants measuring."""
        if self._tick_under_way:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = self.machine.next_due_ms()
        if due_ms >= NEVER or due_ms <= self._reached_ms:
            return
        delay_s = min(self._clock.seconds_until(due_ms), _MEASURE_EVERY_S)
        spacing_s = self._last_tick_at + _TICK_SPACING_S - time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(max(delay_s, spacing_s, 0), self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = time.monotonic()
        due = self.machine.next_due_ms() <= self._clock.now_ms()
        fresh = self._clock.measured_at is not None and now - self._clock.measured_at < _MEASURE_EVERY_S
        if not due and fresh:
            self._arm()
            return
        self._tick_under_way = True
        self._last_tick_at = now
        task = asyncio.create_task(self._send_tick())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_tick(self) -> None:
        try:
            sent = time.monotonic()
            metadata = await self._producer.send_one(self._commands.topic, self.partition, TICK_KEY, b"")
            if metadata.timestamp_type == 1:
                self._clock.measured(sent, time.monotonic(), metadata.timestamp)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  # crash-only
            end_process(f"{self.entity}, partition {self.partition}: a tick could not be written: {error}", error)

    def _later(self, delay_s: float, call: Callable[[], Any]) -> None:
        asyncio.get_running_loop().call_later(delay_s, call)
