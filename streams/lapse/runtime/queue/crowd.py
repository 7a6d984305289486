"""A crowd: very many messages that are due at one instant. A part of them leaves in each step (C60)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from lapse.core.queue.schedule.schedule import WEIGHT
from lapse.core.queue.settlement.settlement import Claim
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.runtime.shard.command_work import Portion

_STEP_S: Final = 0.02
"""The time that a step should take while a crowd leaves, s. Records that arrive meanwhile wait for two steps at
most. Its part of the crowd should not take more CPU, however slow Kafka is: other entities wait for that time."""

_SMALL_STEPS: Final = 3.0
"""A step may take this many times as long as a small one in any case. If Kafka is slow, small parts are no quicker."""

_LEARNS: Final = 0.25
"""The weight of the newest small step in the average duration of small steps."""

_LEAST: Final = 512
_FIRST: Final = 1_024
_MOST: Final = 4_096
"""The limits and the first value of how many messages leave in one step. With fewer, a shard would mostly wait for
Kafka."""

_FILL: Final = 0.85
"""A step that took less than this part of its time was too small."""

_ANY: Final = 1 << 30
"""No limit."""

_BEHIND: Final = frozenset(
    {"purge", "rewind", "transfer", "transfer_confirm", "transfer_finish", "transfer_cancel", "transfer_accept"}
    | {"transfer_discard"}
)
"""Commands that depend on everything that is due by their instant. A settlement needs only the leases of its
messages."""


class Crowd:
    """Lets due messages leave, as many as a step has room for.

    Args:
        shard: the shard of the messages.
        cpu_clock: returns the CPU time of this thread, s.
    """

    def __init__(self, shard: QueueShard, cpu_clock: Callable[[], float] = time.thread_time) -> None:
        self._shard = shard
        self._cpu_clock = cpu_clock
        self._cpu_s = self._last_cpu_s = 0.0
        """CPU that the crowd has taken in this step and in the last one, s."""
        self._portion = Portion(_MOST, _FIRST, _LEAST)
        self._room = self._given = self._portion.size
        """How many more messages may expire, return or materialise in this step."""
        self._was_full = False
        self._was_small = True
        self._small_s = 0.0
        """Average duration of small steps, s: steps without a crowd, or with the smallest part of one."""

    @property
    def is_full(self) -> bool:
        """Whether as many messages have left as this step has room for."""
        return self._room <= 0

    @property
    def room(self) -> int:
        """How many scheduled messages may get their places in this step."""
        return -(-max(0, self._room) // WEIGHT)

    @property
    def arrivals_allowed(self) -> int:
        """How many messages may arrive in a step, so that arrivals do not keep a crowd from leaving."""
        return self._portion.size // 2 if self._was_full else _ANY

    def let_in(self, count: int) -> None:
        """Count scheduled messages that got their places before a message that arrived behind them."""
        self._room -= WEIGHT * count

    def reach(self, at_ms: int, step: Step) -> None:
        """Do what is due at an instant, ms since the epoch, as far as this step has room for it (C60).

        What leaves a deleted queue waits for ticks: its end waits for the letters, and takes a part of it in each step.
        """
        if self._shard.agreement.retired:
            return
        while not self.is_full and self._shard.is_due(at_ms):
            self.advance(at_ms, step)
        if self.is_full:
            self._shard.end_lost(at_ms, step)

    def catch_up(self, named_by: Callable[[], Sequence[Claim]], at_ms: int, step: Step) -> None:
        """End the leases of messages that a settlement names, if this step cannot do all that is due first (C60).

        Args:
            named_by: returns the messages that it settles by bookmarks.
            at_ms: its instant, ms since the epoch.
            step: gets the results.
        """
        if self.is_full and self._shard.is_due(at_ms):
            self._shard.end_named_leases(named_by(), at_ms, step)

    def is_before(self, at_ms: int, command: str = "") -> bool:
        """Return whether a command must wait, because this step has no room for all that is due at its instant (C60).

        Args:
            at_ms: the instant, ms since the epoch.
            command: its name; empty for a message from another shard, which depends on all that is due.
        """
        return self.is_full and (not command or command in _BEHIND) and self._shard.is_due(at_ms)

    def advance(self, now_ms: int, step: Step) -> None:
        """Do a part of what is due at an instant, ms since the epoch; do nothing if the step is full."""
        if not self.is_full:
            began_s = self._cpu_clock()
            self._room -= self._shard.advance(now_ms, step, self._room)
            self._cpu_s += self._cpu_clock() - began_s

    def step_ends(self) -> dict[str, int]:
        """End a step that is about to be written, and make room for the next one.

        Returns:
            The room that the step had if a replay must know it, because not even one scheduled message would have
                fitted (X10).
        """
        self._last_cpu_s, self._cpu_s = self._cpu_s, 0.0
        self._was_full = self.is_full
        self._was_small = not self.is_full or self._given <= _LEAST
        had = {"room": self._given} if self._room < WEIGHT else {}
        self._room = self._given = self._portion.size
        return had

    def give(self, room: int) -> None:
        """Set the room of this step to what it was when it was recorded."""
        self._room = self._given = room

    def note_step_time(self, seconds: float) -> None:
        """Choose the room of the next steps by the duration of a step, s, until all was written.

        If messages took room of the next step while that step was being written, its room stays.
        """
        if self._was_small:
            self._small_s += (_LEARNS if self._small_s else 1.0) * (seconds - self._small_s)
        if self._was_full:
            of_time = seconds / max(_STEP_S, _SMALL_STEPS * self._small_s)
            self._portion.note_time(max(of_time, self._last_cpu_s / _STEP_S), 1.0, fill=_FILL)
        if self._room == self._given:
            self._room = self._given = self._portion.size
