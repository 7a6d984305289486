"""Which tests each target of the Makefile leaves out, by their markers."""

from types import SimpleNamespace
from typing import Any

import pytest

from support.suite import at_length


@pytest.mark.parametrize(
    ("target", "runs"),
    [
        ({}, {"": True, "long": False, "at_length": False}),
        ({"LONG": True}, {"": False, "long": True, "at_length": False}),
        ({"AT_LENGTH": True}, {"": True, "long": True, "at_length": True}),
    ],
    ids=["make test", "make test-long", "make chaos"],
)
def test_each_target_runs_the_tests_of_its_markers(
    target: dict[str, bool], runs: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LONG", "AT_LENGTH"):
        monkeypatch.setattr(at_length, name, target.get(name, False))

    def item(marker: str) -> Any:
        return SimpleNamespace(get_closest_marker=lambda asked: asked if asked == marker else None)

    assert {marker: not at_length.left_out(item(marker)) for marker in runs} == runs


def test_a_long_case_is_marked_and_a_tuple_has_a_value_for_each_parameter() -> None:
    first, second, third = at_length.cases([("a", 1)], long=[("b", 2), pytest.param("c", 3, id="last")])
    assert first == ("a", 1)
    assert (second.values, [mark.name for mark in second.marks]) == (("b", 2), ["long"])
    assert (third.values, third.id, [mark.name for mark in third.marks]) == (("c", 3), "last", ["long"])
