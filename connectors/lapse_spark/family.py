"""Who writes dead letters, and in which headers each family tells the same facts (KIP-1191, -1034, -298, Spring)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from lapse.protocol import header as names
from lapse_spark import header

Reader = Callable[[Column, str], Column]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One convention for the headers of a dead letter.

    Attributes:
        name: how the column `family` names it.
        marker: the header that shows a letter of this family.
        entity: header that says who gave the message up; empty where there is none.
        topic: header of the bookmark's topic.
        partition: header of its partition.
        offset: header of its offset.
        reasons: headers that say why; of several the first that is there.
        message: header of the fault in words.
        read_partition: how the partition is written.
        read_offset: how the offset is written.
        piles_up: whether a letter that dies again keeps its earlier origins, the first one in front.
    """

    name: str
    marker: str
    entity: str
    topic: str
    partition: str
    offset: str
    reasons: tuple[str, ...]
    message: str
    read_partition: Reader = header.number
    read_offset: Reader = header.number
    piles_up: bool = False

    def facts(self, headers: Column) -> Column:
        """What a letter of this family tells: a struct with the same fields for every family.

        Args:
            headers: as `header.newest_first` returns them.
        """
        origin = F.reverse(headers) if self.piles_up else headers
        why = F.coalesce(*(header.text(headers, name) for name in self.reasons), F.lit(""))
        return F.struct(
            F.lit(self.name).alias("family"),
            (header.text(origin, self.entity) if self.entity else F.lit(None).cast("string")).alias("entity"),
            header.text(origin, self.topic).alias("topic"),
            self.read_partition(origin, self.partition).try_cast("int").alias("partition"),
            self.read_offset(origin, self.offset).alias("offset"),
            F.filter(F.split(why, ","), lambda reason: reason != "").alias("reasons"),
            header.text(headers, self.message).alias("message"),
        )

    def fault(self, facts: Column) -> Column:
        """What is missing for a letter of this family to be counted; empty when nothing is."""
        required = [(self.topic, "topic"), (self.partition, "partition"), (self.offset, "offset")]
        faults = [F.when(facts[field].isNull(), f"header {name} is missing or unreadable") for name, field in required]
        if self.name == LAPSE.name:
            faults.append(F.when(facts["entity"].isNull(), f"header {self.entity} is missing"))
            faults.append(F.when(F.size(facts["reasons"]) == 0, f"header {names.REASONS} is missing or empty"))
        return F.concat_ws("; ", *faults)


KAFKA: Final = Family(
    name="kafka",
    marker=names.DLQ_TOPIC,
    entity=names.DLQ_GROUP,
    topic=names.DLQ_TOPIC,
    partition=names.DLQ_PARTITION,
    offset=names.DLQ_OFFSET,
    reasons=(names.REASONS,),
    message=names.DLQ_MESSAGE,
)

LAPSE: Final = replace(KAFKA, name="lapse", marker=names.LAPSE_ID)
"""The headers of KIP-1191, and more of its own."""

STREAMS: Final = Family(
    name="streams",
    marker="__streams.errors.topic",
    entity="",
    topic="__streams.errors.topic",
    partition="__streams.errors.partition",
    offset="__streams.errors.offset",
    reasons=("__streams.errors.exception",),
    message="__streams.errors.message",
)

CONNECT: Final = Family(
    name="connect",
    marker="__connect.errors.topic",
    entity="__connect.errors.connector.name",
    topic="__connect.errors.topic",
    partition="__connect.errors.partition",
    offset="__connect.errors.offset",
    reasons=("__connect.errors.exception.class.name",),
    message="__connect.errors.exception.message",
)

SPRING: Final = Family(
    name="spring",
    marker="kafka_dlt-original-topic",
    entity="kafka_dlt-original-consumer-group",
    topic="kafka_dlt-original-topic",
    partition="kafka_dlt-original-partition",
    offset="kafka_dlt-original-offset",
    # The cause is what the listener threw; around it Spring puts an exception of its own.
    reasons=("kafka_dlt-exception-cause-fqcn", "kafka_dlt-exception-fqcn"),
    message="kafka_dlt-exception-message",
    read_partition=lambda headers, name: header.big_endian(headers, name, 4),
    read_offset=lambda headers, name: header.big_endian(headers, name, 8),
    # A retry topic's records are published anew, with the headers of each topic that they have been on.
    piles_up=True,
)

FAMILIES: Final = (LAPSE, KAFKA, STREAMS, CONNECT, SPRING)
"""In the order in which they are looked for: lapse's letters carry the headers of KIP-1191 too."""
