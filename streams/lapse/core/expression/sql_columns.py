"""The columns of a Spark DataFrame for an expression's paths and attributes (X1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

ColumnKind: TypeAlias = Literal["boolean", "number", "string"]
"""The kind of a column's values. Any numeric type is a number."""


@dataclass(frozen=True, slots=True)
class SparkColumn:
    """The column of a path.

    Attributes:
        sql: its SQL text, such as `` payload.`price` ``.
        kind: the kind of its values.
        whole: SQL text of the same number as a BIGINT, null if it is no integer of 64 bits, for a column of doubles,
            which cannot tell large integers apart; empty = none.
    """

    sql: str
    kind: ColumnKind
    whole: str = ""


@dataclass(frozen=True, slots=True)
class SparkColumns:
    """The columns that expressions use. The defaults are the columns of Spark's Kafka source.

    Attributes:
        paths: the column of each payload path, by its canonical text such as `/a/b[0]`.
        headers: the column of headers, an array of structs of `key` and `value`.
        key: the column of the record key, binary.
        topic: the column of the topic.
        partition: the column of the partition.
        offset: the column of the offset.
        timestamp: the column of the record's timestamp.
    """

    paths: Mapping[str, SparkColumn] = field(default_factory=dict)
    headers: str = "headers"
    key: str = "key"
    topic: str = "topic"
    partition: str = "partition"
    offset: str = "offset"
    timestamp: str = "timestamp"
