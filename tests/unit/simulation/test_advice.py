"""Advice: goals as they are written, and the smallest values with which they are met."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.config.definition import Definition
from lapse.simulation.advice import Adviser, smallest
from lapse.simulation.arrival import drawn
from lapse.simulation.crew import Crew
from lapse.simulation.distribution import distribution, pace
from lapse.simulation.goal import Goal, goals
from lapse.simulation.scenario import Scenario, with_settings
from unit.simulation.bad_options import GOALS, Case

pytestmark = pytest.mark.feature("X10")


def test_goals_are_shares_and_times() -> None:
    assert goals("99.5% served, wait 99% < 2s,stay median<500ms") == (
        Goal("served", "", 0.995),
        Goal("wait", "p99", 2_000),
        Goal("stay", "median", 500),
    )
    assert [str(one) for one in goals("99.5% served, wait 99% <= 2s")] == ["99.5% served", "wait 99% < 2s"]


@pytest.mark.feature("X7")
@pytest.mark.parametrize("case", GOALS, ids=lambda case: case.given)
def test_what_is_no_goal_is_refused_with_what_is_expected(case: Case) -> None:
    assert "is no goal" in case.message
    assert '"99% served"' in case.message


@pytest.mark.parametrize("least", range(40))
def test_the_smallest_is_found_with_few_tries(least: int) -> None:
    tried: list[int] = []

    def is_met(at: int) -> bool:
        tried.append(at)
        return at >= least

    assert smallest(40, is_met) == least
    assert len(tried) <= 12
    assert smallest(least, is_met) is None if least else True


def adviser(goal: str, subscribers: int, backlog: int = 1, **settings: object) -> dict[str, str | None]:
    definition = Definition("q", "queue", 1, "test", settings)
    crew = Crew(subscribers, backlog, distribution("100ms"))
    base = Scenario({}, with_settings(definition, Path(), []), crew)
    arrivals = drawn("q", 1, pace("30/s"), 150, None, None, 1)
    found = Adviser(definition, Path(), base, arrivals, 1, goals(goal)).advice()
    return {one.what: one.smallest for one in found}


@pytest.mark.slow
def test_consumers_backlog_lease_and_lifetime_are_each_as_small_as_they_can_be() -> None:
    """30 messages a second for 5 s, of 100 ms each: 3 consumers keep up, 2 are late by 2.5 s at the end."""
    found = adviser("100% served", 3, expiration="2s", leasing="strict")
    assert found == {"subscribers": "3", "backlog": "1", "lease_period": "200ms", "expiration": "1ms"}
    found = adviser("95% served", 2, expiration="2s")
    assert found["backlog"] is not None  # a lease protects what waits at a consumer
    assert found == {"subscribers": "3", "backlog": found["backlog"], "lease_period": None, "expiration": "3s"}
