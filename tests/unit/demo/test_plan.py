"""The demo's plan: what a seed decides, how the year is compressed, and when a run counts as balanced."""

from pathlib import Path

import numpy as np
import pytest

from lapse.config import loads
from lapse.demo.accident import SUBSCRIBER, WORKER, accidents
from lapse.demo.plan import Plan
from lapse.demo.timetable import Timetable

DAY_MS = 86_400_000


def plan(**more: object) -> Plan:
    settings = {"bootstrap_servers": "here:9092", "queue": "departures", "sow": "aircraft", "flights": 336_776}
    return Plan(**{**settings, "duration_ms": 180_000, **more})


def test_the_timetable_maps_the_year_to_minutes_and_back() -> None:
    timetable = Timetable(0, 365 * DAY_MS, start_ms=5_000, duration_ms=182_500, lead_ms=1_000)
    assert timetable.speed == DAY_MS / 500
    assert timetable.wall_ms(np.array([0, DAY_MS, 365 * DAY_MS])).tolist() == [6_000, 6_500, 188_500]
    assert timetable.announced_ms(np.array([0, DAY_MS])).tolist() == [5_000, 5_500]
    assert timetable.end_ms == 188_500
    assert timetable.flight_time(6_500).timestamp() == 86_400
    assert timetable.flight_time(0).timestamp() == 0, "it does not run back beyond the first flight"
    assert timetable.progress(0) == 0
    assert timetable.progress(1e12) == 1


def test_accidents_follow_from_the_seed_alone() -> None:
    assert accidents(plan()) == accidents(plan(bootstrap_servers="elsewhere:1"))
    assert accidents(plan(seed=1)) != accidents(plan(seed=2))
    for accident in accidents(plan()):
        assert 0 < accident.after_s < 180
        assert accident.number < (4 if accident.kind == SUBSCRIBER else 2)


def test_a_long_run_loses_a_worker_and_a_short_one_two_subscribers() -> None:
    assert [accident.kind for accident in accidents(plan())].count(WORKER) == 1
    assert [accident.kind for accident in accidents(plan(duration_ms=10_000))] == [SUBSCRIBER, SUBSCRIBER]
    assert WORKER not in [accident.kind for accident in accidents(plan(workers=1))]


def test_processes_read_the_plan_that_was_written(tmp_path: Path) -> None:
    plan().write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == plan()


def test_subscribers_serve_a_little_more_than_the_average() -> None:
    average = 336_776 / 180
    together = 4 / plan().service_s
    assert together == pytest.approx(1.2 * average)
    assert plan().max_backlog == pytest.approx(0.3 * together / 4, abs=1)


def test_the_configuration_is_valid() -> None:
    config = loads(plan().configuration())
    queue = config.queue["departures"].settings("departures", 0)
    assert queue.expiration.enabled
    assert queue.max_cancels == 2
    assert config.sow["aircraft"].expiration == 2_500
