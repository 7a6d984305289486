"""The gate before the commands of a SOW topic: what the logs held when a command came is read before it (C1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from faust.types import TP

from lapse.runtime.shard.inbox import Inbox
from lapse.runtime.shard.payload import LogReader

_LOOK_AGAIN_S: Final = 0.002


class Gate:
    """Lets commands and ticks through.

    Args:
        inbox: what waits.
        log: says where the logs end.
        on_news: called when it is worth looking again.

    Attributes:
        below: commands below this offset may pass.
    """

    def __init__(self, inbox: Inbox, log: LogReader, on_news: Callable[[], None]) -> None:
        self.below = 0
        self._inbox = inbox
        self._log = log
        self._on_news = on_news
        self._closed: tuple[int, dict[TP, int]] | None = None

    @property
    def is_closed(self) -> bool:
        """Whether commands wait for messages."""
        return self._closed is not None

    async def open(self) -> bool:
        """Whether commands may pass: everything is read that the logs held when they came."""
        inbox = self._inbox
        if self._closed is None:
            if not inbox.has_commands:
                return False
            self._closed = (inbox.received[inbox.commands], await self._log.ends(inbox.sources))
        below, ends = self._closed
        for tp in inbox.sources:
            if await inbox.will_bring(tp, ends[tp]):
                asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, self._on_news)
                return False
        self._closed = None
        self.below = below
        return True
