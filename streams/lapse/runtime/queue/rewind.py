"""Carries out a rewind: reads records, a part in each step, and hands them to the shard (Q22)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from lapse.core.expression import compile_filter
from lapse.core.portions import JudgedBytes
from lapse.core.queue.rewind.rewind_command import Point, parse_rewind_point
from lapse.core.queue.rewind.rewinding import RewindRequest
from lapse.core.queue.rewind.rewinds import Rewind, Span
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.runtime.authorization.command_authorizer import Admitted
from lapse.runtime.kafka.read_record import UnreadRecord
from lapse.runtime.queue.recovery_point import begin_offsets
from lapse.runtime.queue.sweep_horizon import SweepHorizon
from lapse.runtime.shard.command_work import CommandWork
from lapse.runtime.shard.log import Record
from lapse.runtime.shard.payload import PayloadWindow
from lapse.runtime.shard.under_way import UnderWay
from lapse.runtime.tp import TP

PART: Final = 1_000
"""The greatest number of records in a part. A filter that sees long ones gets fewer."""

_REFUSED: Final = -1
"""Stands for the size of a part, in the recording of a step that refused the rewind."""

_STEP_S: Final = 0.02
"""About the longest time that a part may take, s, also with a slow filter (C60)."""


class RunningRewind:
    """One rewind of a shard, from its command, or from a take-over, to its end.

    Args:
        shard: the shard.
        payloads: reads the logs.
        admitted: the command; None if the journal says that a rewind is under way.
        request: what the command asks for; None likewise.
        point: the point from which messages come back.
        horizon: finds the messages that are younger than the command.
        is_set_aside: returns whether a record must not be read, by topic, partition and offset (X7).

    Attributes:
        admitted: the command; None if the journal says that a rewind is under way.
        rewind: the shard's rewind; None before its first part.
        most: the number of records in the next part.
        work: what it has taken since its command, or since the take-over.
    """

    def __init__(
        self,
        shard: QueueShard,
        payloads: PayloadWindow,
        admitted: Admitted | None,
        request: RewindRequest | None,
        point: Point,
        horizon: SweepHorizon,
        is_set_aside: Callable[[str, int, int], bool],
    ) -> None:
        self.admitted = admitted
        self.rewind: Rewind | None = None
        self.most = PART
        self.work = CommandWork()
        self._shard = shard
        self._payloads = payloads
        self._request = request
        self._point = point
        self._horizon = horizon
        self._is_set_aside = is_set_aside
        self._waiting: dict[int, deque[Record]] = {}
        self._read_to: dict[int, int] = {}

    @property
    def done(self) -> bool:
        """Whether the rewind has reached its end."""
        return self.rewind is not None and self.rewind.done

    @property
    def is_too_costly(self) -> bool:
        """Whether its filter takes more work than others can spare (X7). Without one, only its length costs."""
        return self.rewind is not None and bool(self.rewind.filter) and self.work.is_spent

    @property
    def _dry_run(self) -> bool:
        return self._request is not None and self._request.dry_run

    async def continue_rewind(self, step: Step) -> None:
        """Do a part of the rewind.

        Raises:
            TimeoutError: the leader of a partition does not answer.
        """
        if self.rewind is None:
            self.rewind = await self._begin(step)
            for number, span in self.rewind.spans.items():
                self._waiting[number], self._read_to[number] = deque(), span.cursor
                await self._read_earlier_ids(number, span)
        rewind = self.rewind
        await self._read(rewind)
        runs, cursors = self._next(rewind)
        matches = compile_filter(rewind.filter) if rewind.filter else None
        began = time.monotonic()
        with self.work.measured() as looked_at:
            self._shard.rewinding.bring_back_part(rewind, runs, cursors, matches, step, dry_run=self._dry_run)
            looked_at(sum(len(some) for _, some in runs))
        took_s = time.monotonic() - began
        if took_s > _STEP_S:
            self.most = max(1, self.most // 2)
        elif took_s < _STEP_S / 4:
            self.most = min(2 * self.most, PART)

    def stop(self, step: Step) -> None:
        """End the rewind, because it costs too much (X7)."""
        if self.rewind is not None and not self.rewind.done:
            self._shard.rewinding.stop(self.rewind, step, dry_run=self._dry_run)

    async def _begin(self, step: Step) -> Rewind:
        """Begin the rewind, or return the one that is under way."""
        known = self._shard.state.rewinds.under_way
        if known is not None or self._request is None:
            assert known is not None
            self._request = None
            self._shard.rewinding.resume()
            return known
        sources = self._shard.state.sources
        numbers = {
            TP(one.topic, one.partition): sources.number(one.topic, one.partition) for one in sources.rewindable()
        }
        log, name = self._payloads.log, self._shard.settings.name
        there = await self._payloads.ends(numbers)
        found = await begin_offsets(name, self._point, [*there], log)
        begins = await log.begins(there)
        firsts = {numbers[tp]: max(begins[tp], found.get(tp, 0), sources[numbers[tp]].begun_offset) for tp in there}
        ends = await self._horizon.ends(self._request.at_ms)
        return self._shard.rewinding.begin(self._request._replace(firsts=firsts, ends=ends), step)

    async def _read_earlier_ids(self, number: int, span: Span) -> None:
        """Read the records before the rewind, as far back as ids count, since later records may repeat them (X6)."""
        source, rewinding = self._shard.state.sources[number], self._shard.rewinding
        if not rewinding.window_ms or span.cursor >= span.stop:
            return
        ahead = await self._payloads.read(source.topic, source.partition, span.cursor, span.cursor)
        if not ahead:
            return
        tp, since_ms = TP(source.topic, source.partition), max(0, ahead[0].timestamp - rewinding.window_ms)
        first = (await self._payloads.log.ends([tp], since_ms))[tp]
        while first < span.cursor:
            records = await self._payloads.read(tp.topic, tp.partition, first, min(first + PART, span.cursor) - 1)
            before = [record for record in records if record.offset < span.cursor]
            if not before:
                return
            rewinding.remember(number, before)
            first = before[-1].offset + 1

    async def _read(self, rewind: Rewind) -> None:
        """Read on in each source until a whole part of it waits, so that parts do not depend on what a read returns."""
        for number, span in rewind.spans.items():
            source, waiting = self._shard.state.sources[number], self._waiting[number]
            while len(waiting) < self.most and (first := self._read_to[number]) < span.stop:
                last = min(first + PART, span.stop) - 1
                records = await self._payloads.read(source.topic, source.partition, first, last)
                waiting.extend(record for record in records if first <= record.offset < span.stop)
                self._read_to[number] = max(records[-1].offset + 1, last + 1) if records else span.stop

    def _next(self, rewind: Rewind) -> tuple[list[tuple[int, list[Record]]], dict[int, int]]:
        """Return the next records, of several sources ordered by timestamp, and the offsets behind them."""
        sources = self._shard.state.sources
        runs: list[tuple[int, list[Record]]] = []
        taken, judged = 0, JudgedBytes()
        while taken < self.most and not judged.is_full:
            waiting = [number for number, some in self._waiting.items() if some]
            if not waiting:
                break
            number = waiting[0]
            if len(waiting) > 1:
                number = min(
                    waiting,
                    key=lambda one: (self._waiting[one][0].timestamp, sources[one].topic, sources[one].partition),
                )
            record = self._waiting[number].popleft()
            taken += 1
            judged.add(len(record.value or b"") if rewind.filter else 0)
            if isinstance(record, UnreadRecord) or self._is_set_aside(
                sources[number].topic, sources[number].partition, record.offset
            ):
                continue
            if runs and runs[-1][0] == number:
                runs[-1][1].append(record)
            else:
                runs.append((number, [record]))
        cursors = {
            number: self._waiting[number][0].offset if self._waiting[number] else self._read_to[number]
            for number in rewind.spans
        }
        return runs, cursors


class Rewinder:
    """The current rewind of a shard, if there is one.

    Args:
        shard: the shard.
        payloads: reads the logs.
        horizon: finds the messages that are younger than a command.
        under_way: returns the note that knows which records are set aside.
    """

    def __init__(
        self, shard: QueueShard, payloads: PayloadWindow, horizon: SweepHorizon, under_way: Callable[[], UnderWay]
    ) -> None:
        self._shard = shard
        self._payloads = payloads
        self._horizon = horizon
        self._under_way = under_way
        self._running: RunningRewind | None = None
        self._part = PART
        self._given = 0
        self._stops = False
        """Whether the rewind is ended in this step, because it costs too much; in a replay, whether it shall be."""
        self._known = shard.state.rewinds.under_way
        if self._known is not None:  # its command is read again and answered after the end
            self._running = self._work(None, None, "beginning")

    @property
    def unfinished(self) -> int | None:
        """Offset of the command whose rewind was under way at take-over, from the journal; None without one."""
        return None if self._known is None else self._known.command

    def begin(self, admitted: Admitted, request: RewindRequest) -> None:
        """Begin the rewind that a command asks for."""
        self._running = self._work(admitted, request, parse_rewind_point(admitted.command.to))

    async def continue_rewind(self, step: Step) -> bool:
        """Do a part of the rewind; return whether it has reached its end, or cannot begin."""
        self._part = PART
        self._stops = self._stops and bool(self._given)
        if self._running is None:
            return False
        if self._given == _REFUSED:
            return True
        if self._given:
            self._running.most = self._given
        self._part = self._running.most
        try:
            await self._running.continue_rewind(step)
        except TimeoutError:
            if self._running.rewind is not None:
                raise
            self._part = _REFUSED
            return True
        if not self._given:
            self._stops = self._running.is_too_costly and not self._running.done
        if self._stops:
            self._running.stop(step)
        return self._running.done

    def step_ends(self) -> dict[str, int]:
        """Return the size of the step's part, if it was not the greatest, and whether the rewind was stopped."""
        part = {"part": self._part} if self._part != PART else {}
        return part | ({"stopped": 1} if self._stops else {})

    def give(self, part: int, stops: bool = False) -> None:
        """Set the size of the next part to what it was when it was recorded, and whether the rewind ends (X10)."""
        self._given, self._stops = part, stops

    def end(self) -> tuple[Admitted | None, Rewind | None]:
        """Return the rewind with its command, if this process read that, and forget both; None if it did not begin."""
        running, self._running = self._running, None
        return (None, None) if running is None else (running.admitted, running.rewind)

    def _work(self, admitted: Admitted | None, request: RewindRequest | None, point: Point) -> RunningRewind:
        def is_set_aside(topic: str, partition: int, offset: int) -> bool:
            return self._under_way().is_set_aside(topic, partition, offset)

        return RunningRewind(self._shard, self._payloads, admitted, request, point, self._horizon, is_set_aside)
