"""The columns of every DataFrame that the readers return, with names, types and descriptions.

Within a version, a column is never renamed, retyped or dropped. New columns are added at the end.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

VERSION: Final = 1
"""Version of all schemas below."""

_TEXT: Final = StringType()
_INT: Final = IntegerType()
_LONG: Final = LongType()
_BYTES: Final = BinaryType()
_TIME: Final = TimestampType()
_TEXTS: Final = ArrayType(StringType())

HEADERS: Final = ArrayType(StructType([StructField("key", _TEXT), StructField("value", _BYTES)]))
"""Record headers from Spark's Kafka source, in their order."""


def _columns(*columns: tuple[str, DataType, str]) -> StructType:
    return StructType([StructField(name, kind, True, {"comment": doc}) for name, kind, doc in columns])


def _record_columns(of: str) -> tuple[tuple[str, DataType, str], ...]:
    return (
        ("key", _BYTES, f"Key of the {of}, untouched."),
        ("value", _BYTES, f"Value of the {of}, untouched; null is a tombstone."),
        ("headers", HEADERS, f"All headers of the {of}, in order."),
    )


_FAULT: Final = ("fault", _TEXT, "Why the record cannot be read as what its topic holds; null when it can.")

RAW: Final = _columns(
    ("topic", _TEXT, "Topic of the record."),
    ("partition", _INT, "Its partition."),
    ("offset", _LONG, "Its offset."),
    ("timestamp", _TIME, "Its timestamp, UTC, to the millisecond."),
    *_record_columns("record"),
)
"""The columns of Spark's Kafka source from which every parser starts."""

DEAD_LETTER: Final = _columns(
    ("id", _TEXT, "Same for every copy of the letter: `lapse-id`, or family, entity and bookmark for other families."),
    ("family", _TEXT, "Who wrote it: lapse, kafka (KIP-1191), streams (KIP-1034), connect (KIP-298) or spring."),
    ("entity", _TEXT, "Queue or SOW topic, share group, connector or consumer group; else the letter's topic."),
    ("topic", _TEXT, "Bookmark: underlying topic of the message that died."),
    ("partition", _INT, "Bookmark: its partition."),
    ("offset", _LONG, "Bookmark: its offset."),
    ("reasons", _TEXTS, "Why it left, in the contract's order; of other families the exception's class."),
    ("message", _TEXT, "The fault in words."),
    ("died_at", _TIME, "When it was decided: `expired_at_ms`, else the letter's timestamp."),
    ("expires_at_ms", _LONG, "Its deadline, ms since the epoch; null without one."),
    ("expired_at_ms", _LONG, "Instant of the decision, ms since the epoch; lapse's letters only."),
    ("delivery_count", _INT, "How often it was delivered; null where the family does not have it."),
    ("cancel_count", _INT, "How often it was cancelled; lapse's letters only."),
    ("redriven_count", _INT, "How often it had been redriven before; 0 if the letter does not say."),
    ("letter_topic", _TEXT, "Topic of the letter."),
    ("letter_partition", _INT, "Partition of the letter."),
    ("letter_offset", _LONG, "Offset of the letter."),
    ("letter_at", _TIME, "Timestamp of the letter, UTC."),
    *_record_columns("letter"),
    _FAULT,
    ("epoch", _LONG, "The shard's epoch that decided it; null where the letter does not have it."),
)

MESSAGE_RANGE: Final = StructType(
    [
        StructField("topic", _TEXT),
        StructField("partition", _INT),
        StructField("first", _LONG),
        StructField("last", _LONG),
    ]
)
"""Consecutive offsets of one partition, both ends included."""

EVENT: Final = _columns(
    ("entity", _TEXT, "The queue or SOW topic."),
    ("event", _TEXT, "What happened: acknowledged, dead_lettered, cancelled, … (`schemas/event.avsc`)."),
    ("at_ms", _LONG, "The instant at which it counts, ms since the epoch."),
    ("shard", _INT, "Partition of the entity that reports it."),
    ("epoch", _LONG, "The shard's epoch that decided it."),
    ("messages", ArrayType(MESSAGE_RANGE), "Which messages: ranges of bookmarks, both ends included."),
    ("reasons", _TEXTS, "Why the messages left, in the contract's order."),
    ("subscription", _TEXT, "Whose doing it was, or whose lease ended; may be empty."),
    ("message_key", _BYTES, "SOW topics: the record's key."),
    ("expires_at_ms", _LONG, "The deadline, ms since the epoch, where the event names one message."),
    ("delivery_count", _INT, "Deliveries so far, where the messages share it."),
    ("cancel_count", _INT, "Cancels so far, where the messages share it."),
    ("dead_letter_topic", _TEXT, "dead_lettered: where the letters are."),
    ("detail", _TEXT, "A sentence for people."),
    ("event_topic", _TEXT, "Topic of the event."),
    ("event_partition", _INT, "Partition of the event."),
    ("event_offset", _LONG, "Offset of the event."),
    ("event_at", _TIME, "Timestamp of the event's record, UTC."),
    *_record_columns("event's record"),
    _FAULT,
)

DELIVERED_RANGE: Final = StructType(
    [StructField("first", _LONG), StructField("last", _LONG), StructField("delivery_count", _INT)]
)
"""Consecutive offsets of one partition with the same delivery count, both ends included."""

DELIVERY: Final = _columns(
    ("kind", _TEXT, "delivery, packed, reference, barrier, answer, epoch; of a SOW topic publish, oof, …"),
    ("subscription", _TEXT, "To whom it was sent."),
    ("topic", _TEXT, "Bookmark: underlying topic of the message."),
    ("partition", _INT, "Bookmark: its partition."),
    ("offset", _LONG, "Bookmark: its offset; `packed` and `reference` have `ranges`."),
    ("delivery_count", _INT, "Which delivery of the message it is; the fencing token."),
    ("lease_until_ms", _LONG, "When the lease ends, ms since the epoch."),
    ("expires_at_ms", _LONG, "The message's deadline, ms since the epoch; null without one."),
    ("arrived_at_ms", _LONG, "The message's arrival, ms since the epoch."),
    ("epoch", _LONG, "The shard's epoch that sent it; records of a lower one than seen before are void."),
    ("delivery_topic", _TEXT, "Topic of the delivery."),
    ("delivery_partition", _INT, "Partition of the delivery."),
    ("delivery_offset", _LONG, "Offset of the delivery."),
    ("delivered_at", _TIME, "Timestamp of the delivery, UTC."),
    *_record_columns("delivery"),
    _FAULT,
    (
        "ranges",
        ArrayType(DELIVERED_RANGE),
        "Which messages, in the order of delivery; of `packed` and `reference` as many as they hand out.",
    ),
    (
        "deadlines_ms",
        ArrayType(_LONG),
        "Of `packed` and `reference`: deadlines, one by one, null without one; empty: none has one.",
    ),
)

SOW: Final = _columns(
    ("expires_at_ms", _LONG, "Deadline of the record, ms since the epoch; null without one."),
    ("deleted", BooleanType(), "Whether it is a tombstone."),
    ("topic", _TEXT, "Topic that holds the state, `lapse.sow.<name>`."),
    ("partition", _INT, "Its partition."),
    ("offset", _LONG, "Its offset."),
    ("updated_at", _TIME, "Timestamp of the state's record, UTC."),
    *_record_columns("record"),
    _FAULT,
)

QUARANTINE: Final = _columns(
    ("fault", _TEXT, "Why the record is here."),
    ("topic", _TEXT, "Topic of the record."),
    ("partition", _INT, "Its partition."),
    ("offset", _LONG, "Its offset."),
    ("timestamp", _TIME, "Its timestamp, UTC."),
    *_record_columns("record"),
)
"""Records that do not belong on their topic, unchanged."""


def conform(data: DataFrame, schema: StructType) -> DataFrame:
    """Select the columns of a schema, in its order, with its types and its comments."""
    return data.select(*(_typed(F.col(field.name), field) for field in schema))


def _typed(column: Column, field: StructField) -> Column:
    return column.cast(field.dataType).alias(field.name, metadata=field.metadata)


def table(schema: StructType) -> str:
    """Return a schema as a Markdown table, for the documentation."""
    rows = [f"| `{field.name}` | {field.dataType.simpleString()} | {field.metadata['comment']} |" for field in schema]
    return "\n".join(["| column | type | what |", "|---|---|---|", *rows])
