"""A shard's intake: what waits in the inbox becomes input of the machine, as much as a step may take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from lapse.runtime.shard.gate import Gate
from lapse.runtime.shard.inbox import Inbox
from lapse.runtime.shard.machine import Machine
from lapse.runtime.shard.pace import STEP_S, Pace
from lapse.runtime.shard.timeline import Timeline
from lapse.runtime.topics.topic_id import KnownTopics
from lapse.runtime.tp import TP


class Intake:
    """Hands messages and commands to the machine.

    Args:
        machine: the shard's state machine.
        inbox: what waits.
        gate: holds commands back until the messages that they may name are read, while the machine wants that.
        timeline: learns when messages are taken in.
        topics: while some of them are replaced, no message is taken in (C42).
        on_tick: gets the ticks that stand among the commands.
    """

    def __init__(
        self,
        machine: Machine,
        inbox: Inbox,
        gate: Gate,
        timeline: Timeline,
        topics: KnownTopics,
        on_tick: Callable[[Any], None],
    ) -> None:
        self._machine = machine
        self._inbox = inbox
        self._gate = gate
        self._timeline = timeline
        self._topics = topics
        self._on_tick = on_tick
        self._pace = Pace()

    async def messages(self, most: int, is_over: Callable[[], bool] | None = None) -> int:
        """Hand messages to the machine; returns how many.

        Args:
            most: about how many.
            is_over: take no more once this is true; None = as many as a step may take.
        """
        if not self._inbox.holds_messages:  # most turns of a queue that is not busy; to measure them costs more
            return 0
        taken, spent_s = 0, 0.0
        while taken < most and spent_s < STEP_S and not self._topics.replaced and not (is_over and is_over()):
            at_once = min(self._machine.most_at_once, self._pace.at_once, most - taken)
            began_s = time.thread_time()
            some = self._inbox.take_messages(at_once)
            cpu_s = time.thread_time() - began_s
            self._pace.took(some, cpu_s)
            taken, spent_s = taken + some, spent_s + cpu_s
            if some < at_once:
                break
            if taken < most or is_over is not None:
                await asyncio.sleep(0)  # others have their turn, too
        if taken:
            self._timeline.taken(more=self._inbox.has_messages(taken))
        return taken

    async def commands(self, most: int) -> int:
        """Hand commands and ticks to the machine, behind the messages that they may be about; returns how many."""
        if self._machine.unfinished is not None:
            return 0
        take_all, below = bool(self._topics.replaced), None
        if self._machine.waits_for_ends:
            if not await self._gate.open():
                return 0
            below = self._gate.below
        return self._inbox.take_commands(most, below, self._on_tick, take_all)

    @property
    def has_commands(self) -> bool:
        """Whether commands wait that may be taken in now: none of them waits for earlier messages (C1, C76)."""
        held = self._inbox.held_ms is not None or (self._machine.waits_for_ends and self._gate.is_closed)
        return self._inbox.has_commands and not held

    def has_messages(self, taken: int) -> bool:
        """Whether messages wait behind those that a step has taken in."""
        return not self._topics.replaced and self._inbox.has_messages(taken)

    def processed(self) -> dict[TP, int]:
        """How far each source was taken in. After a crash an unfinished command is read again."""
        processed = self._inbox.processed.copy()
        if self._machine.unfinished is not None:
            processed[self._inbox.commands] = self._machine.unfinished
        return processed
