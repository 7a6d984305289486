"""Dealing out: every message goes to somebody as long as there is space, in the order that the rule says (Q7)."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.queue.delivery.fairness import Turns
from lapse.core.queue.settings import Fairness, QueueSettings
from lapse.core.queue.settlement.settlement import Claim
from lapse.core.queue.subscriptions.subscription import Subscription
from unit.core.queue.world import World

SUBSCRIBED = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=4).flatmap(
    lambda some: st.permutations([(number, *one) for number, one in enumerate(some)])
)
ROUNDS = st.lists(st.lists(st.integers(-1, 4), max_size=20), max_size=4)
"""Last holders of the messages of each round; -1 = none."""


class OneByOne:
    """Deals out messages singly."""

    def __init__(self, fairness: Fairness) -> None:
        self.fairness = fairness
        self.turn = -1
        self.served: list[int] = []

    def deal(self, last: list[int], some: list[Subscription]) -> list[int]:
        """Who gets each message."""
        space, outstanding, got = {s.number: s.space for s in some}, {s.number: s.outstanding for s in some}, []
        for holder in last[: sum(space.values())]:
            open_ones = [s for s in some if space[s.number]]
            open_ones = [s for s in open_ones if s.number != holder] or open_ones
            if self.fairness is Fairness.FAST:
                chosen = open_ones[0]
            elif self.fairness is Fairness.ROUND_ROBIN:
                chosen = min(open_ones, key=lambda s: (s.number <= self.turn, s.number))
            else:
                waits = {s.number: self.served.index(s.number) if s.number in self.served else -1 for s in open_ones}
                chosen = min(open_ones, key=lambda s: (Fraction(outstanding[s.number], s.max_backlog), waits[s.number]))
            self.turn = chosen.number
            self.served = [number for number in self.served if number != chosen.number] + [chosen.number]
            space[chosen.number] -= 1
            outstanding[chosen.number] += 1
            got.append(chosen.number)
        return got


@pytest.mark.feature("Q7", "C49")
@given(st.sampled_from(Fairness), ROUNDS, SUBSCRIBED)
def test_dealing_out_at_once_is_dealing_out_one_by_one(fairness: Fairness, rounds: list, subscribed: list) -> None:
    some = [Subscription(f"s{n}", n, "", most, most, 1_000, outstanding=held) for n, most, held in subscribed]
    turns, singly = Turns(fairness), OneByOne(fairness)
    for last in rounds:
        shares = turns.allot(len(last), some, last if max(last, default=-1) >= 0 else None)
        expected = singly.deal(last, some)
        assert {s.number: list(share) for s, share in shares} == {
            number: [at for at, one in enumerate(expected) if one == number] for number in expected
        }


@pytest.mark.feature("C49")
def test_equals_take_turns() -> None:
    some = [Subscription(f"s{n}", n, "", 2, 2, 1_000) for n in range(3)]
    turns = Turns(Fairness.PROPORTIONAL)
    served = [one.number for _ in range(6) for one, _ in turns.allot(1, some)]
    assert served == [0, 1, 2, 0, 1, 2]


@pytest.mark.feature("Q7", "Q14")
@pytest.mark.parametrize("text", ["", "/f = 1"])
@pytest.mark.slow
def test_subscriptions_that_ended_are_forgotten(text: str) -> None:
    """With filters or groups, each one took a little memory until the worker ended."""
    one = World(QueueSettings(name="orders"))
    for number in range(200):
        one.publish("orders", body={"f": 1})
        one.read("orders")
        one.subscribe(f"s{number}", text=text)
        assert one.deliver()
        one.settle("acknowledge", f"s{number}", Claim("orders", 0, number, number))
        one.unsubscribe(f"s{number}")
    assert len(one.shard._dispatch._turns._served) <= 66


@pytest.mark.feature("C49")
@pytest.mark.parametrize("fairness", Fairness)
def test_what_came_back_goes_to_another_one_unless_there_is_none_with_room(fairness: Fairness) -> None:
    some = [Subscription(f"s{n}", n, "", 1, 1, 1_000) for n in range(2)]
    shares = Turns(fairness).allot(2, some, [0, 0])
    assert {one.number: list(share) for one, share in shares} == {1: [0], 0: [1]}


@pytest.mark.feature("Q7", "C49")
@given(st.lists(st.integers(1, 900), min_size=1, max_size=3), SUBSCRIBED)
@pytest.mark.slow
def test_many_are_dealt_out_in_blocks_and_everyone_gets_as_many_as_one_by_one(
    counts: list[int], subscribed: list
) -> None:
    some = [
        Subscription(f"s{n}", n, "", 200 * most, 200 * most, 1_000, outstanding=150 * held)
        for n, most, held in subscribed
    ]
    turns, singly = Turns(Fairness.PROPORTIONAL), OneByOne(Fairness.PROPORTIONAL)
    for count in counts:
        shares = turns.allot(count, some)
        expected = Counter(singly.deal([-1] * count, some))
        assert {one.number: len(share) for one, share in shares} == expected
        assert sorted(at for _, share in shares for at in share) == list(range(expected.total()))
        assert all(list(share) == sorted(share) for _, share in shares)
        if expected.total() >= 64:
            blocks = max(4, -(-max(expected.values()) // 256))
            assert all(sum(after - at > 1 for at, after in pairwise(share)) < blocks for _, share in shares)


@pytest.mark.feature("Q7")
def test_no_block_holds_more_than_a_quarter_of_what_a_subscription_gets() -> None:
    some = [Subscription(f"s{n}", n, "", 2_000, 2_000, 1_000) for n in range(2)]
    for count, block in ((64, 8), (2_000, 250), (4_000, 250)):
        for _, share in Turns(Fairness.PROPORTIONAL).allot(count, some):
            runs = "".join("." if after - at == 1 else " " for at, after in pairwise(share)).split(" ")
            assert [len(run) + 1 for run in runs] == [block] * (count // 2 // block)
