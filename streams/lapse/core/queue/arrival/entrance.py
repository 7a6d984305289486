"""The entrance of a shard: records of underlying topics become messages with places (L1 to L8, L12, Q13)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from lapse.core.lifetime import NEVER
from lapse.core.queue.arrival.arrival import Arrivals, classify_records, transfer_of
from lapse.core.queue.arrival.repeats import find_repeats, without_offsets
from lapse.core.queue.arrival.source import Source
from lapse.core.queue.arrival.target_depth import UNLIMITED, TargetDepth
from lapse.core.queue.arrival.trait import NONE, Traits
from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.decision import Decisions
from lapse.core.queue.inquiry.view import RecordView, RowViews
from lapse.core.queue.life.message_state import State
from lapse.core.queue.life.table import Guard, Row, Trigger, route
from lapse.core.queue.schedule.schedule import Schedule
from lapse.core.queue.step import Messages, Step
from lapse.core.reason import Reason, unconfirmed
from lapse.core.record import Record
from lapse.core.rows import Rows
from lapse.core.shard.event import ShardEvent

_UNREAD: Final = State.UNREAD  # a look-up in the enumeration takes five times as long


class Entrance:
    """Takes records in: reads their lifetimes and traits, leaves out repeats, gives places, schedules or refuses.

    Attributes:
        placed: how many scheduled messages have got places so far because later records arrived.
    """

    def __init__(self, decisions: Decisions, schedule: Schedule, target_depth: TargetDepth) -> None:
        self._decisions = decisions
        self._schedule = schedule
        self._target_depth = target_depth
        self._state = decisions.state
        self._settings = decisions.settings
        self._has_traits = decisions.settings.traits.is_needed
        self._matching = decisions.matching
        self._visible = route(Trigger.ARRIVE, Guard.VISIBLE)
        self.placed = 0

    def arrive(
        self,
        topic: str,
        partition: int,
        records: Sequence[Record],
        step: Step,
        now_ms: int = 0,
        most: int = UNLIMITED,
    ) -> int:
        """Take in records of an underlying topic, in the order of their offsets.

        Records that were seen before are skipped, so reading again after a crash changes nothing. A scheduled message
        that is due gets its place before records with a timestamp at or after its instant, however late these are
        read (C76). If due messages fill the target depth, or more than `most` are due, the other records wait
        (C51, C60). Return the number of records taken.

        Args:
            topic: the underlying topic.
            partition: its partition.
            records: the next records of its log.
            step: receives the decisions.
            now_ms: the broker's clock, ms since the epoch. A record with a later timestamp counts as of it, but its
                lifetime still counts from its timestamp (C6). 0 = no timestamp is later.
            most: the most due messages that get places.
        """
        number = self._state.sources.number(topic, partition)
        source = self._state.sources[number]
        source.is_read = True
        if not records or records[-1].offset < source.next_offset:
            return len(records)
        given, placed = len(records), self.placed
        if records[0].offset < source.next_offset:
            records = [record for record in records if record.offset >= source.next_offset]
        while records:
            due_ms, stop = self._schedule.next_place_ms(), len(records)
            room = self._target_depth.room_for(topic, partition) if self._target_depth.bounded else UNLIMITED
            if due_ms <= now_ms:
                stop = _index_at_or_after(records, due_ms)
                if not stop and (free := self._target_depth.room()):
                    if self.placed - placed >= most:
                        break
                    until_ms, left = min(records[0].timestamp, now_ms), most + placed - self.placed
                    self.placed += self._schedule.materialise(until_ms, free, step, left)
                    continue
                stop = stop or len(records)  # a transfer wants one of the records, which may pass held messages
            if not room:
                break
            if room < stop:
                stop = room
            part = records if stop == len(records) else records[:stop]
            arrivals: Arrivals | None = self._classify(topic, part, now_ms)
            if arrivals and arrivals.scheduled and (cut := _first_index_after_due(part, arrivals, now_ms)) < stop:
                stop, part, arrivals = cut, records[:cut], None
            self._take_in(number, topic, partition, part, arrivals, step, now_ms)
            records = records[stop:]
        return given - len(records)

    def _take_in(
        self,
        number: int,
        topic: str,
        partition: int,
        records: Sequence[Record],
        arrivals: Arrivals | None,
        step: Step,
        now_ms: int,
    ) -> None:
        """Take in records among which no scheduled message comes due; `arrivals` is None if not sorted out yet."""
        source = self._state.sources[number]
        behind = records[-1].offset + 1
        done = self._honour(Trigger.ARRIVE, number, behind, step) if self._state.remembered else set()
        if arrivals is None:
            arrivals = self._classify(topic, records, now_ms)
        if self._settings.dedup_window_ms:
            clock_ms = now_ms or NEVER
            self._state.repeats.reach(number, records[-1].timestamp, clock_ms)
            if arrivals.identified or self._state.repeats.chunks:
                arrivals = self._drop_repeats(number, clock_ms, arrivals, step, done)
        arrivals = without_offsets(arrivals, done) if done else arrivals
        self._enter(number, arrivals, self._views(topic, partition, records, arrivals.offsets), step)
        if arrivals.scheduled:
            self._schedule_arrivals(number, records, arrivals, step, now_ms)
        if arrivals.invalid or arrivals.expired:
            self._refuse_arrivals(number, records, arrivals, step, now_ms)
        if source.next_offset < behind:
            source.next_offset = behind

    def _classify(self, topic: str, records: Sequence[Record], now_ms: int) -> Arrivals:
        expiration = self._settings.expiration_of(topic)
        return classify_records(records, self._settings.name, expiration, now_ms or NEVER)

    def _schedule_arrivals(
        self, number: int, records: Sequence[Record], arrivals: Arrivals, step: Step, now_ms: int
    ) -> None:
        """Schedule the messages that are not visible yet."""
        source = self._state.sources[number]
        scheduled = [one.offset for one in arrivals.scheduled]
        views = self._views(source.topic, source.partition, records, scheduled)
        traits = arrivals.with_retry_delays(self._traits(views), scheduled)
        for at, (offset, at_ms, deadline_ms, transfer, counts) in enumerate(arrivals.scheduled):
            of_one = traits if traits is NONE else traits.slice(at, at + 1)
            if transfer:
                facts = {"transfer": transfer, "then_ms": at_ms, "in_transfer": False}
                row = route(Trigger.ARRIVE, Guard.FROM_TRANSFER).row(State.UNREAD)
                of_one = of_one.as_handed_over()
                self._schedule.add(row, number, offset, NEVER, deadline_ms, of_one, step, facts, counts)
            else:
                row = route(Trigger.ARRIVE, Guard.LATER).row(State.UNREAD)
                self._schedule.add(row, number, offset, at_ms, deadline_ms, of_one, step)
        self._record_scheduled_events(source, arrivals, min(records[-1].timestamp, now_ms or NEVER), step)

    def bring_back(
        self, number: int, arrivals: Arrivals, records: Mapping[int, Record], why: str, now_ms: int, step: Step
    ) -> None:
        """Bring back messages that have left, as new messages at their positions. The target depth may hold some (Q22).

        Args:
            number: number of their source.
            arrivals: the messages sorted out; its offsets are positions.
            records: by position, the record in the log.
            why: id of the rewind.
            now_ms: the instant of the rewind, ms since the epoch, at which they take their places (C63).
            step: receives the decisions.
        """
        source = self._state.sources[number]
        along = [route(Trigger.REWIND, guard).row(State.UNREAD) for guard in (Guard.ROOM, Guard.NO_ROOM, Guard.LATER)]
        planned = {one.offset: one for one in arrivals.scheduled}
        at_once = sorted(
            [
                *zip(arrivals.offsets, arrivals.deadlines_ms, strict=True),
                *((one.offset, one.deadline_ms) for one in arrivals.scheduled if one.at_ms <= now_ms),
            ]
        )
        room = 0 if self._state.scheduled.held else self._target_depth.room()
        entering = replace(
            arrivals, offsets=[one[0] for one in at_once[:room]], deadlines_ms=[one[1] for one in at_once[:room]]
        )
        views = self._rewound_views(source, records, entering.offsets)
        self._enter(number, entering, views, step, along[0])
        later = [(along[1], offset, now_ms, deadline_ms, {"held": True}) for offset, deadline_ms in at_once[room:]]
        later += [
            (along[2], one.offset, one.at_ms, one.deadline_ms, {}) for one in planned.values() if one.at_ms > now_ms
        ]
        traits = arrivals.with_retry_delays(
            self._traits(self._rewound_views(source, records, [one[1] for one in later])), [one[1] for one in later]
        )
        for at, (row, offset, at_ms, deadline_ms, facts) in enumerate(later):
            of_one = traits if traits is NONE else traits.slice(at, at + 1)
            self._schedule.add(row, number, offset, at_ms, deadline_ms, of_one, step, facts)
        positions = np.array(sorted((*entering.offsets, *(one[1] for one in later))), np.int64)
        deadlines = dict(at_once) | {one.offset: one.deadline_ms for one in planned.values()}
        deadlines_ms = np.array([deadlines[position] for position in positions.tolist()], np.int64)
        none_yet = np.zeros(len(positions), np.uint32)
        messages = Messages(source.topic, source.partition, positions, deadlines_ms, none_yet, None)
        step.events.append(ShardEvent(along[0].event, now_ms, messages, detail=why))

    def _rewound_views(
        self, source: Source, records: Mapping[int, Record], positions: Iterable[int]
    ) -> list[RecordView]:
        """Return the messages of a rewind as expressions see them; nothing if no expression needs them."""
        if not self._settings.traits.is_needed and not self._matching.active:
            return []
        parse = self._settings.parse
        return [RecordView(source.topic, source.partition, records[position], parse) for position in positions]

    def set_aside(self, topic: str, partition: int, record: Record, why: str, step: Step) -> None:
        """See `QueueShard.set_aside`."""
        number = self._state.sources.number(topic, partition)
        source = self._state.sources[number]
        source.is_read = True
        if record.offset < source.next_offset:
            return
        done = self._honour(Trigger.SPOIL, number, record.offset + 1, step) if self._state.remembered else set()
        transfer = transfer_of(record.headers, self._settings.name)
        if record.offset not in done and transfer is not None:
            reasons, detail = _reasons(Trigger.SPOIL), unconfirmed(why) if transfer else why
            self._decisions.refuse(number, record.offset, NEVER, reasons, record.timestamp, step, detail)
        source.next_offset = record.offset + 1

    def _record_scheduled_events(self, source: Source, arrivals: Arrivals, now_ms: int, step: Step) -> None:
        """Write one event for all scheduled messages of a batch (L5, D4)."""
        scheduled = [one for one in arrivals.scheduled if not one.transfer]
        if scheduled:
            offsets = np.array([one.offset for one in scheduled], np.int64)
            deadlines_ms = np.array([one.deadline_ms for one in scheduled], np.int64)
            none_yet = np.zeros(len(scheduled), np.uint32)
            messages = Messages(source.topic, source.partition, offsets, deadlines_ms, none_yet, None)
            row = route(Trigger.ARRIVE, Guard.LATER).row(State.UNREAD)
            step.events.append(ShardEvent(row.event, now_ms, messages))

    def _drop_repeats(self, number: int, clock_ms: int, arrivals: Arrivals, step: Step, done: set[int]) -> Arrivals:
        """Leave out messages whose id was seen within the window, and forget older ids (X6, C43).

        Those that are `done` were acknowledged before they became active. They use their ids up like others (Q13).
        """
        window_ms, repeats = self._settings.dedup_window_ms, self._state.repeats
        found = find_repeats(repeats, number, arrivals, window_ms)
        reached_ms = repeats.reach(number, found.newest_ms, clock_ms)
        for outdated in list(repeats.outdated(number, reached_ms, window_ms)):
            self._decisions.apply_change(Change(ChangeKind.FORGOTTEN, offset=outdated), step)
        if found.ids:
            self._decisions.apply_change(
                Change(
                    ChangeKind.IDENTIFIED,
                    source=number,
                    offset=repeats.next_number,
                    until_ms=reached_ms,
                    facts={"ids": found.ids},
                ),
                step,
            )
        dropped = found.repeats - done
        if not dropped:
            return arrivals
        source = self._state.sources[number]
        offsets = np.array(sorted(dropped), np.int64)
        none_yet = np.zeros(len(offsets), np.uint32)
        messages = Messages(source.topic, source.partition, offsets, None, none_yet, None)
        row = route(Trigger.ARRIVE, Guard.REPEATED).row(State.UNREAD)
        step.events.append(ShardEvent(row.event, min(found.newest_ms, clock_ms), messages))
        return without_offsets(arrivals, dropped)

    def _enter(
        self, number: int, arrivals: Arrivals, views: Sequence[RecordView], step: Step, row: Row | None = None
    ) -> None:
        row = self._visible.row(_UNREAD) if row is None else row
        offsets, deadlines_ms = arrivals.offsets, np.array(arrivals.deadlines_ms, np.int64)
        traits = arrivals.with_retry_delays(self._traits(views), offsets)
        for first, stop in arrivals.runs():
            place = self._state.next_place
            of_some = traits if traits is NONE else traits.slice(first, stop)
            some_ms = deadlines_ms if stop - first == len(offsets) else deadlines_ms[first:stop]
            self._decisions.enter(row, number, offsets[first], some_ms, of_some, step)
            if self._matching.active:
                self._matching.judge(range(place, place + stop - first), views[first:stop])

    def _traits(self, views: Sequence[RecordView]) -> Traits:
        return self._settings.traits.read(views) if self._has_traits else NONE

    def _views(
        self, topic: str, partition: int, records: Sequence[Record], offsets: Sequence[int]
    ) -> Sequence[RecordView]:
        """Return the messages at some offsets as expressions see them; nothing if no expression needs them."""
        if not self._has_traits and not self._matching.active:
            return []
        parse = self._settings.parse
        if isinstance(records, Rows) and len(offsets):
            rows = records if len(offsets) == len(records) else records.at(np.array(offsets, np.int64))
            if rows is not None:
                return RowViews(topic, partition, rows, parse)
        wanted = set(offsets)
        if len(wanted) == len(records):
            return [RecordView(topic, partition, record, parse) for record in records]
        return [RecordView(topic, partition, record, parse) for record in records if record.offset in wanted]

    def _honour(self, trigger: Trigger, number: int, behind: int, step: Step) -> set[int]:
        """Return offsets below `behind` that were acknowledged before they became active, and forget that (Q13)."""
        # All offsets up to the last record, since an acknowledged offset may have no record in the log.
        remembered = self._state.remembered
        coming = range(self._state.sources[number].next_offset, behind)
        if len(coming) < len(remembered):
            honoured = {offset for offset in coming if (number, offset) in remembered}
        else:
            honoured = {offset for of, offset in remembered if of == number and offset in coming}
        row = route(trigger).row(State.REMEMBERED)
        for offset in sorted(honoured):
            self._decisions.apply_change(Change(row.changes[0], source=number, offset=offset), step)
        return honoured

    def _refuse_arrivals(
        self, number: int, records: Sequence[Record], arrivals: Arrivals, step: Step, now_ms: int
    ) -> None:
        """Record the removal of messages that are expired on arrival, or whose lifetime is invalid."""
        decided_ms = {record.offset: now_ms or record.timestamp for record in records}
        entered = arrivals.offsets
        unreadable, late = (_reasons(Trigger.ARRIVE, guard) for guard in (Guard.UNREADABLE, Guard.LATE))
        for offset, fault in arrivals.invalid:
            detail = unconfirmed(fault) if offset in arrivals.unconfirmed else fault
            at_ms, behind = decided_ms[offset], len(entered) - bisect_right(entered, offset)
            self._decisions.refuse(number, offset, NEVER, unreadable, at_ms, step, detail, behind)
        for offset, deadline_ms in arrivals.expired:
            detail = unconfirmed() if offset in arrivals.unconfirmed else ""
            at_ms, behind = decided_ms[offset], len(entered) - bisect_right(entered, offset)
            self._decisions.refuse(number, offset, deadline_ms, late, at_ms, step, detail, behind)


def _reasons(trigger: Trigger, guard: Guard | None = None) -> tuple[Reason, ...]:
    """Return the reasons for which a record does not enter."""
    reason = route(trigger, guard).row(State.UNREAD).reason
    return () if reason is None else (reason,)


def _index_at_or_after(records: Sequence[Record], due_ms: int) -> int:
    """Return the index of the first record with a timestamp at or after an instant, or the number of records."""
    return next((at for at, record in enumerate(records) if record.timestamp >= due_ms), len(records))


def _first_index_after_due(records: Sequence[Record], arrivals: Arrivals, now_ms: int) -> int:
    """Return the index of the first record before which a message of an earlier record comes due.

    The result is the number of records if no message comes due.

    Args:
        records: the arriving records.
        arrivals: the same records sorted out.
        now_ms: the current instant, ms since the epoch; later instants are not due.
    """
    due = ((one.offset, min(one.deadline_ms, NEVER if one.transfer else one.at_ms)) for one in arrivals.scheduled)
    scheduled = {offset: due_ms for offset, due_ms in due if due_ms <= now_ms}
    due_ms = NEVER
    for at, record in enumerate(records if scheduled else ()):
        if due_ms < NEVER and record.timestamp >= due_ms:
            return at
        due_ms = min(due_ms, scheduled.get(record.offset, NEVER))
    return len(records)
