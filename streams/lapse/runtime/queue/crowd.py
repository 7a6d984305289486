"""A crowd: very many messages that are due at one instant leave in parts, a part in each step (C60)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lapse.core.queue.schedule import WEIGHT
from lapse.core.queue.settlement import Claim
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.runtime.shard.effort import Portion

_STEP_S: Final = 0.02
"""What a step should take while a crowd leaves: what comes in meanwhile waits for two steps at most (C60)."""

_LEAST: Final = 512
_FIRST: Final = 1_024
_MOST: Final = 4_096
"""How many messages of a crowd leave in one step. With fewer, a shard would mostly wait for Kafka."""

_ANY: Final = 1 << 30
"""As many as there are."""

_BESIDE: Final = frozenset(
    {"heartbeat", "subscribe", "unsubscribe", "pause", "resume", "depth", "sow", "subscriptions"}
)
"""Commands that nothing depends on of what is due at the same time."""


class Crowd:
    """Lets what is due leave, as far as a step has room.

    Args:
        shard: whose messages they are.
    """

    def __init__(self, shard: QueueShard) -> None:
        self._shard = shard
        self._portion = Portion(_MOST, _FIRST, _LEAST, _STEP_S)
        self._room = self._given = self._portion.size
        """How many more may expire, return or materialise in this step."""
        self._was_full = False

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

    def reach_wholly(self, at_ms: int, step: Step) -> None:
        """Do all that is due at an instant, ms since the epoch."""
        while self._shard.is_due(at_ms):
            self._shard.advance(at_ms, step)

    def catch_up(self, command: str, named_by: Callable[[], list[Claim]], at_ms: int, step: Step) -> None:
        """Do what is due before a command and matters to it; the rest of a crowd goes on leaving behind it (C60).

        Args:
            command: its name.
            named_by: tells the messages that it settles by bookmarks.
            at_ms: its instant, ms since the epoch.
            step: gets what leaves.
        """
        if not self.is_full or not self._shard.is_due(at_ms) or command in _BESIDE:
            return
        named = named_by()
        if named:
            self._shard.end_leases_of(named, at_ms, step)
        else:
            self.reach_wholly(at_ms, step)

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
        if self._was_full:
            self._portion.took(seconds)
        if self._room == self._given:
            self._room = self._given = self._portion.size
