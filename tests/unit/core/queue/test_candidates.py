"""Candidates: however few are wanted and wherever they stand, they are the first ones that can be delivered."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.core.lifetime import NEVER
from lapse.core.queue.delivery.candidates import available
from lapse.core.queue.delivery.choice import _Ranked
from lapse.core.queue.segments.segment import SIZE, Segment, State
from lapse.core.queue.state import QueueState

NOW_MS = 1_000
PIECES = st.lists(
    st.tuples(
        st.sampled_from([State.AVAILABLE, State.LEASED, State.GONE]),
        st.sampled_from([NOW_MS - 1, NOW_MS, NOW_MS + 1, NEVER]),
        st.sampled_from([1, 2, 63, 64, 65, 300, 4_000]),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.feature("Q3")
@settings(deadline=None)
@given(PIECES, st.sampled_from([1, 2, 10, 64, 100, 5_000]), st.sampled_from([-1, NOW_MS]), st.booleans())
def test_the_first_ones_are_found_however_they_are_scattered(pieces, limit, now_ms, with_deadlines) -> None:
    states = [state for state, _, count in pieces for _ in range(count)]
    deadlines_ms = [at_ms if with_deadlines else NEVER for _, at_ms, count in pieces for _ in range(count)]
    state = QueueState()
    for first in range(0, len(states), SIZE):
        segment = state.segments[first // SIZE] = Segment(first // SIZE)
        segment.used = len(states[first : first + SIZE])
        segment.state[: segment.used] = states[first : first + SIZE]
        if with_deadlines:
            segment.deadlines()[: segment.used] = deadlines_ms[first : first + SIZE]
        segment.recount()
    state.next_place = len(states)
    wanted = [
        place
        for place, (one, at_ms) in enumerate(zip(states, deadlines_ms, strict=True))
        if one is State.AVAILABLE and (now_ms < 0 or at_ms > now_ms)
    ]
    assert list(available(state, limit, now_ms)) == wanted[:limit]


@pytest.mark.feature("Q11")
@settings(deadline=None)
@given(st.lists(st.sampled_from([None, 0, 1, 2, 1 << 63]), min_size=1, max_size=40), st.integers(1, 12), st.randoms())
def test_the_first_ones_by_priority_are_those_of_a_whole_sort(ranks, limit, chance) -> None:
    messages = [(rank is None, 0 if rank is None else rank, place) for place, rank in enumerate(ranks)]
    chance.shuffle(messages)
    unranked, complements, places = zip(*messages, strict=True)
    part = _Ranked(np.array(unranked), np.array(complements, np.uint64), np.array(places, np.int64))
    found = _Ranked.merged([part], limit)
    assert list(zip(*(column.tolist() for column in found), strict=True)) == sorted(messages)[:limit]
