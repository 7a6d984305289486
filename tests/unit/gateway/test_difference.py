"""The preview of an edit: what changes is shown, wherever it is, and soon."""

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse_gateway.console.difference import difference

pytestmark = pytest.mark.feature("D5")


@given(st.lists(st.sampled_from("abc"), max_size=30), st.lists(st.sampled_from("abc"), max_size=30))
def test_short_texts_are_compared_as_difflib_does(before: list[str], after: list[str]) -> None:
    advice = difference("\n".join(before), "\n".join(after))
    removed = [line for line in advice if line.startswith("-")]
    added = [line for line in advice if line.startswith("+")]
    kept = [line[1:] for line in advice if line.startswith(" ")]
    assert bool(advice) == (before != after)
    assert len(before) - len(removed) == len(after) - len(added)
    assert len(kept) <= min(len(before), len(after))


def test_lines_have_the_numbers_of_the_whole_texts() -> None:
    before = [f"line {number}" for number in range(1, 101)]
    after = [*before[:49], "another", *before[50:]]
    assert difference("\n".join(before), "\n".join(after)) == list(difflib.unified_diff(before, after, lineterm=""))[2:]


def test_an_edit_far_behind_in_a_long_line_is_shown() -> None:
    """A payload is often one line of JSON. Its preview said that the payload is as it was."""
    before = '{"text": "' + "x" * 5_000 + '", "n": 1, "rest": "' + "y" * 5_000 + '"}'
    head, removed, added = difference(before, before.replace('"n": 1', '"n": 2'))
    assert head == "@@ -1 +1 @@"
    assert '"n": 1' in removed
    assert '"n": 2' in added
    assert len(removed) == len(added) < 2_100


@pytest.mark.slow
def test_texts_of_very_many_equal_lines_are_not_compared_line_by_line() -> None:
    """This took minutes, in which the gateway answered nobody."""
    lines = [str(number % 101) for number in range(200_000)]
    advice = difference("\n".join(lines), "\n".join(lines[::-1]))
    assert len(advice) == 401
    assert advice[-1].endswith("lines more")


def test_a_small_edit_in_many_equal_lines_is_shown_as_such() -> None:
    lines = ["}"] * 100_000
    advice = difference("\n".join(lines), "\n".join([*lines[:500], "]", *lines[501:]]))
    assert sorted(line for line in advice if line[0] in "+-") == ["+]", "-}"]
