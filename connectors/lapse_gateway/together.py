"""Futures of the client's threads, waited for together: the event loop is woken once, and not for each of them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any


async def all_done(futures: Sequence[Future[Any]]) -> None:
    """Wait until all futures are done, well or not; they go on when nobody waits any more."""
    if not futures:
        return
    loop = asyncio.get_running_loop()
    last: asyncio.Future[None] = loop.create_future()
    done = itertools.count(1)  # counts in one step, whichever threads end the futures

    def end() -> None:
        if not last.done():
            last.set_result(None)

    def one_is_done(_: Future[Any]) -> None:
        if next(done) == len(futures) and not loop.is_closed():
            loop.call_soon_threadsafe(end)

    for future in futures:
        future.add_done_callback(one_is_done)
    await last
