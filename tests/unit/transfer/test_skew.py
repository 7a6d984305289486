"""The clocks of two clusters, by the stamps that their brokers gave: told once when they differ too much (C74)."""

from __future__ import annotations

import pytest

from lapse.transfer.skew import Skew
from lapse_client.kafka import clock
from lapse_client.kafka.clock import ClientClock

pytestmark = pytest.mark.feature("Q26", "C74")

ANSWERS_MS = 4
"""How long a broker takes to stamp and answer."""


NOW_MS = 5_000.0
"""Time stands still here, since a machine without CPU would look like clocks that are apart."""


@pytest.fixture(autouse=True)
def time_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "elapsed_ms", lambda: NOW_MS)


class Broker:
    """A broker whose clock may be wrong: a client learns it from the stamps of its commands."""

    def __init__(self, off_ms: int) -> None:
        self.off_ms = off_ms
        self.clock = ClientClock(lambda: 1_800_000_000.0)
        self._real_ms = 1_800_000_000_000 - NOW_MS

    def answer(self) -> None:
        """Stamp a command that was sent just now."""
        sent_ms = NOW_MS - ANSWERS_MS
        stamp_ms = round(self._real_ms + sent_ms + ANSWERS_MS / 2) + self.off_ms
        self.clock.observe(sent_ms, stamp_ms, sent_ms + ANSWERS_MS)


@pytest.mark.parametrize(("off_ms", "words"), [(60_000, "ahead of"), (-7_000, "behind")])
def test_a_broker_whose_clock_is_wrong_is_reported_once(
    off_ms: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    here, there, skew = Broker(0), Broker(off_ms), Skew(1_000)
    for _ in range(3):
        here.answer()
        there.answer()
        found_ms = skew.of(here.clock, there.clock, "home", "orders at backup")
        assert found_ms == pytest.approx(abs(off_ms), abs=2 * ANSWERS_MS)
    (logged,) = [record.getMessage() for record in caplog.records]
    assert f" ms {words} that of home" in logged
    assert "orders at backup" in logged


def test_a_small_difference_is_not_reported_and_still_counts(caplog: pytest.LogCaptureFixture) -> None:
    here, there, skew = Broker(0), Broker(400), Skew(1_000)
    here.answer()
    there.answer()
    assert skew.of(here.clock, there.clock, "home", "orders at backup") == pytest.approx(400, abs=2 * ANSWERS_MS)
    assert caplog.records == []


def test_it_is_reported_again_when_the_clocks_agreed_in_the_meantime(caplog: pytest.LogCaptureFixture) -> None:
    here, skew = Broker(0), Skew(1_000)
    here.answer()
    for off_ms in (5_000, 0, 5_000):
        there = Broker(off_ms)
        there.answer()
        skew.of(here.clock, there.clock, "home", "orders at backup")
    assert len(caplog.records) == 2
