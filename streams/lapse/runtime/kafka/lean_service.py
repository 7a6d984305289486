"""Lean services: Mode's services without the parts that take memory and are hardly ever used.

A thousand entities have two thousand services. Four events and two exit stacks, each with a deque, take 5 KB of each.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from mode import Service
from mode.utils.locks import Event

_NO_CONTEXT: Final = ExitStack()
_NO_ASYNC_CONTEXT: Final = AsyncExitStack()


@lru_cache(maxsize=1)
def table_directory(app: Any) -> Path:
    """Return the directory for the files of an application's tables. Faust makes it from four settings each time."""
    return Path(str(app.conf.tabledir))


class _LeanEvent(Event):
    """Mode's event with a list of waiters. An empty deque would have 64 slots."""

    def __init__(self, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._waiters: list[asyncio.Future[Any]] = []  # type: ignore[assignment]
        self._value = False
        self._loop = loop


class LeanService(Service):
    """A service that enters no context, so that all services share two empty exit stacks."""

    abstract = True
    mundane_level = "debug"  # saves two thousand log records of "Starting...", which a worker's log leaves out

    def __post_init__(self) -> None:
        """Drop the stacks that Mode has just made."""
        super().__post_init__()
        self.exit_stack, self.async_exit_stack = _NO_CONTEXT, _NO_ASYNC_CONTEXT

    async def _actually_start(self) -> None:
        """Start like Mode's service, without its log records and contexts. Formatting these takes most of the time."""
        if not self.restart_count:
            await self.on_first_start()
        if self.should_stop:
            return
        await self.on_start()
        if self.should_stop:
            return
        for task in self._get_tasks():
            self.add_future(task.fun(self))
        for child in list(self._children):
            await child.maybe_start()
            if self.should_stop:
                return
        await self.on_started()

    def add_context(self, context: Any) -> Any:
        """Raise TypeError: the context would be left when the next service stops."""
        raise TypeError(f"{self.label}: a lean service enters no context")

    async def add_async_context(self, context: Any) -> Any:
        """Raise TypeError, for the same reason."""
        raise TypeError(f"{self.label}: a lean service enters no context")

    def _new_started_event(self) -> Event:
        return _LeanEvent(loop=self._loop)

    def _new_stopped_event(self) -> Event:
        return _LeanEvent(loop=self._loop)

    def _new_shutdown_event(self) -> Event:
        return _LeanEvent(loop=self._loop)

    def _new_crashed_event(self) -> Event:
        return _LeanEvent(loop=self._loop)
