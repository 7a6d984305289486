"""Numbers that are close to each other are sorted as all others are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lapse.core.narrow_order import argsort_narrow, inverse_of, sort_narrow

_NUMBERS = st.one_of(
    st.lists(st.integers(-5, 5)), st.lists(st.integers(0, 1 << 17)), st.lists(st.integers(-(1 << 62), (1 << 62) - 1))
)


@pytest.mark.feature("Q25")
@given(_NUMBERS)
@example([0, 65_535, 0])
@example([1 << 40, (1 << 40) + 65_536, 1 << 40])
def test_numbers_are_in_ascending_order(numbers: list[int]) -> None:
    values = np.array(numbers, np.int64)
    order = argsort_narrow(values)
    assert order.tolist() == sorted(range(len(numbers)), key=numbers.__getitem__)
    assert sort_narrow(values).tolist() == sorted(numbers)
    assert order[inverse_of(order)].tolist() == list(range(len(numbers)))
