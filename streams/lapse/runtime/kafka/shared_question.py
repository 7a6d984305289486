"""Joins requests to the brokers: those that arrive while one is under way form the next one.

A worker takes over hundreds of shards at a time. Each needs a few offsets and topic ids, and brokers answer for a
thousand partitions as quickly as for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SharedQuestion(Generic[K, V]):
    """Asks for many keys at once, one request after the other.

    Args:
        ask: returns the answers for some keys, without keys that have none.
    """

    def __init__(self, ask: Callable[[list[K]], Awaitable[dict[K, V]]]) -> None:
        self._ask = ask
        self._wanted: dict[K, None] = {}
        self._next: asyncio.Task[dict[K, V]] | None = None
        self._under_way = asyncio.Lock()

    async def of(self, keys: Collection[K]) -> dict[K, V]:
        """Return the answers for these keys, as of now or later, without keys that have none.

        Raises:
            Exception: the error of the request, for all callers that took part in it.
        """
        if not keys:
            return {}
        self._wanted.update(dict.fromkeys(keys))
        if self._next is None:
            self._next = asyncio.create_task(self._ask_next())
            self._next.add_done_callback(_heard)
        found = await asyncio.shield(self._next)
        return {key: found[key] for key in keys if key in found}

    async def _ask_next(self) -> dict[K, V]:
        async with self._under_way:
            asked, self._wanted, self._next = list(self._wanted), {}, None
            return await self._ask(asked)


def _heard(question: asyncio.Task[Any]) -> None:
    """Take the error of a question whose askers may all have gone. Otherwise asyncio logs it."""
    if not question.cancelled():
        question.exception()
