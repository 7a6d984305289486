"""Repetitions of tests: some of them in `make test`, fewer in `make test-fast`, and all in `make chaos`.

`make chaos` sets `LAPSE_SOAK`, `make test-long` sets `LAPSE_LONG`, and `make test-fast` sets `LAPSE_QUICK`.
"""

import os
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import pytest
from _pytest.mark import ParameterSet

AT_LENGTH: Final = "LAPSE_SOAK" in os.environ
LONG: Final = "LAPSE_LONG" in os.environ and not AT_LENGTH
QUICK: Final = "LAPSE_QUICK" in os.environ and not AT_LENGTH
_FEWEST = 50
_SHARE = 4
_QUICK_FEWEST = 10
_QUICK_SHARE = 40

T = TypeVar("T")


def examples(all_of_them: int) -> int:
    """Return how many examples a generated test tries.

    `make test` tries a quarter, and at least 50. `make test-fast` tries a fortieth, and at least 10.
    """
    if AT_LENGTH:
        return all_of_them
    return max(_QUICK_FEWEST, all_of_them // _QUICK_SHARE) if QUICK else max(_FEWEST, all_of_them // _SHARE)


def left_out(item: pytest.Item) -> bool:
    """Tell whether this run leaves a test out, by its markers.

    `make chaos` leaves none out. `make test-long` runs those marked `long`. `make test` runs those with neither marker.
    """
    if AT_LENGTH:
        return False
    return item.get_closest_marker("at_length") is not None or (item.get_closest_marker("long") is not None) != LONG


def cases(always: Sequence[T], at_length: Sequence[T] = (), *, long: Sequence[T] = ()) -> list[Any]:
    """Return a test's cases. `always` proves the statement. A tuple has a value for each of the test's parameters.

    Args:
        always: the cases that `make test` runs.
        at_length: variants for `make chaos` only.
        long: variants for `make test-long` and `make chaos`.
    """
    return [*always, *map(_long, long), *(at_length if AT_LENGTH else ())]


def alike(first: T, *others: T) -> list[Any]:
    """Return cases that show one statement. `make test-fast` tries only the first. A case may be a `pytest.param`."""
    return [first, *map(_slow, others)]


def _long(case: object) -> ParameterSet:
    if isinstance(case, ParameterSet):
        return pytest.param(*case.values, marks=[*case.marks, pytest.mark.long], id=case.id)
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long)


def _slow(case: object) -> ParameterSet:
    if isinstance(case, ParameterSet):
        return pytest.param(*case.values, marks=[*case.marks, pytest.mark.slow], id=case.id)
    return pytest.param(case, marks=pytest.mark.slow)
