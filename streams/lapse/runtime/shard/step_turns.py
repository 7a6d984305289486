"""The turns of the event loop in which the shards of a worker begin their steps (C60)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final

_AT_FIRST: Final = 10
_LEAST: Final = 2
_LONG_S: Final = 0.015
"""How much CPU a turn of the loop may take in which steps begin, s. Heartbeats, answers and what else the worker has
under way wait for the end of a turn."""


class StepTurns:
    """Lets only so many shards begin a step in one turn of the loop; the others begin in the next ones, in order.

    Three hundred shards to which something came at once worked in one turn of 217 ms of CPU. How many fit into one is
    learned from what the turns have taken.

    Attributes:
        most: how many shards may begin in one turn.
    """

    def __init__(self) -> None:
        self.most = _AT_FIRST
        self._begun = 0
        self._since_s = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Wait until this turn of the loop has room for one more step."""
        loop = asyncio.get_running_loop()
        if self._waiting or self._begun >= self.most:
            waiting = loop.create_future()
            self._waiting.append(waiting)
            await waiting
            return
        if not self._begun:
            self._open(loop)
        self._begun += 1

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        self._since_s = time.thread_time()
        loop.call_soon(self._next)

    def _next(self) -> None:
        """Let those begin that waited; they do so in one turn, at whose end this is called again."""
        self._took(self._begun, time.thread_time() - self._since_s)
        self._begun = 0
        while self._waiting and self._begun < self.most:
            first = self._waiting.popleft()
            if not first.done():  # its shard may have been given up
                first.set_result(None)
                self._begun += 1
        if self._begun:
            self._open(asyncio.get_running_loop())

    def _took(self, begun: int, cpu_s: float) -> None:
        """Learn what a turn has taken, s of CPU."""
        if cpu_s > _LONG_S:
            self.most = max(_LEAST, min(self.most, int(begun * _LONG_S / cpu_s)))
        elif begun >= self.most and cpu_s < _LONG_S / 2:
            self.most *= 2
