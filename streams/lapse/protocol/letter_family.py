"""Families of dead letters: who writes them, and in which headers each tells the same facts (C54).

lapse, Kafka's share groups (KIP-1191), Kafka Streams (KIP-1034), Kafka Connect (KIP-298) and Spring. The names are all
that is here: the client reads them from one record, Spark from columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from lapse.protocol import header


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFamily:
    """One convention for the headers of a dead letter.

    Attributes:
        name: how it is called.
        marker: the header that shows a letter of this family.
        entity: header that says who gave the message up; empty where there is none.
        topic: header of the bookmark's topic.
        partition: header of its partition.
        offset: header of its offset.
        reasons: headers that say why; of several the first that is there.
        message: header of the fault in words.
        binary: whether partition and offset are big-endian numbers of 4 and 8 bytes, instead of decimal text.
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
    binary: bool = False
    piles_up: bool = False


KAFKA: Final = LetterFamily(
    name="kafka",
    marker=header.DLQ_TOPIC,
    entity=header.DLQ_GROUP,
    topic=header.DLQ_TOPIC,
    partition=header.DLQ_PARTITION,
    offset=header.DLQ_OFFSET,
    reasons=(header.REASONS,),
    message=header.DLQ_MESSAGE,
)

LAPSE: Final = replace(KAFKA, name="lapse", marker=header.LAPSE_ID)
"""The headers of KIP-1191, and more of its own."""

STREAMS: Final = LetterFamily(
    name="streams",
    marker="__streams.errors.topic",
    entity="",
    topic="__streams.errors.topic",
    partition="__streams.errors.partition",
    offset="__streams.errors.offset",
    reasons=("__streams.errors.exception",),
    message="__streams.errors.message",
)

CONNECT: Final = LetterFamily(
    name="connect",
    marker="__connect.errors.topic",
    entity="__connect.errors.connector.name",
    topic="__connect.errors.topic",
    partition="__connect.errors.partition",
    offset="__connect.errors.offset",
    reasons=("__connect.errors.exception.class.name",),
    message="__connect.errors.exception.message",
)

SPRING: Final = LetterFamily(
    name="spring",
    marker="kafka_dlt-original-topic",
    entity="kafka_dlt-original-consumer-group",
    topic="kafka_dlt-original-topic",
    partition="kafka_dlt-original-partition",
    offset="kafka_dlt-original-offset",
    # The cause is what the listener threw; around it Spring puts an exception of its own.
    reasons=("kafka_dlt-exception-cause-fqcn", "kafka_dlt-exception-fqcn"),
    message="kafka_dlt-exception-message",
    binary=True,
    # A retry topic's records are published anew, with the headers of each topic that they have been on.
    piles_up=True,
)

FAMILIES: Final = (LAPSE, KAFKA, STREAMS, CONNECT, SPRING)
"""In the order in which they are looked for: lapse's letters carry the headers of KIP-1191 too."""


def family_of(headers: Mapping[str, object]) -> LetterFamily | None:
    """The first family whose marker is among a record's headers; None of a record that is no dead letter."""
    return next((family for family in FAMILIES if family.marker in headers), None)
