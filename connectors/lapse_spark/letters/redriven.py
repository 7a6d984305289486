"""The notes of letters that this pipeline or `lapse dlq redrive` has sent, on one compacted topic (C58).

The command writes a note in the transaction that sends the letter. Spark's Kafka sink has no transactions, so here
notes are written after the letters. If a run dies between the two, the audit finds the letters that it has sent.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lapse.protocol import header as names
from lapse.protocol.letter_family import LAPSE
from lapse.protocol.redrive import message_id
from lapse_client.kafka.span import await_transactions
from lapse_client.letters.redriven import TOPIC, Redriven
from lapse_client.letters.unfinished_redrive import PREFIX, UnfinishedRedrive
from lapse_spark import read
from lapse_spark.connection import Connection
from lapse_spark.read import Span
from lapse_spark.records import header

_OPEN_S: Final = 75.0
"""How long to wait for the end of a transaction of `lapse dlq redrive`, s: longer than it may stay open."""

NAME, FIRST, TIMES, ALL_TIMES = "_name", "_first", "_times", "_all_times"
"""Columns: a letter's name, its message's first letter, how often it was sent, and all letters of its message were."""


_UNFINISHED: Final = "_unfinished"
"""The column with the value of a note of a redrive that has begun and not ended; null for all other notes."""


def await_notes(connection: Connection) -> None:
    """Wait until all notes can be read. Kafka aborts the transaction of a killed `lapse dlq redrive` after a minute.

    Raises:
        ValueError: lapse's own client cannot use an option of the connection.
        LapseError: a transaction stays open, or the cluster cannot be reached.
    """
    ours = connection.of_lapse()
    topics = ours.partitions()
    if TOPIC in topics:
        await_transactions(ours, {TOPIC: topics[TOPIC]}, _OPEN_S)


def read_sent_letters(spark: SparkSession, connection: Connection) -> DataFrame:
    """Return the letters that were sent: name, first letter of the message, times; empty if there is no topic.

    Among them are notes of redrives that have not ended, whose names are no letter's.
    """
    raw = read.records(spark, connection, pattern=re.escape(TOPIC), span=Span(fail_on_data_loss=False))
    newest = raw.groupBy(F.col("key").cast("string").alias(NAME)).agg(F.max_by("value", "offset").alias("value"))
    facts = F.from_json(F.col("value").cast("string"), "first string, times int")
    unfinished = F.when(F.startswith(NAME, F.lit(PREFIX)), F.col("value")).alias(_UNFINISHED)
    return newest.select(NAME, facts.alias("_facts"), unfinished).select(
        NAME, F.col("_facts.first").alias(FIRST), F.coalesce("_facts.times", F.lit(0)).alias(TIMES), _UNFINISHED
    )


def unfinished(known: DataFrame) -> list[UnfinishedRedrive]:
    """Return the redrives that have begun and not ended.

    Args:
        known: notes from `read_sent_letters`.
    """
    found = []
    for row in known.where(F.col(_UNFINISHED).isNotNull()).select(_UNFINISHED).collect():
        with suppress(ValueError):
            found.append(UnfinishedRedrive.parse(bytes(row[0])))
    return found


def with_history(letters: DataFrame, known: DataFrame) -> DataFrame:
    """Add to letters how often they, and all letters of their messages, were sent.

    A redriven message that becomes a dead letter again has another letter. Its message id leads to the first one.

    Args:
        letters: `schema.DEAD_LETTER`, one copy of each.
        known: letters from `read_sent_letters`.
    """
    given = header.text(header.newest_first(F.col("headers")), names.MESSAGE_ID)
    before = letter_of(given)
    own = known.select(NAME, TIMES)
    earlier = known.select(F.col(NAME).alias("_before"), F.col(FIRST).alias("_first_before"))
    families = known.groupBy(FIRST).agg(F.sum(TIMES).cast("int").alias("_sum"))
    named = letters.withColumns({NAME: _name(), "_before": before}).join(own, NAME, "left")
    led = named.join(earlier, "_before", "left").withColumns(
        {FIRST: F.coalesce("_first_before", "_before", NAME), TIMES: F.coalesce(TIMES, F.lit(0))}
    )
    counted = led.join(families, FIRST, "left")
    all_times = F.greatest(F.coalesce("_sum", F.lit(0)), F.col("redriven_count"))
    return counted.withColumn(ALL_TIMES, all_times).drop("_before", "_first_before", "_sum")


def letter_of(given: Column) -> Column:
    """Return the id of the letter in a redriven record's message id; null if the id is not from a redrive."""
    prefix = message_id("")
    sent = F.regexp_replace(F.substring(given, len(prefix) + 1, 1 << 20), r"(/[0-9]+)\+[0-9]+\z", "$1")
    return F.when(F.startswith(given, F.lit(prefix)), sent)


def letter_in(headers: Column) -> Column:
    """Return the id of the letter of a redriven record by its headers; null if it is not from a redrive."""
    return letter_of(header.text(header.newest_first(headers), names.MESSAGE_ID))


def publish_sent_letters(letters: DataFrame, connection: Connection) -> None:
    """Write notes that letters, from `with_history`, were sent once more."""
    place = F.concat_ws(":", "letter_topic", "letter_partition", "letter_offset")
    note = F.struct(F.col(FIRST).alias("first"), (F.col(TIMES) + 1).alias("times"), place.alias("letter"))
    rows = letters.select(F.lit(TOPIC).alias("topic"), F.col(NAME).alias("key"), F.to_json(note).alias("value"))
    rows.write.format("kafka").options(**connection.writing()).save()


def make_topic(connection: Connection) -> None:
    """Create the topic if it is missing.

    Raises:
        ValueError: lapse's own client cannot use an option of the connection.
        KafkaException: the broker refuses.
    """
    Redriven(connection.of_lapse()).make_topic()


def _name() -> Column:
    """Return the name of a letter in notes, its id or bookmark, as `lapse_client.letters.redriven.letter_name` does."""
    place = F.concat_ws(":", "letter_topic", "letter_partition", "letter_offset")
    return F.when(F.col("family") == LAPSE.name, F.col("id")).otherwise(place)
