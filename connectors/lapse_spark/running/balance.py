"""Balances: the state of a queue's running ledger, published on a topic with each batch (D8)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from lapse_client.error import LapseError
from lapse_client.kafka import compacted_topic
from lapse_spark.account import statement
from lapse_spark.connection import Connection
from lapse_spark.ledger import Ledger

TOPIC: Final = "lapse.ledger"
"""The default topic for balances and findings."""

MOST_NAMED: Final = 10_000
"""The most findings of one batch with records of their own. `difference_counts` counts all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpTo:
    """How far an underlying partition has been read, and is balanced.

    Attributes:
        topic: name of the topic.
        partition: number of the partition.
        offset: every message before this offset has exactly one fate, or is still queued.
        read: every message before this offset has been read.
    """

    topic: str
    partition: int
    offset: int
    read: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The account of a queue after a batch.

    Attributes:
        ledger: the figures. Messages in doubt count by their last known state.
        batch: number of the batch. A record that is repeated after a crash has the same number.
        at_ms: when the batch was planned, ms since the epoch.
        balanced_up_to_ms: the instant up to which every message has exactly one fate, or is still in the queue, ms
            since the epoch.
        balanced_up_to: the offsets of that instant, for each underlying partition.
        in_doubt: number of messages with a difference that has not lasted for the grace yet.
        listed_at_ms: when the queue last returned its own list, ms since the epoch; None = never.
    """

    ledger: Ledger
    batch: int
    at_ms: int
    balanced_up_to_ms: int
    balanced_up_to: Sequence[UpTo] = field(default_factory=tuple)
    in_doubt: int = 0
    listed_at_ms: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the record to publish for JSON."""
        figures = self.ledger.as_json()
        return {
            "kind": "balance",
            "entity": figures.pop("queue"),
            "balanced": figures.pop("balanced"),
            "batch": self.batch,
            "at_ms": self.at_ms,
            "balanced_up_to_ms": self.balanced_up_to_ms,
            "balanced_up_to": [
                {"topic": one.topic, "partition": one.partition, "offset": one.offset, "read": one.read}
                for one in self.balanced_up_to
            ],
            "in_doubt": self.in_doubt,
            "listed_at_ms": self.listed_at_ms,
            **{name: value for name, value in figures.items() if name not in _NEVER},
        }

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> Balance:
        """Parse a record from `as_json`."""
        own = dict(facts)
        up_to = tuple(UpTo(**one) for one in own.pop("balanced_up_to"))
        facts = {name: own.pop(name) for name in ("batch", "at_ms", "balanced_up_to_ms", "in_doubt", "listed_at_ms")}
        del own["kind"], own["balanced"]
        return cls(ledger=Ledger(queue=own.pop("entity"), **own), balanced_up_to=up_to, **facts)


_NEVER: Final = ("expected_depth", "strict")
"""Fields that only a ledger computed once has."""


def show(balance: Balance, console: Console) -> None:
    """Print a balance on a terminal."""
    statement.show(balance.ledger, console)
    if balance.in_doubt:
        console.print(f"in doubt for now: {balance.in_doubt:,}", highlight=False)
    console.print(f"balanced up to {statement.instant(balance.balanced_up_to_ms)}", highlight=False)
    for one in balance.balanced_up_to:
        behind = f", read up to {one.read:,}" if one.read != one.offset else ""
        console.print(f"  {one.topic}:{one.partition} before {one.offset:,}{behind}", highlight=False, markup=False)


def publish(
    spark: SparkSession, connection: Connection, topic: str, queue: str, account: str, news: DataFrame | None
) -> None:
    """Write a balance and new findings to the topic, each with a key of its own.

    Args:
        spark: the Spark session.
        connection: connection to the cluster.
        topic: the topic.
        queue: name of the queue.
        account: the balance as JSON. Its key is the queue's name.
        news: findings from `findings`; None = none.
    """
    whole = F.struct(F.lit(queue).alias("key"), F.lit(account).alias("value"))
    rows = spark.range(1).select(F.inline(F.array(whole)))
    if news is not None:
        rows = news.select("key", "value").unionByName(rows)
    sent = rows.coalesce(1).select(F.lit(topic).alias("topic"), "key", "value")
    sent.write.format("kafka").options(**connection.writing()).save()


def findings(words: DataFrame, queue: str, number: int, at_ms: int) -> DataFrame:
    """Return keys and values of the records for findings.

    Args:
        words: findings from `doubt.to_words`, with `news`.
        queue: name of the queue.
        number: number of the batch.
        at_ms: when the batch was planned, ms since the epoch.
    """
    value = F.struct(
        F.lit("finding").alias("kind"),
        F.lit(queue).alias("entity"),
        *("bookmark", "difference", "fates", "reasons"),
        F.col("news").alias("state"),
        F.lit(number).alias("batch"),
        F.lit(at_ms).alias("at_ms"),
    )
    key = F.concat_ws(" ", F.lit(queue), "difference", "bookmark")
    return words.orderBy("bookmark").limit(MOST_NAMED).select(key.alias("key"), F.to_json(value).alias("value"))


def make_topic(connection: Connection, topic: str, reading: Collection[str]) -> None:
    """Create the compacted topic of one partition if it is missing, and check the topics to read.

    Args:
        connection: connection to the cluster.
        topic: topic for balances.
        reading: topics that must exist, because Spark's error for a missing one is a page of Java's text.

    Raises:
        LapseError: the topic cannot be created.
        ValueError: a topic to read does not exist.
    """
    client = connection.of_lapse()
    there = client.partitions(*reading)
    if missing := sorted(set(reading) - there.keys()):
        raise ValueError(f"there is no such topic: {', '.join(missing)}")
    if topic in there:
        return
    try:
        compacted_topic.make(client, topic)
    except KafkaException as error:
        raise LapseError(
            f"the topic {topic} cannot be made: {error.args[0].str()}; make it, or name another"
        ) from error
