"""Spans: runs of consecutive numbers, listed one behind the other in a column."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def numbers_of(begins: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers from each begin on, as many as its count says."""
    ends = counts.cumsum()
    numbers: NDArray[np.int64] = np.repeat(begins - ends + counts, counts)
    numbers += np.arange(len(numbers))
    return numbers
