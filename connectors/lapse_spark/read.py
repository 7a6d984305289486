"""The readers of lapse's topics, as DataFrames with documented columns, batch or streaming.

Every reader takes a `Span` of the topics, and returns one row per record. The column `fault` marks records that do not
belong there. `quarantine.split` separates them. The schemas are in `lapse_spark.schema`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lapse.protocol import topic as topics
from lapse_spark import jvm, schema
from lapse_spark.collected import LAST_MS
from lapse_spark.connection import Connection
from lapse_spark.records import dead_letter, delivery, event, sow

DEAD_LETTER_PATTERN: Final = rf"{re.escape(topics.DEAD_LETTER_PREFIX)}.*"
"""All default dead-letter topics (D1)."""


@dataclass(frozen=True, slots=True)
class Span:
    """The part of topics to read, and how to read it.

    Attributes:
        streaming: whether to read a stream, instead of the present records.
        start_ms: the earliest timestamp of records to read, ms since the epoch; None = from the beginning.
        end_ms: read only records with an earlier timestamp, ms since the epoch; batch only; None = to the end.
        fail_on_data_loss: whether the job fails if Kafka no longer has offsets.
        max_records_per_batch: for streams: most records in a batch; None = no limit.
        options: further options of Spark's Kafka source, which take precedence.
    """

    streaming: bool = False
    start_ms: int | None = None
    end_ms: int | None = None
    fail_on_data_loss: bool = True
    max_records_per_batch: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def source_options(self) -> dict[str, str]:
        """Return the options of Spark's Kafka source.

        Raises:
            ValueError: a stream has an `end_ms`.
        """
        found = {"failOnDataLoss": str(self.fail_on_data_loss).lower()}
        if self.start_ms is None:
            found["startingOffsets"] = "earliest"  # a stream's own default is latest
        else:
            found |= {"startingTimestamp": str(self.start_ms), "startingOffsetsByTimestampStrategy": "latest"}
        if self.end_ms is not None and self.streaming:
            raise ValueError("end_ms is for a batch: a stream has no end")
        if self.streaming and self.max_records_per_batch is not None:
            found["maxOffsetsPerTrigger"] = str(self.max_records_per_batch)
        return found | dict(self.options)


_NO_TOPIC: Final = "org.apache.kafka.common.errors.UnknownTopicOrPartitionException"

WHOLE: Final = Span()
"""All present records of the topics."""


def records(
    spark: SparkSession, connection: Connection, *, names: Sequence[str] = (), pattern: str = "", span: Span = WHOLE
) -> DataFrame:
    """Read the records of topics unchanged (`schema.RAW`).

    Args:
        spark: the Spark session.
        connection: connection to the cluster.
        names: topics that must exist.
        pattern: a Java regular expression of whole names, instead of names. It may match no topic.
        span: the part of the topics to read.

    Raises:
        ValueError: there are neither names nor a pattern, or both, or Java cannot read the pattern.
    """
    if bool(names) == bool(pattern):
        raise ValueError("which topics? give their names, or a pattern, not both")
    if pattern and (why := jvm.pattern_fault(spark, pattern)):
        raise ValueError(f"{pattern!r} is no regular expression of Java: {why}")
    reader = spark.readStream if span.streaming else spark.read
    # Spark's source also reads topics with a match within their names, such as `lapse.dlq.orders.commands`.
    chosen = {"subscribe": ",".join(names)} if names else {"subscribePattern": rf"\A(?:{pattern})\z"}
    if not span.streaming:
        # Otherwise one core would read a topic of one partition.
        chosen["minPartitions"] = str(spark.sparkContext.defaultParallelism)
    options = chosen | connection.reading() | span.source_options()
    loaded = reader.format("kafka").options(**options).load()
    if span.start_ms is not None:
        # Spark reads from the first record so late on, whatever is behind it; without one a batch has the last record.
        loaded = loaded.where(F.unix_millis("timestamp") >= span.start_ms)
    if span.end_ms is not None:
        # Spark's `endingTimestamp` would leave out earlier records behind the first later one.
        loaded = loaded.where(F.unix_millis("timestamp") < span.end_ms)
    stamp = F.least("timestamp", F.timestamp_millis(F.lit(LAST_MS)))
    return schema.conform(loaded.withColumn("timestamp", stamp), schema.RAW)


def _causes(error: BaseException) -> Iterator[str]:
    """Yield the classes of the JVM's exceptions, from the outermost to the first cause.

    PySpark replaces some exceptions by its own. Python keeps the original one as their context.
    """
    thrown = error if isinstance(error, Py4JJavaError) else error.__context__
    at = thrown.java_exception if isinstance(thrown, Py4JJavaError) else None
    while at is not None:
        yield at.getClass().getName()
        at = at.getCause()


@contextmanager
def name_missing_topics(names: Sequence[str]) -> Iterator[None]:
    """Name the topics in the error for a missing one, because Kafka's error does not. Use it around actions of Spark.

    Raises:
        ValueError: one of the topics does not exist.
    """
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        if _NO_TOPIC in _causes(error):
            raise ValueError(f"there is no such topic; one of: {', '.join(sorted(names))}") from error
        raise


def dead_letters(
    spark: SparkSession,
    connection: Connection,
    *,
    names: Sequence[str] = (),
    pattern: str = "",
    span: Span = WHOLE,
) -> DataFrame:
    """Read dead letters of any family (`schema.DEAD_LETTER`); by default those on all topics `dlq.*`."""
    chosen = pattern or ("" if names else DEAD_LETTER_PATTERN)
    return dead_letter.parse(records(spark, connection, names=names, pattern=chosen, span=span))


def events(
    spark: SparkSession,
    connection: Connection,
    entities: Sequence[str],
    *,
    span: Span = WHOLE,
    written_with: Sequence[str] = (),
) -> DataFrame:
    """Read the events of entities (`schema.EVENT`); `written_with` as in `event.parse`."""
    names = [topics.events(entity) for entity in entities]
    return event.parse(records(spark, connection, names=names, span=span), written_with)


def deliveries(
    spark: SparkSession,
    connection: Connection,
    entities: Sequence[str],
    *,
    users: Sequence[str] = (),
    span: Span = WHOLE,
) -> DataFrame:
    """Read the deliveries, answers and epochs of entities (`schema.DELIVERY`).

    Args:
        spark: the Spark session.
        connection: connection to the cluster.
        entities: names of queues or SOW topics.
        users: names of users whose private deliveries are read, too. Each must have an entitlement to all entities.
        span: the part of the topics to read.
    """
    names = [topics.deliveries(entity, user) for entity in entities for user in ("", *users)]
    return delivery.parse(records(spark, connection, names=names, span=span))


def sow_updates(spark: SparkSession, connection: Connection, entity: str, *, span: Span = WHOLE) -> DataFrame:
    """Read the updates and tombstones of a SOW topic's compacted topic (`schema.SOW`)."""
    return sow.parse(records(spark, connection, names=[topics.sow(entity)], span=span))


def sow_state(spark: SparkSession, connection: Connection, entity: str, *, now_ms: int | None = None) -> DataFrame:
    """Read the current state of a SOW topic: the latest record of every key (`schema.SOW`).

    Args:
        spark: the Spark session.
        connection: connection to the cluster.
        entity: name of the SOW topic.
        now_ms: the instant by which deadlines are judged, ms since the epoch; None = include expired records that are
            not removed yet.
    """
    return sow.current(sow_updates(spark, connection, entity), now_ms)
