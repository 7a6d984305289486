"""Records whose parts stand in columns, so that what is asked of each is asked of all at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final, overload

from numpy import int32, int64
from numpy.typing import NDArray

SILENT: Final = -1
"""A record's headers state no lifetime, and nothing else that decides what becomes of the record."""

INVOLVED: Final = -2
"""A record's headers state something that has to be looked at."""


class Rows(Sequence[Any]):
    """Records of one partition, in the order of their offsets; one by one they are what `Record` says.

    A record is made when it is asked for by its index, and all are when somebody goes through them.
    """

    __slots__ = ()

    @overload
    def __getitem__(self, at: int) -> Any: ...

    @overload
    def __getitem__(self, at: slice) -> Rows: ...

    @abstractmethod
    def __getitem__(self, at: int | slice) -> Any:
        """One of them, or some that follow each other."""

    @property
    @abstractmethod
    def offsets(self) -> NDArray[int64]:
        """Their offsets."""

    @property
    @abstractmethod
    def timestamps_ms(self) -> NDArray[int64]:
        """Their timestamps, ms since the epoch; -1 = none (L1)."""

    @property
    @abstractmethod
    def stated_ms(self) -> NDArray[int64]:
        """Their plainly stated lifetimes, ms; `SILENT` or `INVOLVED` of the others."""

    @abstractmethod
    def at(self, offsets: NDArray[int64]) -> Rows | None:
        """Those at some offsets, ascending; None if one is missing."""

    @abstractmethod
    def alike(self) -> int:
        """How many of the first ones have the same headers."""

    @abstractmethod
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """The headers of the first."""

    @abstractmethod
    def sizes(self) -> tuple[NDArray[int32], NDArray[int32]]:
        """How many bytes their keys and their values have; -1 = there is none."""

    @abstractmethod
    def keys(self) -> list[bytes]:
        """Their keys, if all have one."""

    @abstractmethod
    def values(self) -> list[bytes]:
        """Their values, if all have one."""

    @abstractmethod
    def size_bytes(self) -> int:
        """About how many bytes they take in memory."""
