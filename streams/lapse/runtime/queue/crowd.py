"""A crowd: very many messages that are due at one instant leave in parts, a part in each step (C60)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lapse.core.queue.schedule.schedule import WEIGHT
from lapse.core.queue.settlement.settlement import Claim
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.runtime.shard.effort import Portion

_STEP_S: Final = 0.02
"""What a step may take while a crowd leaves: what comes in meanwhile waits for two steps at most (C60)."""

_SMALL_STEPS: Final = 3.0
"""So many times as long as a small step it may take in any case: where Kafka is slow, small parts are no quicker."""

_LEARNS: Final = 0.25
"""How much of the time of the newest small step counts."""

_LEAST: Final = 512
_FIRST: Final = 1_024
_MOST: Final = 4_096
"""How many messages of a crowd leave in one step. With fewer, a shard would mostly wait for Kafka."""

_ANY: Final = 1 << 30
"""As many as there are."""

_BEHIND: Final = frozenset(
    {"purge", "rewind", "transfer", "transfer_confirm", "transfer_finish", "transfer_cancel", "transfer_accept"}
    | {"transfer_discard"}
)
"""Commands that depend on all that is due at the same time; what settles finds by itself what is late."""


class Crowd:
    """Lets what is due leave, as far as a step has room.

    Args:
        shard: whose messages they are.
    """

    def __init__(self, shard: QueueShard) -> None:
        self._shard = shard
        self._portion = Portion(_MOST, _FIRST, _LEAST)
        self._room = self._given = self._portion.size
        """How many more may expire, return or materialise in this step."""
        self._was_full = False
        self._was_small = True
        self._small_s = 0.0
        """What a small step takes: one without a crowd, or with the least part of one."""

    @property
    def is_full(self) -> bool:
        """Whether as many have left as may in this step."""
        return self._room <= 0

    @property
    def room(self) -> int:
        """How many scheduled messages may get their places in this step."""
        return -(-max(0, self._room) // WEIGHT)

    @property
    def beside(self) -> int:
        """How many messages may arrive in a step, so that what arrives does not keep a crowd from leaving."""
        return self._portion.size // 2 if self._was_full else _ANY

    def let_in(self, count: int) -> None:
        """Know that so many scheduled messages got their places before a message that came behind them."""
        self._room -= WEIGHT * count

    def reach(self, at_ms: int, step: Step) -> None:
        """Do what is due at an instant, ms since the epoch, as far as this step has room for it (C60)."""
        while not self.is_full and self._shard.is_due(at_ms):
            self.advance(at_ms, step)
        if self.is_full:
            self._shard.end_lost(at_ms, step)

    def catch_up(self, named_by: Callable[[], list[Claim]], at_ms: int, step: Step) -> None:
        """End the leases of what a settlement names, if more is due before it than this step has room for (C60).

        Args:
            named_by: tells the messages that it settles by bookmarks.
            at_ms: its instant, ms since the epoch.
            step: gets what leaves.
        """
        if self.is_full and self._shard.is_due(at_ms):
            self._shard.end_leases_of(named_by(), at_ms, step)

    def is_before(self, at_ms: int, command: str = "") -> bool:
        """Whether a command has to wait, since more is due at its instant than this step has room for (C60).

        Args:
            at_ms: the instant, ms since the epoch.
            command: its name; empty = what another shard says, which depends on all that is due.
        """
        return self.is_full and (not command or command in _BEHIND) and self._shard.is_due(at_ms)

    def advance(self, now_ms: int, step: Step) -> None:
        """Do some of what is due at an instant, ms since the epoch; nothing if the step is full."""
        if not self.is_full:
            self._room -= self._shard.advance(now_ms, step, self._room)

    def step_ends(self) -> dict[str, int]:
        """End a step, whose messages are about to be written, and have room for the next one.

        Returns:
            The room that it had, if that was too little for one more: what is to be known to go through it again (X10).
        """
        self._was_full = self.is_full
        self._was_small = not self.is_full or self._given <= _LEAST
        had = {"room": self._given} if self._room < WEIGHT else {}
        self._room = self._given = self._portion.size
        return had

    def give(self, room: int) -> None:
        """Have so much room in this step: as much as it had when it was recorded."""
        self._room = self._given = room

    def took(self, seconds: float) -> None:
        """Choose the room of steps to come, after a step that took so long until all was written.

        The next one keeps what it has, if messages took some of it while that step was being written.
        """
        if self._was_small:
            self._small_s += (_LEARNS if self._small_s else 1.0) * (seconds - self._small_s)
        if self._was_full:
            self._portion.took(seconds, max(_STEP_S, _SMALL_STEPS * self._small_s))
        if self._room == self._given:
            self._room = self._given = self._portion.size
