"""Records in columns that were fetched at different times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from lapse.runtime.kafka.fetched_rows import FetchedRows
from lapse.runtime.shard.log import Record


class RowParts(Sequence[Any]):
    """Records in columns of several fetches.

    Attributes:
        parts: the rows of each fetch, in the order of their offsets.
        order: the index, in that order, of each record; None = the records are in that order.
    """

    __slots__ = ("order", "parts")

    def __init__(self, parts: Sequence[FetchedRows], order: NDArray[np.intp] | None = None) -> None:
        self.parts = parts
        self.order = order

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @overload
    def __getitem__(self, at: int) -> Record: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Record]: ...

    def __getitem__(self, at: int | slice) -> Record | Sequence[Record]:
        return list(self)[at]

    def __iter__(self) -> Iterator[Record]:
        in_log_order = chain.from_iterable(self.parts)
        if self.order is None:
            return in_log_order
        records = list(in_log_order)
        return (records[at] for at in self.order.tolist())
