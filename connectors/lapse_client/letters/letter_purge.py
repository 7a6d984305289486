"""Deletes the dead letters of a topic that were written before an instant (D5).

Kafka deletes only from the beginning of a partition, so letters can only be selected by time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from confluent_kafka import KafkaException, TopicPartition

from lapse_client.error import ConnectionFailed, LapseError
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.fault import LACKS_RIGHT
from lapse_client.kafka.log_offsets import log_bounds, offsets_at
from lapse_client.kafka.metadata import METADATA_TIMEOUT_S
from lapse_client.letters.dead_letter import DeadLetterReader


class Span(NamedTuple):
    """The letters of one partition that are to be deleted.

    Attributes:
        partition: number of the partition.
        first: offset of the first letter.
        stop: the offset after the last letter.
    """

    partition: int
    first: int
    stop: int


class LetterPurge:
    """Deletes the older letters of one topic.

    Args:
        name: name of an entity or a dead-letter topic.
        connection: connection to the cluster.

    Raises:
        UnknownEntity: there is no such dead-letter topic.
        LapseError: the entity's letters are on a topic that may have letters of other entities.
    """

    def __init__(self, name: str, connection: Connection) -> None:
        self._connection = connection
        self._letters = DeadLetterReader(name, connection=connection)
        self.topic = self._letters.topic
        if self._letters.entity:
            raise LapseError(
                f"the letters of {name} are on {self.topic}, where those of others may be as well, and Kafka deletes "
                "from the beginning only. Name the topic itself to delete the old ones of all"
            )

    def plan(self, until_ms: int) -> list[Span]:
        """Return the letters that were written before an instant, ms since the epoch, without deleting them.

        Raises:
            LapseError: the topic has other records than dead letters, or cannot be read.
        """
        first = next(iter(self._letters), None)
        if first is not None and not first.lapse_id:
            raise LapseError(
                f"{first.bookmark} is no dead letter: {self.topic} holds something else, and is left alone"
            )
        consumer = self._connection.consumer()
        try:
            partitions = range(self._connection.partitions(self.topic)[self.topic])
            # The ends first: letters that are written meanwhile are too young to be deleted.
            bounds = [log_bounds(consumer, TopicPartition(self.topic, partition)) for partition in partitions]
            instants = [TopicPartition(self.topic, partition, until_ms) for partition in partitions]
            spans: list[Span] = []
            for tp in offsets_at(consumer, instants):
                begin, end = bounds[tp.partition]
                stop = end if tp.offset < 0 else min(tp.offset, end)
                if stop > begin:
                    spans.append(Span(tp.partition, begin, stop))
            return spans
        except KafkaException as error:
            raise ConnectionFailed(self._connection.bootstrap_servers, error) from error
        finally:
            consumer.close()

    def carry_out(self, spans: Sequence[Span]) -> None:
        """Delete the letters of a plan.

        Raises:
            LapseError: the broker refuses; the text names the partition.
        """
        tps = [TopicPartition(self.topic, span.partition, span.stop) for span in spans]
        admin = self._connection.admin()
        for tp, future in (admin.delete_records(tps) if tps else {}).items():
            try:
                future.result(METADATA_TIMEOUT_S)
            except KafkaException as error:
                fault = error.args[0]
                right = "Have Delete on it granted (docs/operations.md, Rights)"
                remedy = right if fault.code() in LACKS_RIGHT else "Purge again when that is mended"
                raise LapseError(
                    f"{self.topic}, partition {tp.partition}: letters could not be deleted: "
                    f"{fault.str().rstrip('.')}. {remedy}"
                ) from error
