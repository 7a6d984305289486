"""When shards with timers measure the broker's clock: once a second at least, and one of them for all."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("faust")

from lapse.core.lifetime import NEVER
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
        self.behind_ms = 0
        self.sent: list[str] = []
        self.answers = asyncio.Event()
        self.clock = WorkerClock(monotonic=lambda: self.now_s)
        self.measure()

    def broker_now_ms(self) -> int:
        return START_MS + int(self.now_s * 1000) - self.behind_ms

    def measure(self) -> None:
        self.clock.measured(self.now_s, self.now_s, self.broker_now_ms())

    def ticker(self, name: str) -> Ticker:
        machine: Any = SimpleNamespace(
            next_due_ms=lambda: START_MS + int(self.now_s * 1000) + HOUR_MS, is_due=lambda _: False
        )
        return Ticker(name, TP(name, 0), machine, self.producer, self.clock)

    @property
    def producer(self) -> Any:
        async def send_one(topic: str, *_: object) -> Any:
            self.sent.append(topic)
            await self.answers.wait()
            return SimpleNamespace(timestamp_type=1, timestamp=self.broker_now_ms())

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


class Machine:
    """A machine that knows an instant, and nothing that is due."""

    def __init__(self, instant_ms: int) -> None:
        self.instant_ms = instant_ms
        self.figures = SimpleNamespace(tick_lag=SimpleNamespace(add=lambda _: None))

    def next_due_ms(self) -> int:
        return NEVER

    def is_due(self, at_ms: int) -> bool:
        return False

    def set_back(self, now_ms: int) -> None:
        self.instant_ms = now_ms


@pytest.mark.feature("L10", "L13")
def test_a_shard_follows_a_clock_that_is_set_back_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise everything would be due until the clock is there again. A tick that is read late proves nothing."""
    world = World()
    machine: Any = Machine(world.broker_now_ms())
    ticker = Ticker("orders", TP("orders", 0), machine, world.producer, world.clock)
    ahead_ms = world.broker_now_ms()
    ticker.read(SimpleNamespace(timestamp=ahead_ms))
    ticker.read(SimpleNamespace(timestamp=ahead_ms - 5_000))
    ticker.follow_back()
    assert (ticker.reached_ms, machine.instant_ms) == (ahead_ms, ahead_ms)
    for _ in range(2):
        world.behind_ms += HOUR_MS
        world.measure()
        ticker.read(SimpleNamespace(timestamp=ahead_ms))  # was written before the step, and is read behind it
        ticker.follow_back()
        assert ticker.reached_ms == machine.instant_ms == world.clock.now_ms() == world.broker_now_ms()
        ahead_ms = machine.instant_ms
    assert caplog.text.count("was set back by") == 1
    assert f"{HOUR_MS} ms" in caplog.text


def test_a_message_with_an_early_stamp_waits_until_the_clock_is_measured() -> None:
    """While nothing is due, nobody measures the clock, and it may have been set back."""

    async def run() -> None:
        world, news = World(), list[str]()
        ticker = Ticker(
            "orders",
            TP("orders", 0),
            Machine(0),
            world.producer,
            world.clock,
            lambda: news.append("!"),  # type: ignore[arg-type]
        )
        assert not ticker.measures(), "it was measured just now"
        world.now_s += 1
        assert ticker.measures()
        await asyncio.sleep(0)
        assert ticker.measures()
        assert (world.sent, news) == (["orders"], [])
        world.answers.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert news == ["!"]
        assert not ticker.measures()
        await stop(ticker)

    finished(run())
