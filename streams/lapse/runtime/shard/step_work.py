"""What a shard's machine does within a step, in turns: it lets due work act, and hands out messages (C60)."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from lapse.runtime.shard.inbox import Inbox
from lapse.runtime.shard.intake import Intake
from lapse.runtime.shard.machine import Machine
from lapse.runtime.timers.clock import WorkerClock
from lapse.runtime.timers.ticker import Ticker


@dataclass(slots=True)
class WorkAhead:
    """What is already done for the next step while the effects of one step are being written.

    Attributes:
        taken: number of messages and commands that were taken in.
        turns: number of turns in which timers acted.
        delivered: whether messages were handed out.
    """

    taken: int = 0
    turns: int = 0
    delivered: bool = False

    def __bool__(self) -> bool:
        return bool(self.taken or self.turns or self.delivered)


class StepWork:
    """Gives a machine its turns. Between them the worker's other shards and tasks have theirs.

    Args:
        machine: the shard's state machine.
        inbox: what has arrived for the shard.
        intake: takes it into a step.
        ticker: the shard's ticks.
        clock: the broker's clock.
        news: set when there is something to do.
        may_run: cleared when the shard must pause.

    Attributes:
        to_deliver: whether the last delivery left something to hand out.
    """

    def __init__(
        self,
        machine: Machine,
        inbox: Inbox,
        intake: Intake,
        ticker: Ticker,
        clock: WorkerClock,
        news: asyncio.Event,
        may_run: asyncio.Event,
    ) -> None:
        self._machine = machine
        self._inbox = inbox
        self._intake = intake
        self._ticker = ticker
        self._clock = clock
        self._news = news
        self._may_run = may_run
        self._delivering_since: float | None = None
        self.to_deliver = False

    def is_over(self, until: asyncio.Future[None] | None) -> bool:
        """Return whether work for the next step must stop: `until` is done, or the shard must pause."""
        return until is not None and (until.done() or not self._may_run.is_set())

    async def go_on(self) -> None:
        """Carry on with the unfinished command, for a few turns."""
        for _ in range(self._machine.step_turns):
            if self._machine.unfinished is None:
                break
            self._machine.continue_command()
            await asyncio.sleep(0)

    async def let_act(self, most: int, until: asyncio.Future[None] | None = None) -> int:
        """Let the machine do what is due by the last tick that was read, in up to `most` turns; return how many.

        Begin no turn once `until` is done, or the shard must pause.
        """
        turns = 0
        while turns < most and self._ticker.has_due_work:
            if self.is_over(until):
                break
            self._machine.advance(self._ticker.reached_ms)
            turns += 1
            if turns < most or until is not None:
                await asyncio.sleep(0)
        return turns

    async def deliver(self, most: int, until: asyncio.Future[None] | None = None) -> None:
        """Hand out messages in up to `most` turns; after the first, stop for news, or when `until` is done."""
        if self._delivering_since is None:
            self._delivering_since = time.monotonic()
        for turn in range(most):
            if turn:
                await asyncio.sleep(0)
                if self._news.is_set() or self.is_over(until):
                    break
            self.to_deliver = self._machine.deliver(self._clock.now_ms())
            if not self.to_deliver:
                break

    def end_delivering(self) -> float | None:
        """Return when the step began to hand out messages, on the monotonic clock, s; None = it did not."""
        since, self._delivering_since = self._delivering_since, None
        return since

    async def take_in_late(self, most: int) -> int:
        """Take in messages that arrived during a query's turn, so that this step includes them; return how many."""
        if not (self._machine.acts_ahead and self._news.is_set()):
            return 0
        taken = await self._intake.messages(most)
        self._inbox.fetch_caught_up(taken)
        return taken
