"""The dead-letter topics of entities that name a topic of their own (D1)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import orjson

from lapse.protocol import topic
from lapse_client.error import LapseError
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.span import span

_PREFIX: Final = topic.definitions("")


def named(connection: Connection, topics: Mapping[str, int], entity: str) -> str:
    """The dead-letter topic that an entity's definition names; empty where there is none, or none may be read.

    Args:
        connection: the cluster.
        topics: its topics with their partitions.
        entity: the queue or SOW topic.
    """
    return all_named(connection, topics).get(entity, "")


def all_named(connection: Connection, topics: Mapping[str, int]) -> dict[str, str]:
    """The dead-letter topics that definitions name and that are there, by entity; as far as they may be read.

    Args:
        connection: the cluster.
        topics: its topics with their partitions.
    """
    found: dict[str, str] = {}
    for name in topics:
        if not name.startswith(_PREFIX) or f"{name}.commands" not in topics:
            continue
        with suppress(LapseError):  # without the right Read on it
            for message in span(connection, {name: topics[name]}):
                entity = (message.key() or b"").decode("utf-8", "replace")
                found.pop(entity, None)
                if said := _said(message.value()):
                    found[entity] = said
    return {entity: said for entity, said in found.items() if said in topics}


def _said(definition: bytes | None) -> str:
    """Which topic a definition names for its dead letters; empty where it names none, or is none."""
    with suppress(ValueError):
        known = orjson.loads(definition or b"{}")
        settings = known.get("settings") if isinstance(known, dict) else None
        said = settings.get("dead_letter") if isinstance(settings, dict) else None
        return said if isinstance(said, str) else ""
    return ""
