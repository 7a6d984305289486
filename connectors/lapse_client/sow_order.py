"""The order of query results, so that those of several shards can be merged (S5)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Final

import orjson

from lapse.core.expression import ExpressionError, Value, compile_value
from lapse_client.error import LapseError
from lapse_client.sow_record import SowRecord

_DIRECTION: Final = re.compile(r"\s+(ASC|DESC)\s*\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Order:
    """`order_by` as a shard understands it: numbers before texts; NULL and what cannot be compared last either way."""

    value: Value
    descending: bool

    @classmethod
    def parse(cls, text: str) -> Order:
        """Read an expression with ASC (the default) or DESC behind it.

        Raises:
            LapseError: a fault in the expression; the text shows the place.
        """
        match = _DIRECTION.search(text)
        descending = match is not None and match[1].upper() == "DESC"
        try:
            return cls(compile_value(text if match is None else text[: match.start()]), descending)
        except ExpressionError as error:
            raise LapseError(f"order_by: {error}") from error

    def key(self, record: SowRecord) -> tuple[int, Any]:
        """What to compare, the larger one first if `descending`."""
        value = self.value(_Seen(record))
        if isinstance(value, str):
            return 1, value
        if isinstance(value, int | float) and not math.isnan(value):
            return 0, value
        return (-1, 0) if self.descending else (2, 0)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A record as expressions see it."""

    record: SowRecord

    @property
    def payload(self) -> object:
        """The JSON payload; NULL where it is none."""
        try:
            return orjson.loads(self.record.value or b"null")
        except orjson.JSONDecodeError:
            return None

    @property
    def headers(self) -> dict[str, bytes | None]:
        return dict(self.record.headers)

    @property
    def key(self) -> bytes | None:
        return self.record.key

    @property
    def topic(self) -> str:
        return self.record.bookmark.topic if self.record.bookmark else ""

    @property
    def partition(self) -> int:
        return self.record.bookmark.partition if self.record.bookmark else -1

    @property
    def offset(self) -> int:
        return self.record.bookmark.offset if self.record.bookmark else -1

    @property
    def timestamp_ms(self) -> int:
        return self.record.timestamp_ms
