"""The readers: what lapse keeps on Kafka, as DataFrames with documented columns, batch or streaming.

Every reader takes a `Span` of the topics and returns one row per record, with the column `fault` for what does not
belong there: `quarantine.split` parts the two. The schemas are in `lapse_spark.schema`.
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
from lapse_spark import schema
from lapse_spark.connection import Connection
from lapse_spark.records import dead_letter, delivery, event, sow

DEAD_LETTER_PATTERN: Final = rf"{re.escape(topics.DEAD_LETTER_PREFIX)}.*"
"""All default dead-letter topics (D1)."""


@dataclass(frozen=True, slots=True)
class Span:
    """Which part of the topics is read, and how.

    Attributes:
        streaming: a stream that goes on, instead of what is there now.
        start_ms: only records with this timestamp or a later one, ms since the epoch; None = from the beginning.
        end_ms: only records with an earlier timestamp, ms since the epoch; batch only; None = to the end.
        fail_on_data_loss: whether offsets that Kafka no longer has end the job.
        max_records_per_batch: streaming: most records taken at once; None = all there are.
        options: further options of Spark's Kafka source; they win.
    """

    streaming: bool = False
    start_ms: int | None = None
    end_ms: int | None = None
    fail_on_data_loss: bool = True
    max_records_per_batch: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def source_options(self) -> dict[str, str]:
        """Write it in the words of Spark's Kafka source.

        Raises:
            ValueError: a stream with an end.
        """
        found = {"failOnDataLoss": str(self.fail_on_data_loss).lower()}
        if self.start_ms is None:
            found["startingOffsets"] = "earliest"  # a stream's own default is latest
        else:
            found |= {"startingTimestamp": str(self.start_ms), "startingOffsetsByTimestampStrategy": "latest"}
        if self.end_ms is not None:
            if self.streaming:
                raise ValueError("end_ms is for a batch: a stream has no end")
            found["endingTimestamp"] = str(self.end_ms)
        if self.streaming and self.max_records_per_batch is not None:
            found["maxOffsetsPerTrigger"] = str(self.max_records_per_batch)
        return found | dict(self.options)


_NO_TOPIC: Final = "org.apache.kafka.common.errors.UnknownTopicOrPartitionException"

WHOLE: Final = Span()
"""All that the topics hold, once."""


def records(
    spark: SparkSession, connection: Connection, *, names: Sequence[str] = (), pattern: str = "", span: Span = WHOLE
) -> DataFrame:
    """Read topics as they are (`schema.RAW`).

    Args:
        spark: the session.
        connection: the cluster.
        names: topics that must exist.
        pattern: instead of names: a Java regular expression of whole names; no topic that matches is no error.
        span: which part of them.

    Raises:
        ValueError: neither names nor a pattern, or both.
    """
    if bool(names) == bool(pattern):
        raise ValueError("which topics? give their names, or a pattern, not both")
    reader = spark.readStream if span.streaming else spark.read
    # Spark's source also takes a topic that has a match within its name, such as `lapse.dlq.orders.commands`.
    chosen = {"subscribe": ",".join(names)} if names else {"subscribePattern": rf"\A(?:{pattern})\z"}
    if not span.streaming:
        # Otherwise a topic of one partition is read by one core.
        chosen["minPartitions"] = str(spark.sparkContext.defaultParallelism)
    options = chosen | connection.reading() | span.source_options()
    loaded = reader.format("kafka").options(**options).load()
    if not span.streaming and span.start_ms is not None:
        # A partition without any record as late as this is read from its last one on.
        loaded = loaded.where(F.unix_millis("timestamp") >= span.start_ms)
    return schema.conform(loaded, schema.RAW)


def _causes(error: BaseException) -> Iterator[str]:
    """The classes of what Spark's JVM threw, from the outermost to the first cause.

    Spark puts an exception of its own in the place of some of them; Python keeps the original as its context.
    """
    thrown = error if isinstance(error, Py4JJavaError) else error.__context__
    at = thrown.java_exception if isinstance(thrown, Py4JJavaError) else None
    while at is not None:
        yield at.getClass().getName()
        at = at.getCause()


@contextmanager
def existing(names: Sequence[str]) -> Iterator[None]:
    """Name the topics where Kafka only says that it does not have one; Spark asks when it plans an action.

    Raises:
        ValueError: one of them does not exist.
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
        spark: the session.
        connection: the cluster.
        entities: names of queues or SOW topics.
        users: where users are configured, also what went to these; each has to have an entitlement on all entities.
        span: which part of the topics.
    """
    names = [topics.deliveries(entity, user) for entity in entities for user in ("", *users)]
    return delivery.parse(records(spark, connection, names=names, span=span))


def sow_updates(spark: SparkSession, connection: Connection, entity: str, *, span: Span = WHOLE) -> DataFrame:
    """Read the updates and tombstones of a SOW topic's state (`schema.SOW`)."""
    return sow.parse(records(spark, connection, names=[topics.sow(entity)], span=span))


def sow_state(spark: SparkSession, connection: Connection, entity: str, *, now_ms: int | None = None) -> DataFrame:
    """Read the current state of a SOW topic: the latest record of every key (`schema.SOW`).

    Args:
        spark: the session.
        connection: the cluster.
        entity: the SOW topic.
        now_ms: the instant to judge deadlines by, ms since the epoch; None = expired records that are not removed yet
            are in it.
    """
    return sow.current(sow_updates(spark, connection, entity), now_ms)
