"""Who writes dead letters, and in which headers each family tells the same facts (KIP-1191, -1034, -298, Spring)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from lapse.protocol import header as names
from lapse_spark import facts, header

Reader = Callable[[Column, Column], Column]


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

    def missing(self) -> dict[str, Column]:
        """What a letter of this family has to tell to be counted: when it does not, by what is said of it then."""
        required = [(self.topic, "topic"), (self.partition, "partition"), (self.offset, "offset")]
        faults = {f"header {name} is missing or unreadable": F.col(field).isNull() for name, field in required}
        if self.name == LAPSE.name:
            faults[f"header {self.entity} is missing"] = F.col("entity").isNull()
            faults[f"header {names.REASONS} is missing or empty"] = F.size("reasons") == 0
        return faults


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

_MOST_REASONS: Final = max(len(family.reasons) for family in FAMILIES)


def of(headers: Column) -> Column:
    """The place in `FAMILIES` of the first one whose marker is there; null of a record that is no dead letter."""
    places = F.lit(None).cast("int")
    for place, family in reversed(list(enumerate(FAMILIES))):
        places = F.when(header.present(headers, family.marker), place).otherwise(places)
    return places


def told(headers: Column, family: Column) -> list[Column]:
    """What a letter tells, by the headers of its family; each header is looked up once, whichever family it is.

    Args:
        headers: as `header.apart` returns them.
        family: as `of` returns it.

    Returns:
        family, entity, topic, partition, offset, reasons, message.
    """
    origin = _Look(headers, family, from_origin=True)
    latest = _Look(headers, family, from_origin=False)
    why = [latest.read(partial(_reason, place)) for place in range(_MOST_REASONS)]
    reasons = F.split(F.coalesce(*why, F.lit("")), ",")
    return [
        _by_place(family, lambda one: one.name).alias("family"),
        origin.read(lambda one: one.entity).alias("entity"),
        origin.read(lambda one: one.topic).alias("topic"),
        origin.read(lambda one: one.partition, lambda one: one.read_partition).try_cast("int").alias("partition"),
        origin.read(lambda one: one.offset, lambda one: one.read_offset).alias("offset"),
        # Every fault asks for the reasons: computed once, they keep filters on faults above the look-ups.
        facts.once(F.when(family.isNotNull(), F.array_remove(reasons, ""))).alias("reasons"),
        latest.read(lambda one: one.message).alias("message"),
    ]


@dataclass(frozen=True, slots=True)
class _Look:
    """A look at the headers of a letter, for the header of that name which its family has for a fact."""

    headers: Column
    family: Column
    from_origin: bool

    def read(self, name: Callable[[Family], str], reader: Callable[[Family], Reader] = lambda _: header.text) -> Column:
        """Families that write a fact alike are read by one expression, to which the name is given row by row."""
        alike: dict[tuple[Reader, bool], list[int]] = {}
        for place, one in enumerate(FAMILIES):
            alike.setdefault((reader(one), one.piles_up and self.from_origin), []).append(place)
        wanted = _by_place(self.family, name)
        found = F.lit(None)
        for (read, piles_up), places in reversed(alike.items()):
            read_now = read(header.oldest_first(self.headers) if piles_up else self.headers, wanted)
            found = F.when(self.family.isin(places), read_now).otherwise(found) if len(alike) > 1 else read_now
        return found


def _reason(place: int, family: Family) -> str:
    return family.reasons[place] if place < len(family.reasons) else ""


def _by_place(family: Column, text: Callable[[Family], str]) -> Column:
    """A text that each family has; null where it is empty, and of a record that is no dead letter."""
    return F.get(F.array(*(F.lit(text(one) or None).cast("string") for one in FAMILIES)), family)
