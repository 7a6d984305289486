"""Joins requests to the brokers: those that come while one is under way make up the next one.

A worker takes hundreds of shards over at once. Each wants to know a few offsets and topic ids, and brokers tell
those of a thousand partitions as quickly as of one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Together(Generic[K, V]):
    """Asks for many keys at once, one question after the other.

    Args:
        ask: answers for some keys; those without an answer are left out.
    """

    def __init__(self, ask: Callable[[list[K]], Awaitable[dict[K, V]]]) -> None:
        self._ask = ask
        self._wanted: dict[K, None] = {}
        self._next: asyncio.Task[dict[K, V]] | None = None
        self._under_way = asyncio.Lock()

    async def of(self, keys: Collection[K]) -> dict[K, V]:
        """The answers for these keys, as of now or later; those without one are left out.

        Raises:
            Exception: what the question ended with, for all who took part in it.
        """
        if not keys:
            return {}
        self._wanted.update(dict.fromkeys(keys))
        if self._next is None:
            self._next = asyncio.create_task(self._ask_next())
        found = await asyncio.shield(self._next)
        return {key: found[key] for key in keys if key in found}

    async def _ask_next(self) -> dict[K, V]:
        async with self._under_way:
            asked, self._wanted, self._next = list(self._wanted), {}, None
            return await self._ask(asked)
