"""Each row has the broker that it asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import pytest
from benchmarks.__main__ import run
from benchmarks.comparison import brokers, contestant
from benchmarks.comparison.load import Load
from benchmarks.comparison.row import Column, Contestant, Row
from benchmarks.comparison.rows import rows
from rich.console import Console

ROW = Row("one", "One", [Contestant("a", "a"), Contestant("b", "b")], [Column("rate", "rate")])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The contestants that have run, in order, on brokers that are only named."""
    order: list[str] = []

    def compete(module: str, _: object, environment: dict[str, str], __: float) -> dict[str, float]:
        order.append(f"{module} on {environment.get('broker', 'none')}")
        return {"rate": float(len(order))}

    started = count(1)

    @contextmanager
    def fresh_broker() -> Iterator[dict[str, str]]:
        yield {"broker": str(next(started))}

    monkeypatch.setattr(contestant, "compete", compete)
    monkeypatch.setattr(brokers, "fresh_broker", fresh_broker)
    return order


def test_rows_share_a_broker_that_is_warmed_once_unless_they_ask_for_fresh_ones_or_none(asked: list[str]) -> None:
    with brokers.SharedBroker(7) as shared:
        for row in (replace(ROW, kafka=False), replace(ROW, fresh=True), ROW, ROW):
            run(row, 1, 0, shared, Console(quiet=True))
    warm = ["comparison.warming on 3", "a on 3", "b on 3", "a on 3", "b on 3"]
    assert asked == ["a on none", "b on none", "a on 1", "b on 2", *warm]


def test_a_broker_that_cannot_be_warmed_fails_its_row_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_warming(*_: object) -> object:
        raise contestant.Failed("no warming today")

    with brokers.SharedBroker(7) as shared:
        monkeypatch.setattr(shared, "environment", no_warming)
        outcome = run(ROW, 1, 0, shared, Console(quiet=True))
    assert outcome.failed == {"a": "no warming today", "b": "no warming today"}
    assert not outcome.runs


def test_figures_of_rehearsals_do_not_count(asked: list[str]) -> None:
    with brokers.SharedBroker(7) as shared:
        outcome = run(replace(ROW, kafka=False), 2, 1, shared, Console(quiet=True))
    assert asked == ["a on none", "b on none"] * 3
    assert outcome.runs == {"a": [{"rate": 3.0}, {"rate": 5.0}], "b": [{"rate": 4.0}, {"rate": 6.0}]}


def test_goals_against_share_groups_tell_a_fresh_broker_from_a_warm_one() -> None:
    by_name = {row.name: row for row in rows(Load())}
    assert len(by_name) == len(rows(Load()))
    assert by_name["queue-fresh"].fresh
    assert not by_name["queue"].fresh
    for name in ("queue-fresh", "queue"):
        assert [goal.text for goal in by_name[name].goals[:4]] == [
            "lapse inline / share group",
            "lapse by reference / share group",
            "the client's CPU, inline",
            "the client's CPU, by reference",
        ]
