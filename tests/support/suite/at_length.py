"""Repetitions of tests: some of them in `make test`, fewer in `make test-fast`, and all in `make chaos`.

`make chaos` sets `LAPSE_SOAK`, and `make test-fast` sets `LAPSE_QUICK`.
"""

import os
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import pytest

AT_LENGTH: Final = "LAPSE_SOAK" in os.environ
QUICK: Final = "LAPSE_QUICK" in os.environ and not AT_LENGTH
_FEWEST = 100
_SHARE = 4

T = TypeVar("T")


def examples(all_of_them: int) -> int:
    """Return how many examples a generated test tries: a quarter in `make test`, a sixteenth in `make test-fast`."""
    if AT_LENGTH:
        return all_of_them
    several = max(_FEWEST, all_of_them // _SHARE)
    return several // _SHARE if QUICK else several


def cases(always: Sequence[T], at_length: Sequence[T]) -> list[T]:
    """Return a test's cases. `always` proves the statement; `at_length` has variants, for `make chaos` only."""
    return [*always, *(at_length if AT_LENGTH else ())]


def alike(first: T, *others: T) -> list[Any]:
    """Return cases that show one statement. `make test-fast` tries only the first."""
    return [first, *(pytest.param(one, marks=pytest.mark.slow) for one in others)]
