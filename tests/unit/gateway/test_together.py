"""Futures of other threads are waited for with one wake-up of the event loop."""

import asyncio
import threading
from concurrent.futures import Future

import pytest

from lapse_gateway.together import all_done


def test_many_futures_wake_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def waits() -> int:
        loop, woken = asyncio.get_running_loop(), list[object]()
        wake = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *told: (woken.append(told), wake(*told)))
        futures: list[Future[int]] = [Future() for _ in range(1_000)]
        futures[0].set_result(0)

        def end(some: list[Future[int]]) -> None:
            for number, future in enumerate(some):
                if number % 10:
                    future.set_result(number)
                else:
                    future.set_exception(ValueError("one that fails"))

        threads = [threading.Thread(target=end, args=(futures[1 + part :: 4],)) for part in range(4)]
        for thread in threads:
            thread.start()
        await asyncio.wait_for(all_done(futures), 20)
        assert all(future.done() for future in futures)
        for thread in threads:
            thread.join()
        return len(woken)

    assert asyncio.run(waits()) == 1


def test_nothing_and_what_is_done_is_not_waited_for_and_nobody_may_wait_any_more() -> None:
    async def waits() -> None:
        done: Future[int] = Future()
        done.set_result(1)
        await all_done([])
        await asyncio.wait_for(all_done([done]), 20)
        late: Future[int] = Future()
        waiting = asyncio.ensure_future(all_done([late]))
        await asyncio.sleep(0)
        waiting.cancel()
        late.set_result(1)
        await asyncio.sleep(0)

    asyncio.run(waits())
