"""Definitions of a cluster's deployments, as their topics have them (Q23)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property

from lapse.protocol import topic
from lapse_client.error import LapseError
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.span import span

Latest = list[dict[str, bytes | None]]
"""The last records of each definitions topic, by entity; None for a definition that was removed."""


class Definitions:
    """The definitions of a cluster's deployments. They are read once, when they are asked for.

    Args:
        connection: connection to the cluster.
        topics: topics of the cluster with their numbers of partitions.
    """

    def __init__(self, connection: Connection, topics: Mapping[str, int]) -> None:
        self._connection = connection
        self.topics = topics

    @cached_property
    def latest(self) -> Latest:
        """The last records of each definitions topic; of one that may not be read, what came before the error."""
        found: Latest = []
        for name, partitions in self.topics.items():
            if not name.startswith(topic.definitions("")) or f"{name}.commands" not in self.topics:
                continue
            latest: dict[str, bytes | None] = {}
            with suppress(LapseError):  # without the right Read on it
                for message in span(self._connection, {name: partitions}):
                    latest[(message.key() or b"").decode("utf-8", "replace")] = message.value()
            found.append(latest)
        return found
