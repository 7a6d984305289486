"""What a test repeats: a part in `make test`, and all of it in `make chaos`, which sets `LAPSE_SOAK`."""

import os
from collections.abc import Sequence
from typing import TypeVar

AT_LENGTH = "LAPSE_SOAK" in os.environ
_FEWEST = 100

T = TypeVar("T")


def examples(all_of_them: int) -> int:
    """How many examples a generated test looks at: a quarter in `make test`."""
    return all_of_them if AT_LENGTH else max(_FEWEST, all_of_them // 4)


def cases(always: Sequence[T], at_length: Sequence[T]) -> list[T]:
    """The cases of a test whose statement the first ones prove already; the others are variants of them."""
    return [*always, *(at_length if AT_LENGTH else ())]
