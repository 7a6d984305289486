"""Proportional shares by the level: the same as if each message were dealt out by itself (Q7, C49)."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lapse.core.queue.delivery.proportion import Vessel, shares

DEALT = 100
VESSELS = st.lists(
    st.tuples(st.sampled_from([1, 2, 3, 4, 6, 12, 50, 97, 1_000]), st.floats(0, 0.999), st.integers(-1, DEALT - 1)),
    min_size=1,
    max_size=6,
).map(lambda some: [Vessel(int(most * part), most, served) for most, part, served in some])


def one_by_one(count: int, vessels: list[Vessel]) -> tuple[list[int], list[int], list[int]]:
    """How many each one gets, the order of the first ones, and when each was served last."""
    counts, served = [0] * len(vessels), [one.served for one in vessels]
    first: list[int] = []
    for position in range(count):
        having_room = [at for at, one in enumerate(vessels) if one.outstanding + counts[at] < one.backlog]
        if not having_room:
            break
        chosen = min(
            having_room,
            key=lambda at: (Fraction(vessels[at].outstanding + counts[at], vessels[at].backlog), served[at], at),
        )
        if not counts[chosen]:
            first.append(chosen)
        counts[chosen] += 1
        served[chosen] = DEALT + position
    return counts, first, served


@pytest.mark.feature("Q7", "C49")
@given(st.integers(0, 300), VESSELS)
@example(2, [Vessel(0, 1, -1), Vessel(0, 1, -1), Vessel(387, 1_000, 43), Vessel(313, 1_000, -1), Vessel(0, 1, -1)])
@example(6, [Vessel(0, 4, -1), Vessel(2, 4, 5), Vessel(0, 2, 7)])
@example(9, [Vessel(0, 6, 3), Vessel(0, 6, 3), Vessel(3, 6, 1), Vessel(0, 1, 0)])
def test_shares_by_the_level_are_those_of_messages_one_by_one(count: int, vessels: list[Vessel]) -> None:
    found = shares(count, vessels, DEALT)
    counts, first, served = one_by_one(count, vessels)
    assert [one.number for one in found] == counts
    sharing = [at for at, one in enumerate(found) if one.number]
    assert sorted(sharing, key=lambda at: found[at].first) == first
    assert all(found[at].served == served[at] for at in range(len(found)) if at not in sharing)
    # Only the order counts: who was served last waits longest for the next one.
    assert sorted(sharing, key=lambda at: found[at].served) == sorted(sharing, key=lambda at: served[at])
    assert all(DEALT <= found[at].served < DEALT + sum(counts) for at in sharing)
    assert len({found[at].served for at in sharing}) == len(sharing)
