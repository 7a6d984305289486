"""Finds the dead-letter topics that entities' definitions name (D1)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import orjson

from lapse_client.kafka.connection import Connection
from lapse_client.reading.definitions import latest_definitions


def named(connection: Connection, topics: Mapping[str, int], entity: str) -> str:
    """Return the dead-letter topic that an entity's definition names; empty if none does, or it may not be read.

    Args:
        connection: connection to the cluster.
        topics: topics of the cluster with their numbers of partitions.
        entity: name of the queue or SOW topic.
    """
    return all_named(connection, topics).get(entity, "")


def all_named(connection: Connection, topics: Mapping[str, int]) -> dict[str, str]:
    """Return the existing dead-letter topics that readable definitions name, by entity.

    Args:
        connection: connection to the cluster.
        topics: topics of the cluster with their numbers of partitions.
    """
    found: dict[str, str] = {}
    for latest in latest_definitions(connection, topics):
        for entity, definition in latest.items():
            found.pop(entity, None)
            if letter_topic := _letter_topic_setting(definition):
                found[entity] = letter_topic
    return {entity: letter_topic for entity, letter_topic in found.items() if letter_topic in topics}


def _letter_topic_setting(definition: bytes | None) -> str:
    """Return the topic that a definition names for its dead letters; empty if there is none."""
    with suppress(ValueError):
        known = orjson.loads(definition or b"{}")
        settings = known.get("settings") if isinstance(known, dict) else None
        letter_topic = settings.get("dead_letter") if isinstance(settings, dict) else None
        return letter_topic if isinstance(letter_topic, str) else ""
    return ""
