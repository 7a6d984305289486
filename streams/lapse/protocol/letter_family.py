"""Letter families: the systems that write dead letters, and the headers in which each states the same facts (C54).

The families are lapse, Kafka's share groups (KIP-1191), Kafka Streams (KIP-1034), Kafka Connect (KIP-298) and Spring.
This module has only the names. The client reads the headers from records, and Spark from columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from lapse.protocol import header


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFamily:
    """A convention for the headers of a dead letter.

    Attributes:
        name: name of the family.
        marker: the header that identifies a letter of this family.
        entity: header with the entity that gave up the message; empty = none.
        topic: header with the topic of the message's bookmark.
        partition: header with the partition of the bookmark.
        offset: header with the offset of the bookmark.
        reasons: headers with the reasons, of which the first existing one counts.
        message: header with the text of the fault.
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
"""The headers of KIP-1191, and further ones."""

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
    # The cause is the exception of the listener, which Spring wraps in its own.
    reasons=("kafka_dlt-exception-cause-fqcn", "kafka_dlt-exception-fqcn"),
    message="kafka_dlt-exception-message",
    binary=True,
    # Records of a retry topic are published again, and collect the headers of each topic that they were on.
    piles_up=True,
)

FAMILIES: Final = (LAPSE, KAFKA, STREAMS, CONNECT, SPRING)
"""The families in the order of the search, since lapse's letters have the headers of KIP-1191, too."""


def family_of(headers: Mapping[str, object]) -> LetterFamily | None:
    """Return the first family whose marker is among a record's headers; None if it is not a dead letter."""
    return next((family for family in FAMILIES if family.marker in headers), None)
