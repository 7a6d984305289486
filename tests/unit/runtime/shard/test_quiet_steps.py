"""Quiet steps: what a journal says of the steps before it that changed nothing (X10)."""

from __future__ import annotations

import pytest

from lapse.runtime.shard.quiet_steps import QuietSteps

pytestmark = pytest.mark.feature("X10")


@pytest.fixture
def quiet() -> QuietSteps:
    steps = QuietSteps()
    steps.begin({"t:0": 5, "c:0": 1})
    return steps


def test_steps_that_only_read_are_reported_as_one(quiet: QuietSteps) -> None:
    assert quiet.add({"t:0": 5, "c:0": 2}, {"from": 10, "delivered": 11}, alone=False)
    assert quiet.add({"t:0": 5, "c:0": 4}, {"from": 11, "delivered": 12}, alone=False)
    assert quiet.take({"t:0": 6, "c:0": 4}) == [{"read": {"c:0": 4}, "at": {"from": 11, "delivered": 12}}]
    assert not quiet.take({"t:0": 7, "c:0": 4})


def test_a_step_that_read_nothing_is_none(quiet: QuietSteps) -> None:
    assert not quiet.add({"t:0": 5, "c:0": 1}, {"delivered": 11}, alone=False)
    assert quiet.take({"t:0": 6, "c:0": 1}) == []
    assert not quiet.add({"t:0": 6, "c:0": 1}, {"delivered": 12}, alone=False)


def test_a_step_that_carried_out_a_command_stands_by_itself(quiet: QuietSteps) -> None:
    quiet.add({"t:0": 5, "c:0": 2}, {"delivered": 11}, alone=False)
    quiet.add({"t:0": 5, "c:0": 3}, {"delivered": 12}, alone=True)
    quiet.add({"t:0": 5, "c:0": 3}, {"delivered": 13}, alone=True)  # not all could be handed out yet
    quiet.add({"t:0": 5, "c:0": 4}, {"delivered": 14}, alone=False)
    assert quiet.take({"t:0": 6, "c:0": 4}) == [
        {"read": {"c:0": 2}, "at": {"delivered": 11}},
        {"read": {"c:0": 3}, "at": {"delivered": 12}},
        {"read": {}, "at": {"delivered": 13}},
        {"read": {"c:0": 4}, "at": {"delivered": 14}},
    ]
