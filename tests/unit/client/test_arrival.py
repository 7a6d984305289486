"""What has arrived is handed out once, in order; the broker's clock; epochs; the order of results."""

import asyncio
import threading
import time

import pytest

from lapse_client.aio.client import Awakening
from lapse_client.delivery.arrivals import Arrivals
from lapse_client.error import LapseError
from lapse_client.kafka.clock import ClientClock
from lapse_client.session.shard import Shard
from lapse_client.sow.order import Order
from lapse_client.sow.record import SowRecord


@pytest.mark.feature("X3")
def test_takers_share_what_arrives_without_loss_or_repeat() -> None:
    arrivals: Arrivals[int] = Arrivals()
    taken: list[list[int]] = [[] for _ in range(4)]

    def work(number: int) -> None:
        while True:
            item = arrivals.pop() if number % 2 else None
            some = [item] if item is not None else arrivals.take(3, None)
            if not some:
                return
            taken[number] += some

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for start in range(0, 20_000, 10):
        arrivals.put(list(range(start, start + 10)))
    while len(arrivals):
        time.sleep(0.001)
    arrivals.end()
    for thread in threads:
        thread.join(10)
    assert sorted(item for some in taken for item in some) == list(range(20_000))
    assert all(some == sorted(some) for some in taken)


def test_the_end_is_reported_after_what_is_left() -> None:
    arrivals: Arrivals[int] = Arrivals()
    arrivals.put([1, 2])
    arrivals.end(LapseError("gone"))
    assert arrivals.take(9) == [1, 2]
    with pytest.raises(LapseError, match="gone"):
        arrivals.take(9, None)


def test_waiting_ends_in_time() -> None:
    assert Arrivals[int]().take(1, 0.05) == []


@pytest.mark.feature("X3")
def test_what_is_unwanted_is_removed_in_place() -> None:
    arrivals: Arrivals[int] = Arrivals()
    arrivals.put([1, 2, 3, 4])
    assert arrivals.remove(lambda item: item % 2 == 0) == 2
    assert arrivals.take(9) == [1, 3]


@pytest.mark.feature("C3")
def test_the_narrowest_measurement_wins_and_a_step_is_followed() -> None:
    from lapse_client.kafka.clock import elapsed_ms

    clock, base = ClientClock(), 1_000_000

    def ahead_ms() -> float:
        """How far the clock is ahead of this machine's. A process that waits between two looks finds too little."""
        return max(clock.now_ms() - elapsed_ms() for _ in range(9))

    assert clock.past_ms() == float("-inf")
    clock.observe(100.0, base + 105, 110.0)
    assert clock.uncertainty_ms == 5.5
    clock.observe(200.0, base + 290, 300.0)
    assert clock.uncertainty_ms == 5.5
    assert abs(ahead_ms() - base) < 5
    assert min(abs(clock.past_ms() - clock.now_ms()) for _ in range(9)) < 5
    clock.observe(400.0, base + 9_401, 402.0)
    assert abs(ahead_ms() - base - 9_000) < 5


@pytest.mark.feature("X3")
def test_a_lower_epoch_is_void() -> None:
    shard = Shard(0, "q", 0)
    assert shard.enters(b"5")
    assert not shard.enters(b"4")
    assert not shard.enters(b"x")
    assert shard.enters(b"6")
    assert shard.epoch_text == b"6"
    assert shard.enters(None)


@pytest.mark.feature("S5")
def test_results_are_ordered_as_the_shards_order_them() -> None:
    values = [2, "x", None, 1.5, float("nan"), 1 << 70]
    records = [SowRecord(kind="sow", order_value=value) for value in values]
    up, down = Order.parse("/a"), Order.parse("/a desc")
    rising = [one.order_value for one in sorted(records, key=up.key)]
    assert rising[:4] == [1.5, 2, 1 << 70, "x"]
    falling = [one.order_value for one in sorted(records, key=down.key, reverse=down.descending)]
    assert falling[:4] == ["x", 1 << 70, 2, 1.5]


@pytest.mark.feature("X3")
@pytest.mark.parametrize("turns", range(8))
def test_a_cancel_that_meets_an_arrival_ends_the_wait_and_takes_nothing(turns: int) -> None:
    async def wait() -> list[int]:
        arrivals: Arrivals[int] = Arrivals()
        awakening = Awakening("a test", arrivals)
        waiting = asyncio.ensure_future(awakening.take(lambda: arrivals.take(1), 60))
        for _ in range(4):
            await asyncio.sleep(0)
        arrivals.put([7])
        for _ in range(turns):
            await asyncio.sleep(0)
        if not waiting.cancel():
            return waiting.result()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return arrivals.take(1)

    assert asyncio.run(wait()) == [7]
