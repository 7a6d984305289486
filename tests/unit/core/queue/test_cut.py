"""Places by segment: however many ranges there are, each place is named once, in its segment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.queue.segments import cut as cuts
from lapse.core.queue.segments.cut import by_segment, cut
from lapse.core.queue.segments.segment import slots_of

STEPS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 12)), min_size=1, max_size=40)


@pytest.mark.feature("Q16")
@given(STEPS, st.sampled_from([3, 8, 4096]), st.sampled_from([0, 1_000]), st.sampled_from([4, 64]))
def test_places_of_many_ranges_are_those_of_each(steps, size, few, long) -> None:
    places, at = [], 0
    for gap, count in steps:
        places.append((at + gap + 1, count))
        at += gap + 1 + count
    wanted = [place for first, count in places for place in range(first, first + count)]
    assert [index * size + slot for index, low, high in cut(places, size) for slot in range(low, high)] == wanted
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "_FEW", few)
        patch.setattr(cuts, "_LONG", long)
        found = list(by_segment(places, size))
    assert [index * size + slot for index, where in found for slot in slots_of(where).tolist()] == wanted
    assert len({index for index, _ in found}) == len(found)


@pytest.mark.feature("C60")
def test_many_long_ranges_are_not_written_out_place_by_place(monkeypatch) -> None:
    monkeypatch.setattr(cuts, "_cut_many", None)
    places = [(at * 4096, 4096) for at in range(100)]
    assert list(by_segment(places, 4096)) == [(at, slice(0, 4096)) for at in range(100)]


def test_nothing_is_in_no_segment() -> None:
    assert list(by_segment([], 5)) == []
