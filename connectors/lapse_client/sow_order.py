"""The order of query results, so that those of several shards can be merged (S5)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Final

from lapse.core.expression import ExpressionError, compile_value
from lapse_client.error import LapseError
from lapse_client.sow_record import SowRecord

_DIRECTION: Final = re.compile(r"\s+(ASC|DESC)\s*\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Order:
    """`order_by` as a shard understands it: numbers before texts; NULL and what cannot be compared last either way."""

    descending: bool

    @classmethod
    def parse(cls, text: str) -> Order:
        """Read an expression with ASC (the default) or DESC behind it.

        Raises:
            LapseError: a fault in the expression; the text shows the place.
        """
        match = _DIRECTION.search(text)
        try:
            compile_value(text if match is None else text[: match.start()])
        except ExpressionError as error:
            raise LapseError(f"order_by: {error}") from error
        return cls(match is not None and match[1].upper() == "DESC")

    def key(self, record: SowRecord) -> tuple[int, Any]:
        """What to compare, the larger one first if `descending`; the shard has told it, whatever the payload is."""
        value = record.order_value
        if isinstance(value, str):
            return 1, value
        if isinstance(value, int | float) and not math.isnan(value):
            return 0, value
        return (-1, 0) if self.descending else (2, 0)
