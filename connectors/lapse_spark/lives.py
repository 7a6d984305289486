"""The lives of messages from the event topics: a timeline of one message, or one row for each message (D6)."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lapse.core.reason import Reason
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.event import TERMINAL, EventKind
from lapse_spark.records import delivery, event

_COUNTED = {
    "cancels": EventKind.CANCELLED,
    "returns": EventKind.LEASE_RETURNED,
    "renewals": EventKind.RENEWED,
}
_LEASE_ENDS: Final = [EventKind.CANCELLED.value, EventKind.LEASE_RETURNED.value]
_HANDED_OUT: Final = (EventKind.ACKNOWLEDGED, EventKind.DELIVERED_AT_MOST_ONCE, EventKind.BARRIER_RELEASED)
"""Fates of messages that a consumer got."""
_SHARES: Final = {"half_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999, "most_ms": 1.0}


def timeline(events: DataFrame, bookmark: Bookmark) -> DataFrame:
    """Return the events of one message in order, without copies.

    Args:
        events: readable events, `schema.EVENT`.
        bookmark: bookmark of the message.

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
    found = events.where(F.exists("messages", covers)).groupBy(*shown).agg(F.min("event_offset").alias("_first_event"))
    return found.orderBy("at_ms", "_first_event").select(*shown)


def lives(events: DataFrame, messages: DataFrame | None = None, deliveries: DataFrame | None = None) -> DataFrame:
    """Return one row for every message: its fate, and counts and times of its life.

    Args:
        events: readable events, `schema.EVENT`.
        messages: topic, partition, offset and at_ms of published messages (`account.published_messages`), for the
            times since arrival; None = only facts from events.
        deliveries: readable deliveries of the same entities, `schema.DELIVERY`, for the times of waiting and leases.
            Kafka usually keeps them for a day. Without them these times are missing.

    Returns:
        entity, topic, partition, offset, fate (null = not ended), fate_at_ms, reasons, subscription, cancels, returns,
        renewals, first_at_ms, last_at_ms, reached_at_ms (first handed out; without deliveries, when it was handled);
        with messages also arrived_at_ms, lived_ms and waited_ms (until it was handed out); with deliveries also
        deliveries and leased_ms (the sum of its leases).
    """
    ends = F.col("event").isin([kind.value for kind in TERMINAL])
    # Copies, as a crash makes them, have the same message, kind and instant.
    steps = (
        event.each_message(event.ranges(events))
        .groupBy("entity", "topic", "partition", "offset", "event", "at_ms")
        .agg(F.max("subscription").alias("subscription"), F.max(F.array_join("reasons", ",")).alias("reasons"))
    )
    each = steps.groupBy("entity", "topic", "partition", "offset").agg(
        F.min_by(F.when(ends, F.col("event")), F.when(ends, F.col("at_ms"))).alias("fate"),
        F.min(F.when(ends, F.col("at_ms"))).alias("fate_at_ms"),
        F.max(F.when(ends, F.col("reasons"))).alias("reasons"),
        F.max_by("subscription", "at_ms").alias("subscription"),
        *(F.count(F.when(F.col("event") == kind.value, 1)).alias(name) for name, kind in _COUNTED.items()),
        F.sum(F.when(F.col("event").isin(_LEASE_ENDS), F.col("at_ms"))).alias("_ended_ms"),
        F.min("at_ms").alias("first_at_ms"),
        F.max("at_ms").alias("last_at_ms"),
    )
    handled = F.when(F.col("fate").isin([kind.value for kind in _HANDED_OUT]), F.col("fate_at_ms"))
    place = ["topic", "partition", "offset"]
    if deliveries is None:
        each = each.withColumn("reached_at_ms", handled)
    else:
        each = each.join(_delivery_times(deliveries), place, "left").withColumns(
            {"reached_at_ms": F.coalesce("_first_ms", handled), "leased_ms": _leased()}
        )
    each = each.drop("_first_ms", "_sum_ms", "_ended_ms")
    if messages is None:
        return each
    arrived = messages.select(*place, F.col("at_ms").alias("arrived_at_ms"))
    return each.join(arrived, place, "left").withColumns(
        {
            "lived_ms": F.col("fate_at_ms") - F.col("arrived_at_ms"),
            "waited_ms": F.col("reached_at_ms") - F.col("arrived_at_ms"),
        }
    )


def _delivery_times(deliveries: DataFrame) -> DataFrame:
    """Return how often each message was handed out, when first, and the sum of all instants, without copies."""
    once = (
        delivery.each(delivery.valid(deliveries))
        .groupBy("topic", "partition", "offset", "delivery_count")
        .agg(F.min(F.unix_millis("delivered_at")).alias("at_ms"))
    )
    return once.groupBy("topic", "partition", "offset").agg(
        F.count("*").alias("deliveries"), F.min("at_ms").alias("_first_ms"), F.sum("at_ms").alias("_sum_ms")
    )


def _leased() -> Column:
    """Return the sum of a message's leases, in ms; null if one still runs, or not all are known."""
    over, ended = F.col("cancels") + F.col("returns"), F.coalesce("_ended_ms", F.lit(0))
    last = F.when(F.col("deliveries") == over, 0).when(F.col("deliveries") == over + 1, F.col("fate_at_ms"))
    return ended + last - F.col("_sum_ms")


def times_spent(lives: DataFrame) -> DataFrame:
    """Return how long messages lived, waited for their first delivery, and were leased, by entity, in ms.

    Args:
        lives: lives from `lives` with messages, and with deliveries for the times of leases.

    Returns:
        entity, time (lived, waited, leased), messages, half_ms, p90_ms, p99_ms, p999_ms, most_ms.
    """
    known = [name for name in ("lived", "waited", "leased") if f"{name}_ms" in lives.columns]
    times = F.array(*(F.struct(F.lit(name).alias("time"), F.col(f"{name}_ms").alias("ms")) for name in known))
    return (
        lives.select("entity", F.inline(times))
        .where(F.col("ms").isNotNull())
        .groupBy("entity", "time")
        .agg(
            F.count("*").alias("messages"), F.percentile_approx("ms", list(_SHARES.values()), 100_000).alias("_shares")
        )
        .select("entity", "time", "messages", *_by_share())
        .orderBy("entity", "time")
    )


def handling_times(lives: DataFrame) -> DataFrame:
    """Return which lifetimes would have been enough: the times from arrival to acknowledgment, by entity.

    Args:
        lives: lives from `lives` with messages.

    Returns:
        entity, handled, half_ms, p90_ms, p99_ms, p999_ms, most_ms (a lifetime as long was enough for that part of
        them), timed_out (messages that reached their deadline), and lived_ms, the longest of those.
    """
    handled = F.when(F.col("fate") == EventKind.ACKNOWLEDGED.value, F.col("lived_ms"))
    late = F.when(F.contains(F.col("reasons"), F.lit(Reason.TIME_LIMIT.value)), F.col("lived_ms"))
    return (
        lives.groupBy("entity")
        .agg(
            F.count(handled).alias("handled"),
            F.percentile_approx(handled, list(_SHARES.values()), 100_000).alias("_shares"),
            F.count(late).alias("timed_out"),
            F.max(late).alias("lived_ms"),
        )
        .select(
            "entity",
            "handled",
            *_by_share(),
            "timed_out",
            "lived_ms",
        )
        .orderBy("entity")
    )


def _by_share() -> list[Column]:
    return [F.col("_shares")[place].alias(name) for place, name in enumerate(_SHARES)]
