"""The order of query results, so that those of several shards can be merged (S5)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Final

from lapse_client.sow.record import SowRecord

_DIRECTION: Final = re.compile(r"\s+(ASC|DESC)\s*\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Order:
    """`order_by` as a shard understands it: numbers before texts; NULL and what cannot be compared last either way."""

    descending: bool

    @classmethod
    def parse(cls, text: str) -> Order:
        """Read the direction, ASC (the default) or DESC, behind an expression, which the shards judge."""
        match = _DIRECTION.search(text)
        return cls(match is not None and match[1].upper() == "DESC")

    def key(self, record: SowRecord) -> tuple[int, Any]:
        """What to compare, the larger one first if `descending`; the shard sends it, whatever the payload is."""
        value = record.order_value
        if isinstance(value, str):
            return 1, value
        if isinstance(value, int | float) and not math.isnan(value):
            return 0, value
        return (-1, 0) if self.descending else (2, 0)
