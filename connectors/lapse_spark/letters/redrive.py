"""Redrive: dead letters go back to their origin or elsewhere (D5, C29, C30).

Chosen, counted and shown first; then sent with headers that keep the promises: a redriven record has no lifetime of
its own unless asked for, names the queue that lost it, counts how often it was redriven, and has an id of its own, so
that a queue drops what a repeated Spark task sends twice (X6).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lapse.core.expression import SparkColumn, SparkColumns, to_spark_sql
from lapse.core.lifetime import EXPIRES_AT_MS, TTL_MS
from lapse.protocol import header as names
from lapse.protocol.letter_family import LAPSE
from lapse.protocol.redrive import MAX_REDRIVES, OF_FIRST, OF_OTHERS, OWN, message_id
from lapse_spark.connection import Connection
from lapse_spark.letters import newer_records, origins, redriven, untaken
from lapse_spark.records import dead_letter, header

_BATCH_BYTES: Final = 16_384
"""What Java's client puts together, unless told otherwise."""

_PATH: Final = re.compile(r"(?:/[A-Za-z0-9_-]+(?:\[\d+\])?)+\Z", re.ASCII)
_STEP: Final = re.compile(r"/([A-Za-z0-9_-]+)|\[(\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which dead letters.

    Attributes:
        entities: queues or SOW topics; empty = all.
        reasons: any of these; empty = all.
        since_ms: died at this instant or later, ms since the epoch.
        until_ms: died before this instant, ms since the epoch.
        filter: an expression (X1) over payload fields, headers, key, topic, partition, offset of the original.
        fields: kind of every payload field that the expression names: `{"/price": "number"}`. Payloads are JSON then.
        max_redrives: letters of messages that were redriven so often already are refused.
        again: also letters that were sent before (C58).
        overwrite: also where a SOW topic has a newer record of the key (C84).
    """

    entities: Sequence[str] = ()
    reasons: Sequence[str] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    filter: str = ""
    fields: Mapping[str, Literal["boolean", "number", "string"]] = field(default_factory=dict)
    max_redrives: int = MAX_REDRIVES
    again: bool = False
    overwrite: bool = False


def choose(letters: DataFrame, choice: Choice) -> DataFrame:
    """The chosen letters, one copy of each, with `refused`: why a letter is not sent all the same, else null.

    What the cluster knows beyond the letters themselves is not asked yet: `refuse` does so.

    Raises:
        lapse.core.expression.ExpressionError: the filter is no expression, or names a field without a kind.
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
        kept = kept.where(F.expr(condition(choice)))
    return refuse(dead_letter.distinct(kept), choice)


def condition(choice: Choice) -> str:
    """The filter of a choice in Spark's SQL; empty if it has none. It needs no session.

    Raises:
        lapse.core.expression.ExpressionError: the filter is no expression, or names a field without a kind.
    """
    paths = {path: _json_column(path, kind) for path, kind in choice.fields.items()}
    return to_spark_sql(choice.filter, SparkColumns(paths=paths, timestamp="died_at")) if choice.filter else ""


def refuse(chosen: DataFrame, choice: Choice) -> DataFrame:
    """Say why letters are not sent all the same, in `refused`, else null (C30, C58, C84).

    Args:
        chosen: letters; with the columns of `redriven.with_history`, `origins.judged`, `newer_records.judged` and
            `untaken.judged`, these count too.
        choice: the limit, and whether newer records are overwritten.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where letters go, and with which lifetime.

    Attributes:
        topic: another topic than the origin; empty = to where each came from.
        lifetime: `default`, none of its own, so the queue's applies; `original`, its old deadline; `new`, `ttl_ms`.
        ttl_ms: the new lifetime, ms.
    """

    topic: str = ""
    lifetime: Literal["default", "original", "new"] = "default"
    ttl_ms: int = 0


def records(chosen: DataFrame, target: Target) -> DataFrame:
    """What Spark's Kafka sink is to write: topic, partition, key, value, headers; refused letters are left out."""
    return with_records(chosen.where(F.col("refused").isNull()), target).select(f"{untaken.RECORD}.*")


def with_records(letters: DataFrame, target: Target) -> DataFrame:
    """Add to letters what each is sent as: topic, partition, key, value, headers.

    To the origin a record goes into its old partition, and names the queue that lost it, so that every other queue of
    the topic skips it (C29). Elsewhere the partition follows from the key, and no queue is named.
    """
    home = F.lit(not target.topic)
    named = home & (F.col("family") == LAPSE.name) & (F.col("entity") != "")
    kept = F.when(named, _again()).otherwise(F.filter(_headers(), _none_of(sorted(OWN | OF_FIRST.keys()))))
    times = F.col("redriven_count") + 1
    ident = F.concat(F.lit(message_id("")), "id")
    if redriven.TIMES in letters.columns:  # what is sent again on purpose is no repeat
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


def changed(before: DataFrame, after: DataFrame) -> DataFrame:
    """What a hook has made of records, if it can be sent.

    Raises:
        ValueError: a column is missing or has another type.
    """
    kinds = {one.name: one.dataType.simpleString() for one in after.schema}
    for column in before.schema:
        if kinds.get(column.name) != column.dataType.simpleString():
            raise ValueError(
                f"the hook returns column {column.name} as {kinds.get(column.name, 'nothing')}, "
                f"expected {column.dataType.simpleString()}"
            )
    return after.select(*before.columns)


def plan(chosen: DataFrame, target: Target, now_ms: int) -> DataFrame:
    """The dry run: letters by entity, reasons, target and refusal, and how many of their deadlines have passed (C30).

    Args:
        chosen: from `choose`.
        target: where they would go.
        now_ms: the instant to judge deadlines by, ms since the epoch.
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
    """Write `records` to Kafka. The sink may write a record twice when a task is repeated; both have the same id.

    Args:
        to_send: the records.
        connection: the cluster.
        batch_bytes: the fewest bytes that one of the topics takes at once. Java's client would put more together, be
            refused, and report neither that nor that nothing is sent.
    """
    given = connection.writing()
    size = min(batch_bytes, int(given.get("kafka.batch.size", _BATCH_BYTES)))
    to_send.write.format("kafka").options(**{**given, "kafka.batch.size": str(size)}).save()


def _headers() -> Column:
    """The headers of a letter; none where there are none."""
    return F.coalesce("headers", F.array().cast("array<struct<key:string,value:binary>>"))


def _again() -> Column:
    """A letter's headers on the record that goes back; where the message was a letter itself, it is one again."""
    kept = F.filter(_headers(), _none_of(sorted(OWN - OF_OTHERS)))
    names_now = F.create_map(*(F.lit(word) for pair in sorted(OF_FIRST.items()) for word in pair))
    renamed = F.transform(
        kept, lambda one: F.struct(F.coalesce(names_now[one["key"]], one["key"]).alias("key"), one["value"])
    )
    there = F.exists(kept, lambda one: one["key"].isin(sorted(OF_FIRST)))
    return F.when(there, renamed).otherwise(kept)


def _none_of(unwanted: Sequence[str]) -> Callable[[Column], Column]:
    return lambda one: ~one["key"].isin(list(unwanted))


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))


def _json_column(path: str, kind: Literal["boolean", "number", "string"]) -> SparkColumn:
    """A payload field as a column; null where the payload does not have it."""
    if not _PATH.match(path):
        raise ValueError(f"payload field {path!r}: expected /name/name[0], of letters, digits, _ and -")
    steps = "".join(f"[{index}]" if index else f"['{name}']" for name, index in _STEP.findall(path))
    text = f'get_json_object(CAST(value AS STRING), "${steps}")'
    types = {"number": "DOUBLE", "boolean": "BOOLEAN"}
    return SparkColumn(f"TRY_CAST({text} AS {types[kind]})" if kind in types else text, kind)
