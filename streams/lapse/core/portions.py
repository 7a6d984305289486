"""Long work in portions: after each portion the caller decides whether others have a turn first (C60, C90)."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

T = TypeVar("T")

Portions = Generator[None, None, T]
"""Work that pauses after each portion, which takes well below a millisecond, and returns its result."""

PORTION: Final = 256
"""How many small items are handled at a time."""


def whole(work: Portions[T]) -> T:
    """Do all of it in one go."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result


def in_lots(items: Iterable[T], size: int = PORTION) -> Iterator[list[T]]:
    """Items by so many at a time, each of which is taken when it is asked for."""
    left = iter(items)
    while lot := list(islice(left, size)):
        yield lot


def emptying(*items: dict[Any, Any] | list[Any]) -> Portions[None]:
    """Take everything out of what nobody needs any more: letting go of very much takes long as well."""
    for some in items:
        while some:
            if isinstance(some, list):
                del some[-PORTION:]
            else:
                for _ in range(min(PORTION, len(some))):
                    some.popitem()
            yield
