"""Ranking: sorts the records of a query in portions (S5)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from lapse.core.sow.query.view import View
from lapse.core.sow.settings import Compile
from lapse.protocol import order_by

Rank = tuple[int, Any]
"""The kind, 0 for numbers and 1 for texts, then the value."""

_Ranked = tuple[Rank, bytes, bytes]


@dataclass(frozen=True, slots=True)
class Order:
    """`order_by`: an expression and a direction. NULL, NaN and incomparable values are last in both directions."""

    value: Callable[[Any], Any]
    descending: bool

    @classmethod
    def parse(cls, text: str, compile_value: Compile) -> Order:
        """Parse an expression, optionally followed by ASC (the default) or DESC.

        Raises:
            ValueError: the expression is invalid; the message shows where.
        """
        expression, descending = order_by.split(text)
        try:
            return cls(compile_value(expression), descending)
        except ValueError as error:
            raise ValueError(f"order_by: {error}") from error


class Ranking:
    """Sorts records in portions: each lot is sorted when it is added, and the lots are merged while they are read.

    So no single operation takes longer than a lot, however many records there are.

    Args:
        order: the order; numbers precede texts, and equal values keep their sequence.
    """

    __slots__ = ("_last", "_lots", "_order")

    def __init__(self, order: Order) -> None:
        self._order = order
        self._lots: list[list[_Ranked]] = []
        self._last: list[tuple[bytes, bytes]] = []

    def add(self, views: Sequence[View]) -> None:
        """Add a lot of records."""
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
        """Yield journal key, packed record and value of each record, in order. Nothing can be added afterwards."""
        for (_, value), journal_key, entry in heapq.merge(
            *self._lots, key=itemgetter(0), reverse=self._order.descending
        ):
            yield journal_key, entry, value
        for journal_key, entry in self._last:
            yield journal_key, entry, None
