"""The steps of a shard whose effects are being written: two at most."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Writing:
    """What is on its way to Kafka, so that a runner can go on meanwhile."""

    def __init__(self) -> None:
        self._last: asyncio.Task[None] | None = None
        self._before: asyncio.Task[None] | None = None

    def __bool__(self) -> bool:
        return self._last is not None

    async def begin(
        self, write: Callable[[asyncio.Task[None] | None], Coroutine[Any, Any, None]]
    ) -> asyncio.Task[None]:
        """Begin to write one more step, once fewer than two are under way.

        Args:
            write: writes it; is given what writes the step before, whose journal comes first.
        """
        if self._before is not None:
            await self._before
        writing = asyncio.create_task(write(self._last))
        self._before, self._last = self._last, writing
        return writing

    async def end(self) -> None:
        """Wait until all is written."""
        if self._last is not None:
            await self._last
            self._last = self._before = None

    def abandon(self) -> None:
        """Wait for nothing any more, and heed no failure: the shard is lost."""
        for one in (self._before, self._last):
            if one is not None:
                one.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._last = self._before = None
