"""What is known of other deployments, so that one that does not answer keeps no page waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

Key = tuple[str, str]
"""A deployment's name, and who looks at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """A deployment as it was looked at last.

    Attributes:
        name: its name.
        at: where its paths begin.
        cluster: its brokers.
        queues: how many whoever looks may see; None while that is not known.
        answered: how many of them have answered.
        needs: how many need somebody.
        fault: why nothing is known.
    """

    name: str
    at: str
    cluster: str
    queues: int | None = None
    answered: int = 0
    needs: int = 0
    fault: str = ""


class Glances:
    """The last look at each deployment; one look at a time."""

    def __init__(self) -> None:
        self._last: dict[Key, Glance] = {}
        self._looking: dict[Key, asyncio.Task[None]] = {}

    async def look(self, asks: Mapping[Key, Callable[[], Awaitable[Glance]]], patience_s: float) -> dict[Key, Glance]:
        """Look at deployments; what is known of each after a while, those left out of which nothing is.

        Args:
            asks: looks at each; raises nothing.
            patience_s: how long to wait for new ones, in seconds.
        """
        for key, ask in asks.items():
            if key not in self._looking:
                self._looking[key] = asyncio.create_task(self._ask(key, ask))
        looking = [self._looking[key] for key in asks if key in self._looking]
        if looking:
            await asyncio.wait(looking, timeout=patience_s)
        return {key: self._last[key] for key in asks if key in self._last}

    async def _ask(self, key: Key, ask: Callable[[], Awaitable[Glance]]) -> None:
        try:
            self._last[key] = await ask()
        finally:
            del self._looking[key]
