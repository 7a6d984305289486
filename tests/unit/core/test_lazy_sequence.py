"""A lazy sequence has the indexes and slices of a list."""

from hypothesis import given
from hypothesis import strategies as st

from lapse.core.lazy_sequence import LazySequence


class Doubles(LazySequence[int]):
    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def item(self, at: int) -> int:
        return 2 * at


ENDS = st.none() | st.integers(-6, 6)


@given(st.integers(0, 4), st.integers(-6, 6), ENDS, ENDS, st.sampled_from([None, 1, 2, -1]))
def test_it_is_read_like_a_list(count: int, at: int, first: int | None, stop: int | None, step: int | None) -> None:
    lazy, listed = Doubles(count), [2 * one for one in range(count)]
    assert list(lazy) == listed
    assert lazy[first:stop:step] == listed[first:stop:step]
    for sequence in (lazy, listed):
        try:
            found = sequence[at]
        except IndexError:
            found = None
        assert found == (2 * (at % count) if -count <= at < count else None)
