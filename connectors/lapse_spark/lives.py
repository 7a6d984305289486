"""The lives of messages, from the event topics: everything that happened to one, and one row for each of many (D6)."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lapse.core.reason import Reason
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.event import TERMINAL, EventKind
from lapse_spark import event
from lapse_spark.entry import start

_COUNTED = {
    "cancels": EventKind.CANCELLED,
    "returns": EventKind.LEASE_RETURNED,
    "renewals": EventKind.RENEWED,
}


def timeline(events: DataFrame, bookmark: Bookmark) -> DataFrame:
    """Everything that happened to one message, in order; an event that was told twice is there once.

    Args:
        events: readable ones, `schema.EVENT`.
        bookmark: the message.

    Returns:
        at_ms, entity, event, subscription, reasons, delivery_count, cancel_count, expires_at_ms, dead_letter_topic,
        detail.
    """

    def covers(messages: Column) -> Column:
        return (
            (messages["topic"] == bookmark.topic)
            & (messages["partition"] == bookmark.partition)
            & (messages["first"] <= bookmark.offset)
            & (messages["last"] >= bookmark.offset)
        )

    shown = (
        "at_ms",
        "entity",
        "event",
        "subscription",
        "reasons",
        "delivery_count",
        "cancel_count",
        "expires_at_ms",
        "dead_letter_topic",
        "detail",
    )
    found = events.where(F.exists("messages", covers)).groupBy(*shown).agg(F.min("event_offset").alias("_told"))
    return found.orderBy("at_ms", "_told").select(*shown)


def lives(events: DataFrame, messages: DataFrame | None = None) -> DataFrame:
    """One row for every message: its fate, and what happened on the way.

    Args:
        events: readable ones, `schema.EVENT`.
        messages: topic, partition, offset and at_ms of what was published (`account.published`), to add the time from
            arrival to the end; None = only what events tell.

    Returns:
        entity, topic, partition, offset, fate (null = not ended), fate_at_ms, reasons, subscription, cancels, returns,
        renewals, first_at_ms, last_at_ms; with messages also arrived_at_ms and lived_ms.
    """
    ends = F.col("event").isin([kind.value for kind in TERMINAL])
    # Told twice means: same message, same kind, same instant. A crash does that.
    told = (
        event.ranges(events)
        .withColumn("offset", F.explode(F.sequence("first", "last")))
        .groupBy("entity", "topic", "partition", "offset", "event", "at_ms")
        .agg(F.max("subscription").alias("subscription"), F.max(F.array_join("reasons", ",")).alias("reasons"))
    )
    each = told.groupBy("entity", "topic", "partition", "offset").agg(
        F.min_by(F.when(ends, F.col("event")), F.when(ends, F.col("at_ms"))).alias("fate"),
        F.min(F.when(ends, F.col("at_ms"))).alias("fate_at_ms"),
        F.max(F.when(ends, F.col("reasons"))).alias("reasons"),
        F.max_by("subscription", "at_ms").alias("subscription"),
        *(F.count(F.when(F.col("event") == kind.value, 1)).alias(name) for name, kind in _COUNTED.items()),
        F.min("at_ms").alias("first_at_ms"),
        F.max("at_ms").alias("last_at_ms"),
    )
    if messages is None:
        return each
    arrived = messages.select("topic", "partition", "offset", F.col("at_ms").alias("arrived_at_ms"))
    return each.join(arrived, ["topic", "partition", "offset"], "left").withColumn(
        "lived_ms", F.col("fate_at_ms") - F.col("arrived_at_ms")
    )


def enough(told: DataFrame) -> DataFrame:
    """What lifetime would have been enough: how long messages took from their arrival to being handled, by entity.

    Args:
        told: from `lives`, with the messages.

    Returns:
        entity, handled, half_ms, p90_ms, p99_ms, p999_ms, most_ms (a lifetime as long was enough for that part of
        them), timed_out (messages that reached their deadline), and lived_ms, the longest of those.
    """
    handled = F.when(F.col("fate") == EventKind.ACKNOWLEDGED.value, F.col("lived_ms"))
    late = F.when(F.contains(F.col("reasons"), F.lit(Reason.TIME_LIMIT.value)), F.col("lived_ms"))
    shares = {"half_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999, "most_ms": 1.0}
    return (
        told.groupBy("entity")
        .agg(
            F.count(handled).alias("handled"),
            F.percentile_approx(handled, list(shares.values()), 100_000).alias("_shares"),
            F.count(late).alias("timed_out"),
            F.max(late).alias("lived_ms"),
        )
        .select(
            "entity",
            "handled",
            *(F.col("_shares")[place].alias(name) for place, name in enumerate(shares)),
            "timed_out",
            "lived_ms",
        )
        .orderBy("entity")
    )


if __name__ == "__main__":
    start("lives")
