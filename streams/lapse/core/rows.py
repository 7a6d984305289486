"""Rows: records in columns, so that one operation handles all records of a batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, overload

from numpy import int32, int64, intp
from numpy.typing import NDArray

SILENT: Final = -1
"""The value for a record whose headers state neither a lifetime nor anything else that matters to lapse."""

INVOLVED: Final = -2
"""The value for a record whose headers must be examined."""


class Texts(NamedTuple):
    """The texts of a member of many values.

    Attributes:
        distinct: the texts that occur, each once or more often; None stands for values without one, and for null.
        which: the index in `distinct` of each value's text.
        unsure: the indexes of the values that must be parsed instead.
    """

    distinct: list[str | None]
    which: NDArray[intp]
    unsure: Sequence[int]


class Rows(Sequence[Any]):
    """Records of one partition by offset. Each item is a `Record`, made when it is accessed."""

    __slots__ = ()

    @overload
    def __getitem__(self, at: int) -> Any: ...

    @overload
    def __getitem__(self, at: slice) -> Rows: ...

    @abstractmethod
    def __getitem__(self, at: int | slice) -> Any:
        """Return one record, or consecutive records as `Rows`."""

    @property
    @abstractmethod
    def offsets(self) -> NDArray[int64]:
        """The records' offsets."""

    @property
    @abstractmethod
    def timestamps_ms(self) -> NDArray[int64]:
        """The records' timestamps, ms since the epoch; -1 = none (L1)."""

    @property
    @abstractmethod
    def stated_ms(self) -> NDArray[int64]:
        """The records' lifetimes, ms, if plainly stated; `SILENT` or `INVOLVED` for others."""

    @abstractmethod
    def at(self, offsets: NDArray[int64]) -> Rows | None:
        """Return the records at ascending offsets; None if one is missing."""

    @abstractmethod
    def alike(self) -> int:
        """Return how many records, from the first on, have the same headers."""

    @abstractmethod
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """Return the headers of the first record."""

    @abstractmethod
    def sizes(self) -> tuple[NDArray[int32], NDArray[int32]]:
        """Return the sizes of keys and of values, bytes; -1 = there is none."""

    @abstractmethod
    def keys(self) -> list[bytes]:
        """Return the keys. All records must have one."""

    @abstractmethod
    def values(self) -> list[bytes]:
        """Return the values. All records must have one."""

    def texts(self, member: str) -> Texts | None:
        """Find the texts of a member of the values, without parsing these, if they are JSON objects.

        Returns:
            The texts; None if all values must be parsed instead.
        """
        return None

    @abstractmethod
    def size_bytes(self) -> int:
        """Return about how much memory the records take, bytes."""
