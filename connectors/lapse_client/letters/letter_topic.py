"""Finds the dead-letter topics that entities' definitions name (D1)."""

from __future__ import annotations

from contextlib import suppress

import orjson

from lapse_client.reading.definitions import Definitions


def named(definitions: Definitions, entity: str) -> str:
    """Return the dead-letter topic that an entity's definition names; empty if none does, or it may not be read.

    Args:
        definitions: the definitions of the cluster's deployments.
        entity: name of the queue or SOW topic.
    """
    return all_named(definitions).get(entity, "")


def all_named(definitions: Definitions) -> dict[str, str]:
    """Return the existing dead-letter topics that readable definitions name, by entity.

    Args:
        definitions: the definitions of the cluster's deployments.
    """
    found: dict[str, str] = {}
    for latest in definitions.latest:
        for entity, definition in latest.items():
            found.pop(entity, None)
            if letter_topic := _letter_topic_setting(definition):
                found[entity] = letter_topic
    return {entity: letter_topic for entity, letter_topic in found.items() if letter_topic in definitions.topics}


def _letter_topic_setting(definition: bytes | None) -> str:
    """Return the topic that a definition names for its dead letters; empty if there is none."""
    with suppress(ValueError):
        known = orjson.loads(definition or b"{}")
        settings = known.get("settings") if isinstance(known, dict) else None
        letter_topic = settings.get("dead_letter") if isinstance(settings, dict) else None
        return letter_topic if isinstance(letter_topic, str) else ""
    return ""
