"""The broker's clock as a worker knows it: wrong wall clocks, steps, slow measurements."""

import logging

import pytest

from lapse.runtime.timers.clock import WorkerClock

pytestmark = pytest.mark.feature("L13", "C3")

START_MS = 1_700_000_000_000


class World:
    """A broker, and a machine whose wall clock is wrong."""

    def __init__(self, ahead_ms: int, max_skew_ms: int = 1_000) -> None:
        self.passed_ms = 0
        self.broker_ms = START_MS
        self.wall_ahead_ms = ahead_ms
        self.clock = WorkerClock(max_skew_ms, self.monotonic, self.wall)

    def monotonic(self) -> float:
        return 50 + self.passed_ms / 1000

    def wall(self) -> float:
        return (self.broker_now_ms() + self.wall_ahead_ms) / 1000

    def broker_now_ms(self) -> int:
        return self.broker_ms + self.passed_ms

    def measure(self, there_ms: int = 2, back_ms: int = 2) -> None:
        """Write a record: so long on its way, so long the acknowledgment."""
        sent = self.monotonic()
        self.passed_ms += there_ms
        stamp_ms = self.broker_now_ms()
        self.passed_ms += back_ms
        self.clock.measured(sent, self.monotonic(), stamp_ms)


@pytest.mark.parametrize("ahead_ms", [-7_000, 7_000])
def test_a_wrong_wall_clock_is_measured_corrected_and_warned_about_once(
    ahead_ms: int, caplog: pytest.LogCaptureFixture
):
    world = World(ahead_ms)
    for _ in range(5):
        world.measure()
        world.passed_ms += 1_000
    assert world.clock.now_ms() == pytest.approx(world.broker_now_ms(), abs=1)
    assert world.clock.skew_ms == pytest.approx(-ahead_ms, abs=2)
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "7000 ms" in warning.message or "6999 ms" in warning.message
    assert ("ahead of" if ahead_ms > 0 else "behind") in warning.message
    deadline_ms = world.broker_now_ms() + 5_000
    assert world.clock.seconds_until(deadline_ms) == pytest.approx(5, abs=0.01)


@pytest.mark.parametrize("ahead_ms", [-300_000, 60_000])
def test_the_wall_clock_is_no_floor_and_decides_nothing_before_the_first_measurement(ahead_ms: int):
    world = World(ahead_ms)
    assert not world.clock.is_measured
    assert world.clock.skew_ms == 0
    with pytest.raises(RuntimeError, match="not measured"):
        world.clock.now_ms()
    with pytest.raises(RuntimeError, match="LogAppendTime"):
        world.clock.seconds_until(world.broker_now_ms())
    assert world.clock.stamp_ms() == world.broker_now_ms() + ahead_ms
    world.measure()
    assert world.clock.now_ms() == pytest.approx(world.broker_now_ms(), abs=3)
    assert world.clock.stamp_ms() == world.clock.now_ms()


def test_a_wrong_clock_is_reported_again_once_an_hour_and_when_it_is_twice_as_wrong(caplog: pytest.LogCaptureFixture):
    """A warning of weeks ago is in no log any more."""
    world, reported = World(5_000), []
    for ahead_ms, wait_s in ((5_000, 0), (5_000, 3_500), (9_000, 10), (9_900, 100), (19_900, 10), (12_000, 3_500)):
        world.passed_ms += 1_000 * wait_s
        world.wall_ahead_ms = ahead_ms
        world.measure()
        reported.append(len(caplog.records))
    assert reported == [1, 1, 1, 2, 3, 3]


def test_within_the_limit_nobody_is_warned(caplog: pytest.LogCaptureFixture):
    world = World(900)
    world.measure()
    assert not caplog.records
    assert world.clock.skew_ms == pytest.approx(-900, abs=2)


def test_a_step_of_the_wall_clock_changes_no_timer(caplog: pytest.LogCaptureFixture):
    """Timers follow the monotonic clock; only the skew, and so the warning, tells that somebody set the clock."""
    world = World(0)
    world.measure()
    before_ms = world.clock.now_ms()
    world.wall_ahead_ms = -3_600_000
    assert world.clock.now_ms() == before_ms
    world.measure()
    assert world.clock.now_ms() == pytest.approx(world.broker_now_ms(), abs=1)
    assert world.clock.skew_ms == pytest.approx(3_600_000, abs=2)
    assert "behind" in caplog.text
    world.wall_ahead_ms = 0
    world.measure()
    world.wall_ahead_ms = 3_600_000
    world.measure()
    assert "ahead of" in caplog.text


@pytest.mark.parametrize("step_ms", [-60_000, 60_000])
def test_a_step_of_the_brokers_clock_is_followed(step_ms: int):
    """Also backwards: what stood still until the old instant would be late by as much."""
    world = World(0)
    for _ in range(3):
        world.measure()
    world.broker_ms += step_ms
    for _ in range(9):
        world.measure(1, 1)
    assert world.clock.now_ms() == pytest.approx(world.broker_now_ms(), abs=1)


def test_a_slow_measurement_does_not_spoil_a_quick_one():
    world = World(0)
    world.measure(1, 1)
    world.measure(400, 0)
    assert world.clock.now_ms() == pytest.approx(world.broker_now_ms(), abs=2)


def test_the_clock_never_goes_back_by_itself_and_never_stands_behind_what_was_seen():
    world = World(5)
    world.measure()
    before_ms = world.clock.now_ms()
    world.measure()
    assert world.clock.now_ms() >= before_ms
    world.clock.note_instant(world.broker_now_ms() + 300)
    assert world.clock.now_ms() == world.broker_now_ms() + 300


def test_an_instant_from_before_a_step_back_is_no_floor():
    """A tick may be read only when the broker's clock was set back and measured again."""
    world = World(0)
    world.measure()
    before_ms = world.broker_now_ms()
    world.broker_ms -= 3_600_000
    world.measure()
    world.clock.note_instant(before_ms)
    assert world.clock.now_ms() == pytest.approx(world.broker_now_ms(), abs=2)
