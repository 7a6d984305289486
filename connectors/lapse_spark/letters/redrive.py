"""Redrive: it sends dead letters back to their origin or to another topic (D5, C29, C30).

Letters are first chosen, counted and shown, and then sent. By default a redriven record has no lifetime. Its headers
name the queue that it left, and count its redrives. It has a message id of its own. So a queue drops the second copy
of a record that a repeated Spark task has sent twice (X6).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lapse.core.expression import SparkColumn, SparkColumns, to_spark_sql
from lapse.core.lifetime import EXPIRES_AT_MS, TTL_MS
from lapse.protocol import header as names
from lapse.protocol.letter_family import LAPSE
from lapse.protocol.redrive import MAX_REDRIVES, OF_FIRST, OF_OTHERS, OF_SECOND, OWN, message_id
from lapse_client.letters.redrive_target import Target as Target
from lapse_spark.connection import Connection
from lapse_spark.letters import newer_records, origins, redriven, untaken
from lapse_spark.records import dead_letter, facts, header

_BATCH_BYTES: Final = 16_384
"""The default batch size of Java's client, in bytes."""

FieldKind: TypeAlias = Literal["boolean", "number", "string"]
"""The kind of a payload field."""

_NUMBERS: Final = "^(?:BIGINT|DECIMAL|DOUBLE)"
"""Matches the types of JSON's numbers in Spark."""

_PATH: Final = re.compile(r"(?:/[A-Za-z0-9_-]+(?:\[\d+\])?)+\Z", re.ASCII)
_STEP: Final = re.compile(r"/([A-Za-z0-9_-]+)|\[(\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A choice of dead letters.

    Attributes:
        entities: choose letters of these queues or SOW topics; empty = all.
        reasons: choose letters with any of these reasons; empty = all.
        since_ms: choose letters whose messages left at this instant or later, ms since the epoch.
        until_ms: choose letters whose messages left before this instant, ms since the epoch.
        filter: an expression (X1) over payload fields, headers, key, topic, partition and offset of the original.
        fields: type of every payload field in the expression: `{"/price": "number"}`. Payloads must then be JSON.
        max_redrives: refuse a letter whose message was redriven this often already.
        again: whether to send letters that were sent before (C58).
        overwrite: whether to send letters for whose key a SOW topic has a newer record (C84).
    """

    entities: Sequence[str] = ()
    reasons: Sequence[str] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    filter: str = ""
    fields: Mapping[str, FieldKind] = field(default_factory=dict)
    max_redrives: int = MAX_REDRIVES
    again: bool = False
    overwrite: bool = False


def choose(letters: DataFrame, choice: Choice) -> DataFrame:
    """Return the chosen letters, one copy of each, with `refused`: why a letter is not sent, else null.

    Only the letters themselves are checked here. `mark_refused` with further columns checks the state of the cluster,
    too.

    Raises:
        lapse.core.expression.ExpressionError: the filter is not valid, or names a field without a type.
    """
    kept = letters.where(F.col("fault").isNull())
    if choice.entities:
        kept = kept.where(F.col("entity").isin(list(choice.entities)))
    if choice.reasons:
        kept = kept.where(F.arrays_overlap("reasons", F.array(*(F.lit(reason) for reason in choice.reasons))))
    if choice.since_ms is not None:
        kept = kept.where(F.unix_millis("died_at") >= choice.since_ms)
    if choice.until_ms is not None:
        kept = kept.where(F.unix_millis("died_at") < choice.until_ms)
    if choice.filter:
        kept = _with_fields(kept, choice.fields).where(F.expr(condition(choice))).select(*kept.columns)
    return mark_refused(dead_letter.distinct(kept), choice)


def condition(choice: Choice) -> str:
    """Return the filter of a choice in Spark's SQL, empty if it has none. No session is needed.

    Raises:
        lapse.core.expression.ExpressionError: the filter is not valid, or names a field without a type.
    """
    paths = {path: _field_column(place, path, kind) for place, (path, kind) in enumerate(choice.fields.items())}
    return to_spark_sql(choice.filter, SparkColumns(paths=paths, timestamp="died_at")) if choice.filter else ""


def mark_refused(chosen: DataFrame, choice: Choice) -> DataFrame:
    """Add `refused`: why letters are not sent, else null (C30, C58, C84).

    Args:
        chosen: letters. If they have the columns of `redriven.with_history`, `origins.mark_unreachable`,
            `newer_records.mark_superseded` or `untaken.mark_untaken`, these count, too.
        choice: the limit of redrives, and whether newer records are overwritten.
    """
    times = F.col(redriven.ALL_TIMES if redriven.ALL_TIMES in chosen.columns else "redriven_count")
    unconfirmed = header.present(_headers(), names.UNCONFIRMED_TRANSFER)
    null_value = header.present(_headers(), names.NULL_VALUE)
    refused = (
        F.when(F.col("value").isNull() & ~null_value, "no payload")
        .when(unconfirmed, "unconfirmed transfer")
        .when(times >= choice.max_redrives, "loop limit")
    )
    if origins.ASTRAY in chosen.columns:
        refused = refused.when(F.col(origins.ASTRAY).isNotNull(), F.col(origins.ASTRAY))
    if newer_records.NEWER in chosen.columns and not choice.overwrite:
        refused = refused.when(F.col(newer_records.NEWER), "newer record")
    if untaken.UNTAKEN in chosen.columns:
        refused = refused.when(F.col(untaken.UNTAKEN).isNotNull(), F.col(untaken.UNTAKEN))
    return chosen.withColumn("refused", refused)


def records(chosen: DataFrame, target: Target) -> DataFrame:
    """Return the records for Spark's Kafka sink: topic, partition, key, value, headers; without refused letters."""
    return with_records(chosen.where(F.col("refused").isNull()), target).select(f"{untaken.RECORD}.*")


def with_records(letters: DataFrame, target: Target) -> DataFrame:
    """Add to letters the record that each is sent as: topic, partition, key, value, headers.

    At its origin, a record goes to its old partition, and names the queue that it left, so that other queues of the
    topic skip it (C29). At another topic, the key decides the partition, and no queue is named.
    """
    home = F.lit(not target.topic)
    named = home & (F.col("family") == LAPSE.name) & (F.col("entity") != "")
    kept = F.when(named, _redriven_headers()).otherwise(
        F.filter(_headers(), _is_not_named(sorted(OWN | OF_FIRST.keys())))
    )
    times = F.col("redriven_count") + 1
    ident = F.concat(F.lit(message_id("")), "id")
    if redriven.TIMES in letters.columns:  # a letter that is sent again on purpose is no duplicate
        before = F.col(redriven.TIMES)
        ident = F.concat(ident, F.when(before > 0, F.concat(F.lit("+"), before.cast("string"))).otherwise(""))
    added: list[Column] = [
        _header(names.REDRIVEN_COUNT, times.cast("string")),
        _header(names.MESSAGE_ID, ident),
        F.when(named, _header(names.REDRIVE_QUEUE, F.col("entity"))),
    ]
    if target.lifetime == "new":
        added.append(_header(TTL_MS, F.lit(str(target.ttl_ms))))
    elif target.lifetime == "original":
        deadline = F.col("expires_at_ms")
        added.append(F.when(deadline.isNotNull(), _header(EXPIRES_AT_MS, deadline.cast("string"))))
    record = F.struct(
        (F.lit(target.topic) if target.topic else F.col("topic")).alias("topic"),
        F.when(home, F.col("partition")).cast("int").alias("partition"),
        "key",
        "value",
        F.concat(kept, F.array_compact(F.array(*added))).alias("headers"),
    )
    return letters.withColumn(untaken.RECORD, record)


def check_hook_output(before: DataFrame, after: DataFrame) -> DataFrame:
    """Return the records from a hook, after a check of their columns.

    Raises:
        ValueError: it is no DataFrame, or a column is missing or has another type.
    """
    if not isinstance(after, DataFrame):
        raise ValueError(f"the hook returns {after!r}, expected a DataFrame")
    kinds = {one.name: one.dataType.simpleString() for one in after.schema}
    for column in before.schema:
        if kinds.get(column.name) != column.dataType.simpleString():
            raise ValueError(
                f"the hook returns column {column.name} as {kinds.get(column.name, 'nothing')}, "
                f"expected {column.dataType.simpleString()}"
            )
    return after.select(*before.columns)


def plan(chosen: DataFrame, target: Target, now_ms: int) -> DataFrame:
    """Count letters by entity, reasons, target and refusal, and those whose deadlines have passed (C30).

    Args:
        chosen: letters from `choose`.
        target: target of the redrive.
        now_ms: the instant by which deadlines are judged, ms since the epoch.
    """
    return (
        chosen.groupBy(
            "entity",
            dead_letter.reasons_text(F.col("reasons")).alias("reasons"),
            (F.lit(target.topic) if target.topic else F.col("topic")).alias("target"),
            "refused",
        )
        .agg(
            F.count("*").alias("letters"),
            F.count(F.when(F.col("expires_at_ms") <= now_ms, 1)).alias("deadline_passed"),
            F.min("died_at").alias("first_died_at"),
            F.max("died_at").alias("last_died_at"),
        )
        .orderBy("entity", "reasons", "target")
    )


def send(to_send: DataFrame, connection: Connection, batch_bytes: int) -> None:
    """Write `records` to Kafka. If a task is repeated, the sink may write a record twice, with the same message id.

    Args:
        to_send: the records.
        connection: connection to the cluster.
        batch_bytes: the smallest batch limit of the topics, in bytes. Java's client would make larger batches, which
            the broker would refuse without an error at the sink.
    """
    given = connection.writing()
    size = min(batch_bytes, int(given.get("kafka.batch.size", _BATCH_BYTES)))
    to_send.write.format("kafka").options(**{**given, "kafka.batch.size": str(size)}).save()


def _headers() -> Column:
    """Return the headers of a letter; an empty array for null."""
    return F.coalesce("headers", F.array().cast("array<struct<key:string,value:binary>>"))


def _redriven_headers() -> Column:
    """Return the headers of a redriven record. If the message was itself a letter, it becomes that letter again."""
    kept = F.filter(_headers(), _is_not_named(sorted(OWN - OF_OTHERS)))
    names_now = F.create_map(*(F.lit(word) for pair in sorted(OF_FIRST.items()) for word in pair))
    renamed = F.transform(
        kept, lambda one: F.struct(F.coalesce(names_now[one["key"]], one["key"]).alias("key"), one["value"])
    )
    there = F.exists(kept, lambda one: one["key"].isin(sorted(OF_FIRST)))
    of_second = F.exists(kept, lambda one: one["key"] == OF_SECOND)
    without = F.filter(renamed, _is_not_named([names.FIRST_EXPIRES_AT_MS]))
    return F.when(there & of_second, renamed).when(there, without).otherwise(kept)


def _is_not_named(unwanted: Sequence[str]) -> Callable[[Column], Column]:
    return lambda one: ~one["key"].isin(list(unwanted))


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))


def _field_column(place: int, path: str, kind: FieldKind) -> SparkColumn:
    """Return the column of `_with_fields` for a payload field."""
    if not _PATH.match(path):
        raise ValueError(f"payload field {path!r}: expected /name/name[0], of letters, digits, _ and -")
    return SparkColumn(f"_field_{place}", kind, f"_whole_{place}" if kind == "number" else "")


def _with_fields(letters: DataFrame, fields: Mapping[str, FieldKind]) -> DataFrame:
    """Add to letters the columns of payload fields, which keep the kinds of JSON: a string is never a number.

    A value of another kind is null, in a column of numbers NaN.
    """
    if not fields:
        return letters
    payload = F.try_parse_json(F.try_validate_utf8(F.col("value").cast("string")))
    read = letters.withColumn("_payload", facts.compute_once(payload))
    found: dict[str, Column] = {}
    for place, path in enumerate(fields):
        steps = "".join(f"[{index}]" if index else f"['{name}']" for name, index in _STEP.findall(path))
        found[f"_found_{place}"] = facts.compute_once(F.try_variant_get(F.col("_payload"), f"${steps}", "variant"))
    typed: dict[str, Column] = {}
    for place, kind in enumerate(fields.values()):
        value = F.col(f"_found_{place}")
        there = F.schema_of_variant(value)
        if kind == "number":
            number = F.when(there.rlike(_NUMBERS), _as(value, "double")).when(
                there == "BOOLEAN", _as(value, "boolean").cast("double")
            )
            other = F.when(there != "VOID", float("nan"))
            typed[f"_field_{place}"] = facts.compute_once(F.coalesce(number, other))
            typed[f"_whole_{place}"] = facts.compute_once(F.when(there == "BIGINT", _as(value, "bigint")))
        else:
            typed[f"_field_{place}"] = facts.compute_once(F.when(there == kind.upper(), _as(value, kind)))
    return read.withColumns(found).withColumns(typed)


def _as(value: Column, kind: str) -> Column:
    """Return a value of JSON in a type of Spark; null if it cannot be converted."""
    return F.try_variant_get(value, "$", kind)
