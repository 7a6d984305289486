"""What a test repeats: a part in `make test`, less in `make test-fast`, and all of it in `make chaos`.

`make chaos` sets `LAPSE_SOAK`, and `make test-fast` sets `LAPSE_QUICK`.
"""

import os
from collections.abc import Sequence
from typing import Final, TypeVar

AT_LENGTH: Final = "LAPSE_SOAK" in os.environ
QUICK: Final = "LAPSE_QUICK" in os.environ and not AT_LENGTH
_FEWEST = 100
_SHARE = 4

T = TypeVar("T")


def examples(all_of_them: int) -> int:
    """How many examples a generated test looks at: a quarter in `make test`, a sixteenth in `make test-fast`."""
    if AT_LENGTH:
        return all_of_them
    several = max(_FEWEST, all_of_them // _SHARE)
    return several // _SHARE if QUICK else several


def cases(always: Sequence[T], at_length: Sequence[T]) -> list[T]:
    """The cases of a test whose statement the first ones prove already; the others are variants of them."""
    return [*always, *(at_length if AT_LENGTH else ())]
