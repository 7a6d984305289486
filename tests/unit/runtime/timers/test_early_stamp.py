"""Stamps ahead of the broker's clock are warned of: beyond `max_clock_skew`, and not with every batch (C6)."""

import logging
from dataclasses import dataclass

import pytest
from faust.types import TP

from lapse.runtime.timers.clock import WorkerClock
from lapse.runtime.timers.early_stamp import EarlyStamps

NOW_MS = 1_700_000_000_000
SOURCE = TP("orders", 3)


@dataclass
class Stamped:
    timestamp: int
    offset: int = 0
    timestamp_type: int = 0


class Time:
    def __init__(self) -> None:
        self.s = 0.0
        self.clock = WorkerClock(500, lambda: self.s, lambda: NOW_MS / 1000 + self.s)
        self.clock.measured(0, 0, NOW_MS)


@pytest.mark.feature("C6")
def test_a_stamp_beyond_the_skew_is_warned_of_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    stamps = EarlyStamps("orders", time.clock)
    stamps.look(SOURCE, [Stamped(NOW_MS + 500), Stamped(NOW_MS - 5_000, 1)])
    assert not caplog.records
    stamps.look(SOURCE, [Stamped(NOW_MS + 501, 7), Stamped(NOW_MS - 5_000, 8)])
    (logged,) = caplog.records
    assert logged.levelno == logging.WARNING
    assert "orders: orders:3:7 is stamped 501 ms ahead" in logged.getMessage()
    time.s = 59.9
    stamps.look(SOURCE, [Stamped(NOW_MS + 90_000)])
    stamps.look(TP("orders", 4), [Stamped(NOW_MS + 90_000)])
    assert len(caplog.records) == 2
    time.s = 60.0
    stamps.look(SOURCE, [Stamped(NOW_MS + 90_000)])
    assert len(caplog.records) == 3


@pytest.mark.feature("C6")
def test_the_brokers_own_stamps_and_missing_ones_are_not(caplog: pytest.LogCaptureFixture) -> None:
    stamps = EarlyStamps("orders", Time().clock)
    stamps.look(SOURCE, [Stamped(NOW_MS + 90_000, timestamp_type=1)])
    stamps.look(SOURCE, [Stamped(-1)])
    assert not caplog.records
