"""An inbox: records that wait for a shard, and how far each source was read and taken in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from lapse.core.error_code import ErrorCode, Refusal
from lapse.core.lifetime import NEVER
from lapse.protocol.tick import TICK_KEY
from lapse.runtime.shard.deaths import STOPPED
from lapse.runtime.shard.machine import Machine
from lapse.runtime.shard.merged_order import MergedOrder
from lapse.runtime.shard.pause import Pauses
from lapse.runtime.shard.sweeps import Sweeps, earlier
from lapse.runtime.tp import TP

_STEP_BYTES: Final = 1 << 18
"""A step that is so large takes no further commands: all its changes have to fit into one RecordBatch."""

_SATURATED_RECORDS: Final = 50_000
_LEAST_SATURATED_RECORDS: Final = 2_000


class Reader(Protocol):
    """The consumer that fills an inbox, as the inbox uses it."""

    def received(self, reader: object, tp: TP, offset: int) -> None:
        """A shard has received everything below `offset`, and wants to read on from there."""

    def finished(self, reader: object, offsets: Mapping[TP, int]) -> None:
        """A shard has made everything before these offsets durable."""

    def saturate(self, reader: object, tp: TP) -> None:
        """A shard cannot keep up with a partition."""

    def relieve(self, reader: object, tp: TP | None = None) -> None:
        """A shard has caught up, with one partition or with all."""

    def forget(self, reader: object) -> None:
        """A shard is given up."""

    async def next_offset(self, tp: TP) -> int:
        """What will be read next."""


class Inbox:
    """The records that wait for one shard.

    Args:
        reader: the consumer that fills it.
        machine: takes the records.
        commands: the partition of the shard's commands and ticks.
        positions: next offset per source partition, as the journal says.
        merge_until: where the underlying partitions of a shard in one order ended at take-over.
        on_news: called when there is something to take.
        pauses: says what has to be read first after a pause of the process; None = pauses are not noticed.
        catch_up: offset behind the commands that were in the log at take-over; None = messages wait for no command.

    Attributes:
        commands: the partition of the shard's commands and ticks.
        received: per source, the next offset that is not here yet.
        processed: per source, the next offset that the machine has not got yet.
        held_ms: instant of the command that waits for earlier messages than a scheduled one (C76), ms since the epoch;
            None = no command waits.
    """

    def __init__(
        self,
        reader: Reader,
        machine: Machine,
        commands: TP,
        positions: Mapping[TP, int],
        merge_until: Mapping[TP, int] | None,
        on_news: Callable[[], None],
        pauses: Pauses | None = None,
        catch_up: int | None = None,
    ) -> None:
        self.commands = commands
        self._sweeps = None if catch_up is None or machine.waits_for_updates else Sweeps(catch_up)
        self._swept = False
        """Whether a sweep was carried out, and messages behind it may still have to be taken in."""
        self.held_ms: int | None = None
        self.received = dict(positions)
        self.processed = dict(positions)
        self._reader = reader
        self._machine = machine
        self._on_news = on_news
        self._batches: dict[TP, deque[Sequence[Any]]] = {tp: deque() for tp in positions}
        self._waiting = 0
        self._merge_until = dict(merge_until or {}) if machine.merged_by_time else {}
        self._merged_by_time = MergedOrder()
        self._pauses = pauses

    @property
    def sources(self) -> list[TP]:
        """The partitions of underlying topics."""
        return [tp for tp in self.received if tp != self.commands]

    @property
    def merging(self) -> list[TP]:
        """Partitions that are not read yet up to their ends at take-over, or after a pause."""
        return list(self._merge_until)

    # What the consumer brings

    def open(self) -> None:
        """Tell the consumer where to read on."""
        for tp, offset in self.received.items():
            self._reader.received(self, tp, offset)

    def close(self) -> None:
        """Ask for no more records."""
        if self._pauses is not None:
            self._pauses.stop()
        self._reader.forget(self)

    def durable(self, offsets: Mapping[TP, int]) -> None:
        """Tell the consumer that everything before these offsets is durable."""
        self._reader.finished(self, offsets)

    def adopt(self, tp: TP, offset: int) -> None:
        """Take in one more source partition from an offset on."""
        self.received[tp] = self.processed[tp] = offset
        self._batches[tp] = deque()

    def receive(self, tp: TP, records: Sequence[Any]) -> None:
        """Take in a batch, without records that were received before."""
        expected = self.received[tp]
        if records[0].offset < expected:
            records = [record for record in records if record.offset >= expected]
            if not records:
                return
        self.received[tp] = records[-1].offset + 1
        self._reader.received(self, tp, self.received[tp])
        self._batches[tp].append(records)
        self._waiting += len(records)
        if tp == self.commands and self._sweeps is not None:
            self._sweeps.note(records)
        if tp != self.commands and self._piled_up(tp) > self._room_for(tp):
            self._reader.saturate(self, tp)
        self._on_news()

    def unread(self, tp: TP, end: int) -> tuple[int, int] | None:
        """First and last offset below `end` that the machine has not got; None = none, or nothing was read yet."""
        if tp not in self.processed:  # the entity no longer reads this topic
            return None
        first, batches = self.processed[tp], self._batches[tp]
        if not first and batches:
            first = batches[0][0].offset
        return (first, end - 1) if self.received[tp] > 0 and first < end else None

    async def pass_markers(self, tp: TP, end: int) -> None:
        """Count everything up to `end` as read, if the consumer has read it.

        Behind the last record there are only markers of transactions, so no message is missed if Kafka removes them.
        """
        at = self.received.get(tp, 0)
        if not (at > 0 or tp == self.commands) or at >= end or self._batches[tp]:
            return
        if await self._reader.next_offset(tp) >= end and self.received[tp] == at:
            self.received[tp] = self.processed[tp] = end
            self._reader.received(self, tp, end)

    def cut(self, tp: TP, offset: int) -> None:
        """Continue at an offset. Kafka has removed all records below it, so those that wait here are dropped."""
        batches, dropped = self._batches[tp], 0
        while batches and batches[0][0].offset < offset:
            records = batches.popleft()
            left = [record for record in records if record.offset >= offset]
            dropped += len(records) - len(left)
            if left:
                batches.appendleft(left)
        self.processed[tp] = offset
        if self.received[tp] < offset:
            self.received[tp] = offset
            self._reader.received(self, tp, offset)
        self.relieve(dropped)

    def reached(self, tp: TP, offset: int) -> None:
        """Note that everything below `offset` was received; there may be markers behind the last record."""
        if self._merge_until.get(tp, NEVER) <= offset:
            del self._merge_until[tp]
            self._on_news()

    async def will_bring(self, tp: TP, end: int, to_ms: int = NEVER) -> bool:
        """Whether something below `end` has still to be read, or taken in.

        Args:
            tp: its source.
            end: an offset.
            to_ms: messages that wait for commands and arrived behind this instant do not count, ms since the epoch.
        """
        if self.processed[tp] >= end:
            return False
        if self.withholds(tp) and (self._knows_sweep or self._instant(tp) > to_ms):
            return False  # what waits for a sweep is waited for behind it
        if self.processed[tp] != self.received[tp]:
            return True
        return await self._reader.next_offset(tp) < end or self.processed[tp] != self.received[tp]

    # What the shard takes

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not any(self._batches.values())

    @property
    def holds_messages(self) -> bool:
        """Whether messages may be here, though they may have to wait; in one order that depends on other logs."""
        if self._machine.merged_by_time:
            return True
        return any(batches for tp, batches in self._batches.items() if tp != self.commands)

    @property
    def has_commands(self) -> bool:
        """Whether commands or ticks wait."""
        return bool(self._batches[self.commands])

    def has_messages(self, taken: int) -> bool:
        """Whether messages wait that may be taken now; `taken` = how many this step has taken already."""
        if self._merge_until and not taken:
            return False
        waiting = [tp for tp, batches in self._batches.items() if batches and tp != self.commands]
        if self.until_ms < NEVER:
            waiting = [tp for tp in waiting if not self.withholds(tp)]
        return any(self._machine.room_for(tp.topic, tp.partition) for tp in waiting)

    def take_messages(self, most: int) -> int:
        """Hand messages to the machine, as many as it has room for; returns how many."""
        may_clear = self._machine.unfinished is None
        taken = self._take_messages(most, self.until_ms)
        if may_clear and taken < most:
            self._swept = False
        return taken

    def _take_messages(self, most: int, until_ms: int) -> int:
        """The same, as far as they arrived up to an instant, ms since the epoch."""
        if self._machine.merged_by_time:
            return self._take_merged(most, until_ms)
        taken = 0
        for tp, batches in self._batches.items():
            if tp == self.commands:
                continue
            while batches and taken < most:
                room = min(self._machine.room_for(tp.topic, tp.partition), most - taken)
                if until_ms < NEVER:
                    room = min(room, earlier(batches[0], until_ms))
                if not room:
                    break
                records = batches.popleft()
                if len(records) > room:
                    batches.appendleft(records[room:])
                    records = records[:room]
                done = self._hand_over(tp, records)
                taken += done
                if done < len(records):  # messages that came due took the room (C51)
                    batches.appendleft(records[done:])
                    break
        return taken

    @property
    def until_ms(self) -> int:
        """Up to which instant messages may be taken in: what arrived behind a sweep waits for it (C1)."""
        if self._sweeps is None:
            return NEVER
        return self._sweeps.until_ms(self.received[self.commands], self.processed[self.commands])

    def _are_earlier_here(self, at_ms: int) -> bool:
        """Whether messages are here that arrived up to an instant, and can be taken in (C1)."""
        return any(
            batches and self._instant(tp) <= at_ms and self._machine.room_for(*tp)
            for tp, batches in self._batches.items()
            if tp != self.commands
        )

    def _instant(self, tp: TP) -> int:
        """As of when the first message counts that is here of a source, ms since the epoch."""
        first = self._batches[tp][0][0]
        return self._merged_by_time.instant(tp, first) if self._machine.merged_by_time else int(first.timestamp)

    @property
    def _knows_sweep(self) -> bool:
        """Whether a sweep waits that is here."""
        return 0 <= self.until_ms < NEVER

    def withholds(self, tp: TP) -> bool:
        """Whether messages of a source are here, and have to wait for a sweep."""
        return bool(self._batches[tp]) and self._instant(tp) > self.until_ms

    def _hand_over(self, tp: TP, records: Sequence[Any]) -> int:
        """Hand messages to the machine; returns how many of them it took."""
        done = self._offer(tp, records)
        if done:
            self.processed[tp] = records[done - 1].offset + 1
        return done

    def _offer(self, tp: TP, records: Sequence[Any]) -> int:
        """Hand messages over, noted as under way; one by one if some of them may have stopped the worker."""
        machine, (topic, partition) = self._machine, tp
        under_way, first, last = machine.under_way, records[0].offset, records[-1].offset
        if not under_way.is_suspect(topic, partition, first, last):
            with under_way.noted(topic, partition, first, last):
                return machine.arrive(topic, partition, records)
        for at, record in enumerate(records):
            with under_way.noted(topic, partition, record.offset, record.offset):
                if under_way.is_set_aside(topic, partition, record.offset):
                    machine.set_aside(topic, partition, record, STOPPED)
                elif not machine.arrive(topic, partition, [record]):
                    return at
        return len(records)

    def take_commands(self, most: int, below: int | None, ticked: Callable[[Any], None], take_all: bool = False) -> int:
        """Hand commands to the machine, as many as a step has room for; returns how many, ticks included.

        Args:
            most: about how many.
            below: only batches that end below this offset; None = all.
            ticked: gets the ticks.
            take_all: whether sweeps do not wait for earlier messages, as while none can be taken in.
        """
        batches = self._batches[self.commands]
        taken = 0
        self.held_ms = None
        while batches and taken < most:
            if below is not None and batches[0][-1].offset >= below:
                break
            records = batches.popleft()
            first, last = records[0].offset, records[-1].offset
            if first < last and self._machine.under_way.is_suspect(*self.commands, first, last):
                batches.extendleft([record] for record in reversed(records))
                continue
            with self._machine.under_way.noted(*self.commands, first, last):
                for at, record in enumerate(records):
                    if self._machine.step_bytes > _STEP_BYTES or self._machine.unfinished is not None:
                        batches.appendleft(records[at:])
                        return taken
                    is_sweep = self._sweeps is not None and self._sweeps.is_next(record.offset)
                    if (is_sweep or self._swept) and not take_all and self._are_earlier_here(record.timestamp):
                        batches.appendleft(records[at:])
                        return taken
                    if record.key == TICK_KEY:
                        ticked(record)
                    elif self._machine.waits_for_arrivals(record.timestamp):
                        self.held_ms = record.timestamp
                        batches.appendleft(records[at:])
                        return taken
                    else:
                        self._command(record)
                    taken += 1
                    self._swept |= is_sweep
                    self.processed[self.commands] = record.offset + 1
        return taken

    def _command(self, record: Any) -> None:
        """Hand a command to the machine; a command that stopped the worker repeatedly is refused."""
        under_way, name = self._machine.under_way, (*self.commands, record.offset)
        if not under_way.is_set_aside(*name):
            self._machine.command(record)
        elif not under_way.is_hopeless(*name):
            self._machine.command(record, Refusal(ErrorCode.STOPPED_WORKER, STOPPED))

    def relieve(self, taken: int) -> None:
        """Fetch partitions again if few of their records wait, after `taken` were taken."""
        if not taken:
            return
        self._waiting -= taken
        if self._machine.merged_by_time:
            for tp in self.sources:
                if self._piled_up(tp) < self._room_for(tp) // 2:
                    self._reader.relieve(self, tp)
        elif self._waiting < _SATURATED_RECORDS // 2:
            self._reader.relieve(self)

    def _take_merged(self, most: int, until_ms: int) -> int:
        """Hand over messages of all partitions by timestamp, then by topic, partition and offset (C33).

        A partition that is not read yet up to its end at take-over, or after a pause of the process, holds back later
        messages of the others.
        """
        ended = {} if self._pauses is None else self._pauses.ends(lambda: self.sources, self._on_news)
        if ended is None:
            return 0
        self._merge_until |= {tp: end for tp, end in ended.items() if tp in self.received}
        batches = {tp: some for tp, some in self._batches.items() if tp != self.commands}
        held = []
        for tp, end in list(self._merge_until.items()):
            if self.received.get(tp, end) >= end:
                del self._merge_until[tp]
            else:
                held.append(tp)
        taken = 0
        ends: dict[TP, int] = {}
        while taken < most and (room := self._machine.room()):
            before, limit = taken, min(most - taken, room)
            runs = self._merged_by_time.take(batches, held, limit, until_ms)
            for at, (tp, records) in enumerate(runs):
                done = self._hand_over(tp, records)
                taken += done
                ends[tp] = self.processed[tp]
                if done < len(records):  # messages that came due took the room (C51)
                    self._merged_by_time.put_back(batches, runs[: at + 1], done, runs[at:])
                    break
            if taken - before < limit:
                break
        if taken:
            self._machine.took_together(ends)
        return taken

    def _piled_up(self, tp: TP) -> int:
        """How many records wait, of all partitions; of this one if partitions are merged by time."""
        return sum(map(len, self._batches[tp])) if self._machine.merged_by_time else self._waiting

    def _room_for(self, tp: TP) -> int:
        """How many may wait before a partition is left out of the fetch."""
        if not self._machine.merged_by_time:
            return _SATURATED_RECORDS
        return max(_SATURATED_RECORDS // (len(self._batches) - 1), _LEAST_SATURATED_RECORDS)
