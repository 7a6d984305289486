"""Distributions of a simulation: how they are written, what is refused, and that a seed draws the same again."""

from __future__ import annotations

import random

import pytest

from lapse.simulation.arrival import BEGIN_MS, drawn
from lapse.simulation.distribution import distribution, pace
from unit.simulation.bad_options import CASES, Case

pytestmark = pytest.mark.feature("X10")


@pytest.mark.parametrize(
    ("text", "mean_ms", "within_ms"),
    [
        ("200ms", 200, 0),
        ("exponential:200ms", 200, 10),
        ("uniform:100ms:300ms", 200, 5),
        ("lognormal:200ms:0.5", 226.6, 10),  # median times e to the half of the variance
    ],
)
def test_times_have_the_mean_of_their_distribution(text: str, mean_ms: float, within_ms: float) -> None:
    found = distribution(text)
    draw, again = found.drawing(random.Random(7)), found.drawing(random.Random(7))
    times = [draw() for _ in range(20_000)]
    assert found.mean_ms == pytest.approx(mean_ms, abs=0.1)
    assert sum(times) / len(times) == pytest.approx(mean_ms, abs=within_ms)
    assert [again() for _ in range(20_000)] == times
    assert distribution(str(found)) == found


@pytest.mark.parametrize(
    ("text", "gap_ms"), [("50/s", 20), ("poisson:50/s", 20), ("30/m", 2000), ("4000/s", 0.25), ("exponential:20ms", 20)]
)
def test_a_pace_is_a_rate_or_the_time_between_two(text: str, gap_ms: float) -> None:
    assert pace(text).gap_ms.first_ms == gap_ms


@pytest.mark.feature("X7")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.given)
def test_what_is_no_distribution_is_refused_with_what_is_expected(case: Case) -> None:
    assert case.message.startswith(f"{case.given!r}")
    assert "expected" in case.message
    assert case.option != "--arrivals" or '"50/s"' in case.message


def test_arrivals_are_the_same_for_the_same_seed_and_take_turns_between_partitions() -> None:
    some = drawn("t", 3, pace("poisson:1000/s"), 500, None, distribution("exponential:1s"), 5)
    same = drawn("t", 3, pace("poisson:1000/s"), 500, None, distribution("exponential:1s"), 5)
    other = drawn("t", 3, pace("poisson:1000/s"), 500, None, distribution("exponential:1s"), 6)
    assert list(some) == list(same) != list(other)
    assert [(one.partition, one.record.offset) for one in list(some)[:4]] == [(0, 0), (1, 0), (2, 0), (0, 1)]
    assert list(some) == sorted(some, key=lambda one: one.at_ms)


def test_arrivals_end_after_their_time_or_their_number() -> None:
    assert len(drawn("t", 1, pace("10/s"), None, 2_000, None, 1)) == 19  # the first comes after 100 ms
    assert len(drawn("t", 1, pace("10/s"), 5, 2_000, None, 1)) == 5
    assert drawn("t", 1, pace("10/s"), 5, None, None, 1).first_ms == BEGIN_MS + 100
    with pytest.raises(ValueError, match="how many messages come in, or for how long"):
        drawn("t", 1, pace("10/s"), None, None, None, 1)
    with pytest.raises(ValueError, match="more than 5,000,000 messages") as refused:
        drawn("t", 1, pace("poisson:1/s"), None, 365 * 86_400_000, None, 1)
    assert "shorten the time" in str(refused.value)
