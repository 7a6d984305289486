"""Ranking: sorts the records of a query, some at a time (S5)."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from lapse.core.sow.settings import Compile
from lapse.core.sow.view import View

_DIRECTION: Final = re.compile(r"\s+(ASC|DESC)\s*\Z", re.IGNORECASE)

Rank = tuple[int, Any]
"""Numbers are of kind 0, texts of kind 1; then the value."""

_Ranked = tuple[Rank, bytes, bytes]


@dataclass(frozen=True, slots=True)
class Order:
    """`order_by`: an expression, and which way. NULL, NaN and what cannot be compared come last either way."""

    value: Callable[[Any], Any]
    descending: bool

    @classmethod
    def parse(cls, text: str, compile_value: Compile) -> Order:
        """Read an expression with ASC (the default) or DESC behind it.

        Raises:
            ValueError: a fault in the expression; the text shows the place.
        """
        match = _DIRECTION.search(text)
        try:
            if match is None:
                return cls(compile_value(text), False)
            return cls(compile_value(text[: match.start()]), match[1].upper() == "DESC")
        except ValueError as error:
            raise ValueError(f"order_by: {error}") from error


class Ranking:
    """Records on their way into an order: each lot is sorted as it comes, and all are merged as they go.

    So neither takes longer than a lot does, however many records there are.

    Args:
        order: which order; numbers stand before texts, equal ones as they came.
    """

    __slots__ = ("_last", "_lots", "_order")

    def __init__(self, order: Order) -> None:
        self._order = order
        self._lots: list[list[_Ranked]] = []
        self._last: list[tuple[bytes, bytes]] = []

    def add(self, views: Sequence[View]) -> None:
        """Take in a lot of records."""
        ranked: list[_Ranked] = []
        for view in views:
            value = self._order.value(view)
            if isinstance(value, str):
                ranked.append(((1, value), view.journal_key, view.entry))
            elif isinstance(value, (int, float)) and not math.isnan(value):
                ranked.append(((0, value), view.journal_key, view.entry))
            else:
                self._last.append((view.journal_key, view.entry))
        ranked.sort(key=itemgetter(0), reverse=self._order.descending)
        self._lots.append(ranked)

    def merged(self) -> Iterator[tuple[bytes, bytes, object]]:
        """Journal key, packed record and value of each, in order; nothing can be added any more."""
        for (_, value), journal_key, entry in heapq.merge(
            *self._lots, key=itemgetter(0), reverse=self._order.descending
        ):
            yield journal_key, entry, value
        for journal_key, entry in self._last:
            yield journal_key, entry, None
