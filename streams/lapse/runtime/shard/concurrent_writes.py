"""Limits how many steps of a shard are written at the same time: at most two."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class ConcurrentWrites:
    """The writes of a shard that are under way. The runner works on the next step meanwhile."""

    def __init__(self) -> None:
        self._last: asyncio.Task[None] | None = None
        self._before: asyncio.Task[None] | None = None

    def __bool__(self) -> bool:
        return self._last is not None

    async def begin(
        self, write: Callable[[asyncio.Task[None] | None], Coroutine[Any, Any, None]]
    ) -> asyncio.Task[None]:
        """Start to write one more step. If two are under way, wait for the older one first.

        Args:
            write: writes the step. Its argument is the task that writes the step before, whose journal must come first.
        """
        if self._before is not None:
            await self._before
        writing = asyncio.create_task(write(self._last))
        self._before, self._last = self._last, writing
        return writing

    async def end(self) -> None:
        """Wait until all steps are written."""
        if self._last is not None:
            await self._last
            self._last = self._before = None

    async def settle(self) -> list[BaseException]:
        """Wait until the writes under way are over, whether they succeed or not; return what has failed."""
        under_way = [one for one in (self._before, self._last) if one is not None]
        self._last = self._before = None
        ended = await asyncio.gather(*under_way, return_exceptions=True)
        return [one for one in ended if one is not None]

    def abandon(self) -> None:
        """Drop the writes under way and ignore their errors, because the shard is lost."""
        for one in (self._before, self._last):
            if one is not None:
                one.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._last = self._before = None
