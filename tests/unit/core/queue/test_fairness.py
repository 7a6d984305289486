"""Dealing out: every message goes to somebody as long as there is space, in the order that the rule says (Q7)."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.queue.fairness import allot
from lapse.core.queue.settings import Fairness
from lapse.core.queue.subscription import Subscription

SUBSCRIBED = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=4).flatmap(
    lambda some: st.permutations([(number, *one) for number, one in enumerate(some)])
)


def one_by_one(fairness: Fairness, count: int, some: list[Subscription], turn: int) -> list[int]:
    """Who gets each message, dealt out singly."""
    space, outstanding, got = {s.number: s.space for s in some}, {s.number: s.outstanding for s in some}, []
    for _ in range(min(count, sum(space.values()))):
        open_ones = [s for s in some if space[s.number]]
        if fairness is Fairness.FAST:
            chosen = open_ones[0]
        elif fairness is Fairness.ROUND_ROBIN:
            chosen = min(open_ones, key=lambda s: (s.number <= turn, s.number))
        else:
            chosen = min(open_ones, key=lambda s: Fraction(outstanding[s.number], s.max_backlog))
        turn = chosen.number
        space[turn] -= 1
        outstanding[turn] += 1
        got.append(turn)
    return got


@pytest.mark.feature("Q7")
@given(st.sampled_from(Fairness), st.integers(0, 20), SUBSCRIBED, st.integers(-1, 4))
def test_dealing_out_at_once_is_dealing_out_one_by_one(fairness: Fairness, count: int, told: list, turn: int) -> None:
    some = [Subscription(f"s{n}", n, "", most, most, 1_000, outstanding=held) for n, most, held in told]
    shares, served_last = allot(fairness, count, some, turn)
    expected = one_by_one(fairness, count, some, turn)
    assert {s.number: share for s, share in shares} == {
        number: [at for at, one in enumerate(expected) if one == number] for number in expected
    }
    if fairness is Fairness.ROUND_ROBIN:
        assert served_last == (expected[-1] if expected else turn)
