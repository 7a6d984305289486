"""The inbox of a shard: records that wait, and how far each source was received and processed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from lapse.core.error_code import ErrorCode, Refusal
from lapse.core.lifetime import NEVER
from lapse.protocol.tick import TICK_KEY
from lapse.runtime.kafka.read_record import UnreadRecord
from lapse.runtime.shard.deaths import STOPPED
from lapse.runtime.shard.machine import Machine
from lapse.runtime.shard.merged_order import MergedOrder
from lapse.runtime.shard.pause import Pauses
from lapse.runtime.shard.reader import Reader
from lapse.runtime.shard.saturation import Saturation
from lapse.runtime.shard.sweeps import Sweeps, earlier, sweeps
from lapse.runtime.shard.waiting_commands import WaitingCommands
from lapse.runtime.tp import TP

_STEP_BYTES: Final = 1 << 18
"""A step with more bytes of changes takes no further commands, since its changes must fit into one RecordBatch."""


class Inbox:
    """The records that wait for one shard.

    Args:
        reader: the consumer that fills the inbox.
        machine: takes the records.
        commands: the partition of the shard's commands and ticks.
        positions: next offset per source partition, from the journal.
        merge_until: the ends of the underlying partitions at take-over, for a shard in total order.
        on_news: called when records can be taken.
        pauses: says up to where to read after a pause of the process; None if pauses do not matter.
        catch_up: offset behind the commands that were in the log at take-over; None if messages wait for no command.

    Attributes:
        commands: the partition of the shard's commands and ticks.
        received: per source, the next offset that was not received yet.
        processed: per source, the next offset that the machine has not taken yet.
        held_ms: instant of the command that waits for messages before a scheduled one (C76), ms since 1970, or None.
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
        self._waiting_commands = WaitingCommands(
            lambda: reader.saturate(self, commands), lambda: reader.fetch_caught_up(self, commands), reader.waiting
        )
        self._awaited: tuple[int, dict[TP, int]] = (-1, {})
        """Offset of the command that waits for earlier messages, and what was received of each source when it began
        to wait."""
        self.held_ms: int | None = None
        self.received = dict(positions)
        self.processed = dict(positions)
        self._reader = reader
        self._machine = machine
        self._on_news = on_news
        self._batches: dict[TP, deque[Sequence[Any]]] = {tp: deque() for tp in sorted(positions)}
        self._unread: dict[TP, int] = {}
        """Per source, the offset of the last record without content that was received. Up to it, each is looked at."""
        self._saturation = Saturation(reader.waiting, self.processed, machine.merged_by_time)
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

    # Records from the consumer

    def open(self) -> None:
        """Tell the consumer from which offsets to read."""
        for tp, offset in self.received.items():
            self._reader.received(self, tp, offset)

    def close(self) -> None:
        """Stop receiving records."""
        if self._pauses is not None:
            self._pauses.stop()
        self._saturation.close()
        self._waiting_commands.close()
        self._reader.forget(self)

    def durable(self, offsets: Mapping[TP, int]) -> None:
        """Tell the consumer that everything before these offsets is durable."""
        self._reader.finished(self, offsets)

    def adopt(self, tp: TP, offset: int) -> None:
        """Add a source partition, read from an offset on."""
        self.received[tp] = self.processed[tp] = offset
        self._batches = dict(sorted({**self._batches, tp: deque()}.items()))

    def receive(self, tp: TP, records: Sequence[Any]) -> None:
        """Take a batch into the inbox, without records that were received before."""
        expected = self.received[tp]
        if records[0].offset < expected:
            records = [record for record in records if record.offset >= expected]
            if not records:
                return
        self.received[tp] = records[-1].offset + 1
        self._reader.received(self, tp, self.received[tp])
        self._batches[tp].append(records)
        if type(records[0]) is UnreadRecord:
            self._unread[tp] = records[-1].offset
        if tp != self.commands:
            self._saturation.add(tp, records)
            if self._saturation.is_reached(tp):
                self._reader.saturate(self, tp)
        elif self._sweeps is not None:
            self._sweeps.note(records)
            self._waiting_commands.add(records)
        self._on_news()

    def unread(self, tp: TP, end: int) -> tuple[int, int] | None:
        """Return first and last unprocessed offset below `end`; None if there are none, or nothing was read."""
        if tp not in self.processed:  # the entity no longer reads this topic
            return None
        first, batches = self.processed[tp], self._batches[tp]
        if not first and batches:
            first = batches[0][0].offset
        return (first, end - 1) if self.received[tp] > 0 and first < end else None

    async def pass_markers(self, tp: TP, end: int) -> None:
        """Count everything up to `end` as received if the consumer has read it, and as processed if nothing waits."""
        at = self.received.get(tp, 0)
        if tp != self.commands and (not at or self._batches[tp]):
            return
        if at < end and await self._reader.next_offset(tp) >= end and self.received[tp] == at:
            self.received[tp] = end  # only markers are there
            self._reader.received(self, tp, end)
        if self.received[tp] >= end and not self._batches[tp]:
            self.processed[tp] = max(self.processed[tp], end)

    def cut(self, tp: TP, offset: int) -> None:
        """Continue at an offset. Kafka has removed all records below it, so waiting records below it are dropped."""
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
        self._saturation.take(tp, dropped)
        self.fetch_caught_up(dropped)

    def reached(self, tp: TP, offset: int) -> None:
        """Note that everything below `offset` was received; there may be transaction markers behind the last record."""
        if self._merge_until.get(tp, NEVER) <= offset:
            del self._merge_until[tp]
            self._on_news()

    async def will_bring(self, tp: TP, end: int, to_ms: int = NEVER) -> bool:
        """Return whether something below `end` must still be read or taken in.

        Args:
            tp: its source.
            end: an offset.
            to_ms: do not count messages behind this instant that wait for commands, ms since the epoch.
        """
        if self.processed[tp] >= end:
            return False
        if self.withholds(tp) and (self._knows_sweep or self._instant(tp) > to_ms):
            return False  # messages behind a sweep come later
        if self.processed[tp] != self.received[tp]:
            return True
        return await self._reader.next_offset(tp) < end or self.processed[tp] != self.received[tp]

    # Input of the machine

    @property
    def is_empty(self) -> bool:
        """Whether no record waits."""
        return not any(self._batches.values())

    @property
    def holds_messages(self) -> bool:
        """Whether messages may be here, even if they must wait. With total order, that depends on other logs."""
        if self._machine.merged_by_time:
            return True
        return any(batches for tp, batches in self._batches.items() if tp != self.commands)

    @property
    def has_commands(self) -> bool:
        """Whether commands or ticks wait."""
        return bool(self._batches[self.commands])

    def has_messages(self, taken: int) -> bool:
        """Return whether messages wait that may be taken now; `taken` says how many this step has taken already."""
        if self._merge_until and not taken:
            return False
        waiting = [tp for tp, batches in self._batches.items() if batches and tp != self.commands]
        if self.until_ms < NEVER:
            waiting = [tp for tp in waiting if not self.withholds(tp)]
        return any(self._machine.room_for(tp.topic, tp.partition) for tp in waiting)

    def begins_before(self, instant_ms: int) -> bool:
        """Return whether a message waits that counts as of an earlier instant, ms since the epoch."""
        return any(
            batches and self._instant(tp) < instant_ms for tp, batches in self._batches.items() if tp != self.commands
        )

    def take_messages(self, most: int) -> int:
        """Hand messages to the machine, as many as it has room for; return how many."""
        self._waiting_commands.look(self._machine.waits_for_ends)
        may_clear = self._machine.unfinished is None
        taken = self._take_messages(most, self.until_ms)
        if may_clear and taken < most:
            self._swept = False
        return taken

    def _take_messages(self, most: int, until_ms: int) -> int:
        """Hand over messages that arrived up to an instant, ms since the epoch; return how many."""
        if self._machine.merged_by_time:
            return self._take_merged(most, until_ms)
        taken, ends = 0, dict[TP, int]()
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
                ends[tp] = self.processed[tp]
                if done < len(records):  # scheduled messages that came due took the room (C51)
                    batches.appendleft(records[done:])
                    break
        if taken and len(self.sources) > 1:
            self._machine.note_take(ends)
        return taken

    @property
    def until_ms(self) -> int:
        """The instant up to which messages may be taken in: messages behind a sweep wait for it (C1)."""
        if self._sweeps is None:
            return NEVER
        return self._sweeps.until_ms(self.received[self.commands], self.processed[self.commands])

    def _comes_too_early(self, record: Any, is_sweep: bool) -> bool:
        """Return whether a command is a sweep, or behind one, and earlier messages can be taken in first (C1).

        Messages that arrive while it waits do not count. Otherwise a producer with a slow clock would hold it back for
        ever.
        """
        if self._sweeps is None:
            return False
        offset, ends = self._awaited if self._awaited[0] == record.offset else (-1, self.received)
        are_here = any(
            batches
            and batches[0][0].offset < ends.get(tp, 0)
            and self._instant(tp) <= record.timestamp
            and self._machine.room_for(*tp)
            for tp, batches in self._batches.items()
            if tp != self.commands
        )
        if not are_here or not (is_sweep or self._swept or sweeps(record.value)):
            return False
        if offset != record.offset:
            self._awaited = record.offset, self.received.copy()
        return True

    def _instant(self, tp: TP) -> int:
        """Return the instant as of which the first waiting message of a source counts, ms since the epoch."""
        first = self._batches[tp][0][0]
        return self._merged_by_time.instant(tp, first) if self._machine.merged_by_time else int(first.timestamp)

    @property
    def _knows_sweep(self) -> bool:
        """Whether a sweep was received and waits."""
        return self._sweeps is not None and self.until_ms < NEVER and self._sweeps.any

    def withholds(self, tp: TP) -> bool:
        """Return whether messages of a source are here, but must wait for a sweep."""
        return bool(self._batches[tp]) and self._instant(tp) > self.until_ms

    def _hand_over(self, tp: TP, records: Sequence[Any]) -> int:
        """Hand messages to the machine; return how many of them it took."""
        if done := self._offer(tp, records):
            self._saturation.take(tp, done)
            self.processed[tp] = records[done - 1].offset + 1
        return done

    def _offer(self, tp: TP, records: Sequence[Any]) -> int:
        """Hand messages over, one by one if some may have stopped the worker; return how many the machine took."""
        machine, (topic, partition) = self._machine, tp
        under_way, first, last = machine.under_way, records[0].offset, records[-1].offset
        if first > self._unread.get(tp, -1) and not under_way.is_suspect(topic, partition, first, last):
            with under_way.noted(topic, partition, first, last):
                return machine.arrive(topic, partition, records)
        for at, record in enumerate(records):
            with under_way.noted(topic, partition, record.offset, record.offset):
                if isinstance(record, UnreadRecord):
                    machine.set_aside(topic, partition, record, record.why)
                elif under_way.is_set_aside(topic, partition, record.offset):
                    machine.set_aside(topic, partition, record, STOPPED)
                elif not machine.arrive(topic, partition, [record]):
                    return at
        return len(records)

    def take_commands(self, most: int, below: int | None, ticked: Callable[[Any], None], take_all: bool = False) -> int:
        """Hand commands to the machine, as many as a step has room for; return how many, ticks included.

        Args:
            most: about how many at most.
            below: take only batches that end below this offset; None for all.
            ticked: called with each tick.
            take_all: carry out sweeps without waiting for earlier messages, because none can be taken in now.
        """
        self._waiting_commands.look(self._machine.waits_for_ends)
        batches, taken = self._batches[self.commands], 0
        self.held_ms = None
        may_wait = not take_all and any(some for tp, some in self._batches.items() if tp != self.commands)
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
                    if may_wait and self._comes_too_early(record, is_sweep):
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
                    self._waiting_commands.done(record)
        return taken

    def _command(self, record: Any) -> None:
        """Hand a command to the machine; a command that stopped the worker repeatedly is refused."""
        under_way, name = self._machine.under_way, (*self.commands, record.offset)
        if not under_way.is_set_aside(*name):
            self._machine.command(record)
        elif not under_way.is_hopeless(*name):
            self._machine.command(record, Refusal(ErrorCode.STOPPED_WORKER, STOPPED))

    def fetch_caught_up(self, taken: int) -> None:
        """Fetch partitions again if few messages are left, after `taken` records were taken; commands may need them."""
        self._waiting_commands.look(self._machine.waits_for_ends)
        if taken and self._machine.merged_by_time:
            for tp in self.sources:
                if self._saturation.is_over(tp):
                    self._reader.fetch_caught_up(self, tp)
        elif taken and self._saturation.is_over():
            self._reader.fetch_caught_up(self)
            self._waiting_commands.stay()

    def _take_merged(self, most: int, until_ms: int) -> int:
        """Hand over messages by timestamp, then by topic, partition and offset (C33); return how many.

        A partition that is not read yet up to its end at take-over, or after a pause, holds back later messages of the
        others.
        """
        ended = {} if self._pauses is None else self._pauses.ends(lambda: self.sources, self._on_news)
        if ended is None:
            return 0
        self._merge_until |= {tp: end for tp, end in ended.items() if tp in self.received}
        batches = {tp: some for tp, some in self._batches.items() if tp != self.commands}
        taken, held, ends = 0, list[TP](), dict[TP, int]()
        for tp, end in list(self._merge_until.items()):
            if self.received.get(tp, end) >= end:
                del self._merge_until[tp]
            else:
                held.append(tp)
        while taken < most and (room := self._machine.room()):
            before, limit = taken, min(most - taken, room)
            runs = self._merged_by_time.take(batches, held, limit, until_ms)
            for at, (tp, records) in enumerate(runs):
                done = self._hand_over(tp, records)
                taken += done
                ends[tp] = self.processed[tp]
                if done < len(records):  # scheduled messages that came due took the room (C51)
                    self._merged_by_time.put_back(batches, runs[: at + 1], done, runs[at:])
                    break
            if taken - before < limit:
                break
        if taken:
            self._machine.note_take(ends)
        return taken
