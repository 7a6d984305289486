"""The order of query results, by which the results of several shards are merged (S5)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from lapse.protocol import order_by
from lapse_client.sow.record import SowRecord


@dataclass(frozen=True, slots=True)
class Order:
    """The order of `order_by` at the shards: numbers before texts. All other values come last in both directions."""

    descending: bool

    @classmethod
    def parse(cls, text: str) -> Order:
        """Read the direction after the expression, ASC (the default) or DESC. The shards check the expression."""
        _, descending = order_by.split(text)
        return cls(descending)

    def key(self, record: SowRecord) -> tuple[int, Any]:
        """Return a record's sort key, made from the value that the shard sent with it."""
        value = record.order_value
        if isinstance(value, str):
            return 1, value
        if isinstance(value, int | float) and not math.isnan(value):
            return 0, value
        return (-1, 0) if self.descending else (2, 0)
