"""Limits how many shards of a worker begin a step in one turn of the event loop (C60)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final

_AT_FIRST: Final = 10
_LEAST: Final = 2
_LONG_S: Final = 0.015
"""CPU that a turn of the loop with beginning steps may take, s. Heartbeats, answers and the worker's other tasks
wait for the end of a turn."""


class StepTurns:
    """Lets a limited number of shards begin a step in one turn of the loop.

    The others begin in the next turns, in order.

    Three hundred shards that got records at once worked in one turn of 217 ms of CPU. The limit follows from what the
    turns have taken.

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
        """Let waiting shards begin. All do so in one turn, and this method is called again at its end."""
        self._took(self._begun, time.thread_time() - self._since_s)
        self._begun = 0
        while self._waiting and self._begun < self.most:
            first = self._waiting.popleft()
            if not first.done():  # done: its shard was given up
                first.set_result(None)
                self._begun += 1
        if self._begun:
            self._open(asyncio.get_running_loop())

    def _took(self, begun: int, cpu_s: float) -> None:
        """Adjust the limit to what a turn has taken, s of CPU."""
        if cpu_s > _LONG_S:
            self.most = max(_LEAST, min(self.most, int(begun * _LONG_S / cpu_s)))
        elif begun >= self.most and cpu_s < _LONG_S / 2:
            self.most *= 2
