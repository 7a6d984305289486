"""The topics of the cluster, for all pages. It asks for them once at a time, and a slow answer delays no page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from lapse_client.error import LapseError

_FRESH_S: Final = 1.5
"""A list younger than this is used again, in seconds: thousands of topics take a while to list."""

_RECENT_S: Final = 5.0
"""A newly opened page shows a list younger than this at once, in seconds, while the next one is asked for."""

Topics = Mapping[str, int]


class Entities:
    """The topics at the last look.

    Args:
        ask: returns every topic with its number of partitions. It blocks, and is called in a thread.
    """

    def __init__(self, ask: Callable[[], Topics]) -> None:
        self._ask = ask
        self._topics: Topics | None = None
        self._fault: LapseError | None = None
        self._at_s = -1e9
        self._asking: asyncio.Task[None] | None = None

    async def look(self, patience_s: float, *, recent: bool = False) -> Topics:
        """Return every topic with its number of partitions, now or a moment ago.

        Args:
            patience_s: how long to wait for a new list if there is an older one, in seconds.
            recent: whether a list of the last seconds is good enough. The caller then does not wait for the new one.

        Raises:
            LapseError: the last look failed.
        """
        age_s = asyncio.get_running_loop().time() - self._at_s
        if self._asking is None and age_s >= _FRESH_S:
            self._asking = asyncio.create_task(self._look())
        is_known = self._topics is not None and self._fault is None
        if self._asking is not None and not (recent and is_known and age_s < _RECENT_S):
            # Wait for the first list, because nothing can be shown without it.
            await asyncio.wait([self._asking], timeout=None if self._topics is None else patience_s)
        if self._fault is not None:
            raise self._fault
        assert self._topics is not None
        return self._topics

    async def _look(self) -> None:
        try:
            self._topics, self._fault = await asyncio.to_thread(self._ask), None
        except LapseError as error:
            self._fault = error
        finally:
            self._at_s, self._asking = asyncio.get_running_loop().time(), None
