"""Portions: long work that pauses, so that the caller can do other work in between (C60, C90)."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

T = TypeVar("T")

Portions = Generator[None, None, T]
"""A generator that pauses after each portion, which takes well below a millisecond, and returns a result."""

PORTION: Final = 256
"""How many small items a portion handles."""

PORTION_BYTES: Final = 1 << 18
"""The most payload bytes that filters see in a portion, plus one message. Their work grows with the length of texts."""


class JudgedBytes:
    """Counts the payload bytes that filters see in a portion.

    Attributes:
        is_full: whether they are so many that the portion ends.
    """

    __slots__ = ("_left", "is_full")

    def __init__(self) -> None:
        self._left = PORTION_BYTES
        self.is_full = False

    def add(self, count: int) -> bool:
        """Count bytes, and return whether the portion ends."""
        self._left -= count
        self.is_full = self._left < 0
        return self.is_full


def run_to_end(work: Portions[T]) -> T:
    """Do all portions of some work at once, and return the result."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result


def in_lots(items: Iterable[T], size: int = PORTION) -> Iterator[list[T]]:
    """Yield items in lists of `size`, taking them from the iterable lazily."""
    left = iter(items)
    while lot := list(islice(left, size)):
        yield lot


def clear_in_portions(*items: dict[Any, Any] | list[Any]) -> Portions[None]:
    """Empty containers that are no longer needed, in portions, because freeing very many objects takes long."""
    for some in items:
        while some:
            if isinstance(some, list):
                del some[-PORTION:]
            else:
                for _ in range(min(PORTION, len(some))):
                    some.popitem()
            yield
