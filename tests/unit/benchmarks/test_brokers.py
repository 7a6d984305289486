"""Each row has the broker that it asks for."""

from __future__ import annotations

import pytest
from benchmarks.__main__ import run
from benchmarks.comparison import brokers, contestant
from benchmarks.comparison.load import Load
from benchmarks.comparison.row import Column, Contestant, Row
from benchmarks.comparison.rows import rows
from rich.console import Console

SHARED = {"KAFKA_BOOTSTRAP_SERVERS": "shared:9092"}
ROW = Row("one", "One", [Contestant("a", "a"), Contestant("b", "b")], [Column("rate", "rate")])


def test_rows_share_a_broker_unless_they_ask_for_their_own() -> None:
    with brokers.broker_of_row(ROW, SHARED) as environment, brokers.broker_of_run(ROW, environment) as its:
        assert its is SHARED


def test_a_broker_that_cannot_be_warmed_fails_its_row_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_warming(*_: object) -> object:
        raise contestant.Failed("no warming today")

    monkeypatch.setattr("benchmarks.__main__.broker_of_row", no_warming)
    outcome = run(ROW, 1, 0, SHARED, Console(quiet=True))
    assert outcome.failed == {"a": "no warming today", "b": "no warming today"}
    assert not outcome.runs


def test_goals_against_share_groups_tell_a_fresh_broker_from_a_warm_one() -> None:
    by_name = {row.name: row for row in rows(Load())}
    assert len(by_name) == len(rows(Load()))
    assert by_name["queue-fresh"].fresh
    assert by_name["queue-warm"].warming == Load().warming
    for name in ("queue-fresh", "queue-warm"):
        assert [goal.text for goal in by_name[name].goals] == [
            "lapse inline / share group",
            "lapse by reference / share group",
            "the client's CPU, inline",
            "the client's CPU, by reference",
        ]


def test_figures_of_rehearsals_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def compete(module: str, *_: object) -> dict[str, float]:
        order.append(module)
        return {"rate": float(len(order))}

    monkeypatch.setattr(contestant, "compete", compete)
    outcome = run(ROW, 2, 1, SHARED, Console(quiet=True))
    assert order == ["a", "b"] * 3
    assert outcome.runs == {"a": [{"rate": 3.0}, {"rate": 5.0}], "b": [{"rate": 4.0}, {"rate": 6.0}]}
