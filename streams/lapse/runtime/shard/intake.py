"""A shard's intake: hands messages and commands from the inbox to the machine, as many as a step may take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from lapse.runtime.shard.gate import Gate
from lapse.runtime.shard.inbox import Inbox
from lapse.runtime.shard.machine import Machine
from lapse.runtime.shard.timeline import Timeline
from lapse.runtime.shard.turn_limit import STEP_S, TurnLimit
from lapse.runtime.topics.topic_id import KnownTopics
from lapse.runtime.tp import TP


class Intake:
    """Hands messages and commands to the machine.

    Args:
        machine: the shard's state machine.
        inbox: holds the waiting records.
        gate: holds commands back until the messages that they may name are read, if the machine requires that.
        timeline: is notified when messages are taken in.
        topics: the known topics. While one of them is replaced, no message is taken in (C42).
        on_tick: called with each tick among the commands.
        must_wait: returns whether messages, and the commands behind them, must wait. News comes once that is over.
    """

    def __init__(
        self,
        machine: Machine,
        inbox: Inbox,
        gate: Gate,
        timeline: Timeline,
        topics: KnownTopics,
        on_tick: Callable[[Any], None],
        must_wait: Callable[[], bool] = lambda: False,
    ) -> None:
        self._machine = machine
        self._inbox = inbox
        self._gate = gate
        self._timeline = timeline
        self._topics = topics
        self._on_tick = on_tick
        self._must_wait = must_wait
        self._waits = False
        self._turn_limit = TurnLimit()

    async def messages(self, most: int, is_over: Callable[[], bool] | None = None) -> int:
        """Hand messages to the machine; return how many.

        Args:
            most: about how many at most.
            is_over: checked between turns, stops the intake once it returns True; None for no such limit.
        """
        self._waits = False
        if not self._inbox.holds_messages:  # the usual case of a queue that is not busy; measuring would cost more
            return 0
        self._waits = self._must_wait()
        if self._waits:
            return 0
        taken, spent_s = 0, 0.0
        while taken < most and spent_s < STEP_S and not self._topics.replaced and not (is_over and is_over()):
            at_once = min(self._machine.most_at_once, self._turn_limit.at_once, most - taken)
            began_s = time.thread_time()
            messages = self._inbox.take_messages(at_once)
            cpu_s = time.thread_time() - began_s
            self._turn_limit.note_time(messages, cpu_s)
            taken, spent_s = taken + messages, spent_s + cpu_s
            if messages < at_once:
                break
            if taken < most or is_over is not None:
                await asyncio.sleep(0)  # other tasks have a turn
        if taken:
            self._timeline.note_take(more=self._inbox.has_messages(taken))
        return taken

    async def commands(self, most: int) -> int:
        """Hand commands and ticks to the machine, after the messages that they may name; return how many."""
        self._inbox.held_ms = None  # what is not looked at now waits for nothing: a runner would ask again without end
        if self._machine.unfinished is not None or self._waits:
            return 0
        take_all, below = bool(self._topics.replaced), None
        if self._machine.waits_for_ends:
            if not await self._gate.open():
                return 0
            below = self._gate.below
        elif self._checks_use and (unreceived := await self._gate.unreceived()):
            for tp in unreceived:
                self._machine.note_received(*tp)
            return 0  # the machine notes the use before it says whether the queue is idle
        return self._inbox.take_commands(most, below, self._on_tick, take_all)

    @property
    def _checks_use(self) -> bool:
        """Whether the queue may be idle, and has no room, so that what is published is perhaps not received (Q18)."""
        asked: bool = self._machine.shard.agreement.checks_use
        return asked and self._inbox.has_commands and not self._machine.room()

    @property
    def has_commands(self) -> bool:
        """Whether commands can be taken in now, that is, none of them waits for earlier messages (C1, C76)."""
        held = self._inbox.held_ms is not None or (self._machine.waits_for_ends and self._gate.is_closed) or self._waits
        return self._inbox.has_commands and not held

    def has_messages(self, taken: int) -> bool:
        """Return whether more messages wait after a step has taken `taken` of them."""
        return not (self._topics.replaced or self._waits) and self._inbox.has_messages(taken)

    def processed(self) -> dict[TP, int]:
        """Return the next offset of each source.

        An unfinished command counts as unread, so that it is read after a crash.
        """
        processed = self._inbox.processed.copy()
        if self._machine.unfinished is not None:
            processed[self._inbox.commands] = self._machine.unfinished
        return processed
