"""Definitions of a cluster's deployments, as their topics have them (Q23)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from lapse.protocol import topic
from lapse_client.error import LapseError
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.span import span


def latest_definitions(connection: Connection, topics: Mapping[str, int]) -> Iterator[dict[str, bytes | None]]:
    """Yield the last records of each definitions topic, by entity; None for a definition that was removed.

    Of a topic that may not be read nothing is yielded but what came before the error.

    Args:
        connection: connection to the cluster.
        topics: topics of the cluster with their numbers of partitions.
    """
    for name in topics:
        if not name.startswith(topic.definitions("")) or f"{name}.commands" not in topics:
            continue
        latest: dict[str, bytes | None] = {}
        with suppress(LapseError):  # without the right Read on it
            for message in span(connection, {name: topics[name]}):
                latest[(message.key() or b"").decode("utf-8", "replace")] = message.value()
        yield latest
