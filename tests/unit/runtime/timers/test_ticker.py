"""When shards with timers measure the broker's clock: once a second at least, and one of them for all."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("faust")

from lapse.runtime.timers.clock import WorkerClock
from lapse.runtime.timers.ticker import Ticker
from lapse.runtime.tp import TP
from support.suite.event_loop import finished

pytestmark = pytest.mark.feature("C3")

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


class World:
    """Shards of one worker, each with a timer in an hour."""

    def __init__(self) -> None:
        self.now_s = 50.0
        self.sent: list[str] = []
        self.clock = WorkerClock(monotonic=lambda: self.now_s)
        self.measure()

    def measure(self) -> None:
        self.clock.measured(self.now_s, self.now_s, START_MS + int(self.now_s * 1000))

    def ticker(self, name: str) -> Ticker:
        machine: Any = SimpleNamespace(
            next_due_ms=lambda: START_MS + int(self.now_s * 1000) + HOUR_MS, is_due=lambda _: False
        )
        return Ticker(name, TP(name, 0), machine, self.producer, self.clock)

    @property
    def producer(self) -> Any:
        async def send_one(topic: str, *_: object) -> None:
            self.sent.append(topic)
            await asyncio.Event().wait()

        return SimpleNamespace(send_one=send_one)


async def stop(*tickers: Ticker) -> None:
    for ticker in tickers:
        ticker.stop()
    for _ in range(2):
        await asyncio.sleep(0)  # so that their tasks end


def waits_s(ticker: Ticker) -> float:
    """How long until the ticker looks at the clock again, s."""
    assert ticker._timer is not None
    return ticker._timer.when() - asyncio.get_running_loop().time()


def test_a_step_does_not_put_a_measurement_off() -> None:
    async def run() -> None:
        world = World()
        ticker = world.ticker("orders")
        for _ in range(4):  # each step arms the timer anew
            world.now_s += 0.2
            ticker.arm()
        assert waits_s(ticker) < 0.2, "a second after the measurement at the latest"
        world.now_s += 0.2
        ticker._tick()
        await asyncio.sleep(0)
        assert world.sent == ["orders"]
        await stop(ticker)

    finished(run())


@pytest.mark.feature("C76", "L11")
def test_what_waits_for_arrivals_does_not_stop_the_other_timers() -> None:
    """A scheduled message may wait long for the ends of the logs. Leases and deadlines need ticks meanwhile."""

    async def run() -> None:
        world = World()
        ticker = world.ticker("orders")
        ticker.reached_ms = START_MS + HOUR_MS
        ticker._machine.next_due_ms = lambda: START_MS  # type: ignore[method-assign]
        ticker.arm()
        assert 0 < waits_s(ticker) <= 1
        world.now_s += 1
        ticker._tick()
        await asyncio.sleep(0)
        assert world.sent == ["orders"]
        await stop(ticker)

    finished(run())


def test_one_of_many_shards_measures_and_the_others_follow_if_it_hangs() -> None:
    async def run() -> None:
        world = World()
        tickers = [world.ticker(name) for name in ("a", "b", "c")]
        world.now_s += 1
        for ticker in tickers:
            ticker._tick()
        await asyncio.sleep(0)
        assert world.sent == ["a"]
        assert [waits_s(ticker) <= 1 for ticker in tickers[1:]] == [True, True]
        world.now_s += 1
        for ticker in tickers[1:]:
            ticker._tick()
        await asyncio.sleep(0)
        assert world.sent == ["a", "b"]
        for ticker in tickers:
            await stop(ticker)

    finished(run())
