"""Lazy sequence: makes each item only when it is asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TypeVar, overload

T = TypeVar("T", covariant=True)


class LazySequence(Sequence[T]):
    """A sequence that makes its items. Indexes and slices are those of a list; a slice is a list."""

    __slots__ = ()

    @abstractmethod
    def item(self, at: int) -> T:
        """Make the item at an index, from 0 up to the length."""

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> list[T]: ...

    def __getitem__(self, at: int | slice) -> T | list[T]:
        if isinstance(at, slice):
            return [self.item(one) for one in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        return self.item(at % len(self))

    def __iter__(self) -> Iterator[T]:
        return map(self.item, range(len(self)))
