"""The last known state of other deployments, so that a silent one delays no page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

Key = tuple[str, str]
"""A deployment's name, and the name of the user who looks at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """A deployment at the last look.

    Attributes:
        name: name of the deployment.
        at: prefix of its paths.
        cluster: its brokers.
        queues: number of queues that the user may see; None while unknown.
        answered: number of queues that have answered.
        needs: number of queues that need attention.
        fault: why nothing is known; empty if something is.
    """

    name: str
    at: str
    cluster: str
    queues: int | None = None
    answered: int = 0
    needs: int = 0
    fault: str = ""


class Glances:
    """The last look at each deployment. Only one look at a deployment runs at a time."""

    def __init__(self) -> None:
        self._last: dict[Key, Glance] = {}
        self._looking: dict[Key, asyncio.Task[None]] = {}

    async def look(self, asks: Mapping[Key, Callable[[], Awaitable[Glance]]], patience_s: float) -> dict[Key, Glance]:
        """Look at deployments, and return the known ones after at most `patience_s` seconds.

        Args:
            asks: functions that look at each deployment, and raise nothing.
            patience_s: how long to wait for new looks, in seconds.
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
