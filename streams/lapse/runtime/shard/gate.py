"""Gates: hold back commands or scheduled messages until the underlying logs are read up to an instant (C1, C76)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from lapse.core.lifetime import NEVER
from lapse.runtime.shard.inbox import Inbox
from lapse.runtime.shard.log import Log, SilentLog
from lapse.runtime.shard.machine import Machine
from lapse.runtime.tp import TP

_LOOK_AGAIN_S: Final = 0.002


class Gate:
    """Lets commands and ticks pass, of a SOW topic or of a queue that checks that nothing is left (L11).

    Args:
        inbox: holds the waiting records.
        log: says where the logs end.
        on_news: called when the gate may have opened.

    Attributes:
        below: commands below this offset may pass.
    """

    def __init__(self, inbox: Inbox, log: Log, on_news: Callable[[], None]) -> None:
        self.below = 0
        self._inbox = inbox
        self._log = log
        self._on_news = on_news
        self._closed: tuple[int, dict[TP, int]] | None = None
        self._seen: dict[TP, int] = {}

    @property
    def is_closed(self) -> bool:
        """Whether commands wait for messages."""
        return self._closed is not None

    async def open(self) -> bool:
        """Return whether commands may pass: all messages are taken in that the logs held when the commands arrived."""
        inbox = self._inbox
        if self._closed is None:
            if not inbox.has_commands:
                return False
            self._closed = (inbox.received[inbox.commands], await self._log.existing_ends(inbox.sources))
        below, ends = self._closed
        if not await _are_taken_in(inbox, ends, self._on_news):
            return False
        self._closed = None
        self.below = below
        return True

    async def unreceived(self) -> list[TP]:
        """Return partitions in which records are that were not received, and were not there at the last call.

        A partition is left out of the fetch while very many of its records wait for room.
        """
        ends, received = await self._log.existing_ends(self._inbox.sources), self._inbox.received
        found = [tp for tp, end in ends.items() if end > max(received.get(tp, 0), self._seen.get(tp, 0))]
        self._seen |= ends
        return found


class ArrivalGate:
    """Lets scheduled messages take their places, once everything that arrived before their instant is taken in (C76).

    The logs are asked for their ends only when a message is due, and beside the steps, so that others go on. While a
    partition has no leader, they are asked again and again.

    Args:
        machine: the shard's machine.
        inbox: holds the waiting records.
        log: says where the logs end.
        on_news: called when the gate may have opened.
    """

    def __init__(self, machine: Machine, inbox: Inbox, log: Log, on_news: Callable[[], None]) -> None:
        self._machine = machine
        self._inbox = inbox
        self._log = log
        self._on_news = on_news
        self._asked: tuple[int, asyncio.Task[dict[TP, int]]] | None = None

    async def let_pass(self, reached_ms: int) -> bool:
        """Let scheduled messages take their places behind messages that arrived before their instant.

        Args:
            reached_ms: an instant that the broker's clock has passed, ms since the epoch.

        Returns:
            Whether no message that is due by then must wait any more.
        """
        while self._machine.waits_for_arrivals(reached_ms):
            read_to_ms = await self._read_to(reached_ms)
            if read_to_ms is None:
                return False
            self._machine.arrivals_are_in(read_to_ms)
        return True

    def must_ask(self, reached_ms: int) -> bool:
        """Return whether a message is due for which the logs have not been asked yet.

        A step makes room below the target depth after it has let messages pass, for example when a lease ends.
        """
        return self._asked is None and self._machine.waits_for_arrivals(reached_ms)

    async def _read_to(self, reached_ms: int) -> int | None:
        """Return the instant up to which all arrivals are taken in, ms since the epoch; None if not known yet."""
        if self._asked is None:
            task = asyncio.create_task(self._log.existing_ends(self._inbox.sources), name="ends of the underlying logs")
            task.add_done_callback(lambda _: self._on_news())
            self._asked = reached_ms, task
        asked_ms, task = self._asked
        to_ms = min(asked_ms, reached_ms)  # later arrivals may have to wait for a command
        if not task.done():
            return None
        if isinstance(task.exception(), SilentLog):
            self._asked = None  # asked again in the next step: other messages, leases and deadlines go on
            return None
        if not await _are_taken_in(self._inbox, task.result(), self._on_news, to_ms):
            return None
        self._asked = None
        return to_ms

    def stop(self) -> None:
        """Cancel the request for the ends."""
        if self._asked is not None:
            self._asked[1].cancel()


async def _are_taken_in(inbox: Inbox, ends: Mapping[TP, int], on_news: Callable[[], None], to_ms: int = NEVER) -> bool:
    """Return whether all messages below these ends are taken in, up to an instant; else look again soon."""
    for tp in inbox.sources:
        if tp in ends and await inbox.will_bring(tp, ends[tp], to_ms):
            asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, on_news)
            return False
    return True
