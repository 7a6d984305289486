"""Where an entity's dead letters are, if it names a topic of its own for them (D1)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import orjson

from lapse.protocol import topic
from lapse_client.connection import Connection
from lapse_client.error import LapseError
from lapse_client.span import span

_PREFIX: Final = topic.definitions("")


def named(connection: Connection, topics: Mapping[str, int], entity: str) -> str:
    """The dead-letter topic that an entity's definition names; empty where there is none, or none may be read.

    Args:
        connection: the cluster.
        topics: its topics with their partitions.
        entity: the queue or SOW topic.
    """
    found = ""
    for name in topics:
        if not name.startswith(_PREFIX) or f"{name}.commands" not in topics:
            continue
        with suppress(LapseError):  # without the right Read on it
            for message in span(connection, {name: topics[name]}):
                if message.key() == entity.encode():
                    said = orjson.loads(message.value() or b"{}").get("settings", {}).get("dead_letter")
                    found = said if isinstance(said, str) and said in topics else ""
    return found
