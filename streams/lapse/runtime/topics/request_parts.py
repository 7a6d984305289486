"""Parts of requests: a controller accepts only requests of a limited size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

_MOST_AT_ONCE: Final = 2_000
"""The weight of one request. A controller makes at most 10,000 changes of its metadata at a time."""

_One = TypeVar("_One")


def parts_of_request(all_: Iterable[_One], weight: Callable[[_One], int]) -> Iterator[list[_One]]:
    """Split what is asked for into requests of a size that the controller accepts.

    Args:
        all_: what is asked for.
        weight: returns how many changes one of them is at most.
    """
    part: list[_One] = []
    weighs = 0
    for one in all_:
        if part and weighs + weight(one) > _MOST_AT_ONCE:
            yield part
            part, weighs = [], 0
        part.append(one)
        weighs += weight(one)
    if part:
        yield part
