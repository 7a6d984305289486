"""Turns of the event loop: long work pauses between its portions, so that other shards go on (C60, C90)."""

from __future__ import annotations

import asyncio
import time
from typing import Final, TypeVar

from lapse.core.portions import Portions

T = TypeVar("T")

_TURN_S: Final = 0.001
"""How long work goes on before others have a turn, s. A delivery takes about ten turns of the loop."""


class OneByOne:
    """Gives tasks that become ready together separate turns, so that others have turns in between (C90).

    Twenty shards that are taken over together get Kafka's answer in the same turn. Each then takes about a millisecond.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def turn(self) -> None:
        """Wait for a turn. No other waiting task runs in the same turn before the caller's next `await`."""
        async with self._lock:
            await asyncio.sleep(0)


async def in_turns(work: Portions[T]) -> T:
    """Do work in portions, with a turn for others after every millisecond; return its result."""
    since = time.perf_counter()
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        if time.perf_counter() - since >= _TURN_S:
            await asyncio.sleep(0)
            since = time.perf_counter()
