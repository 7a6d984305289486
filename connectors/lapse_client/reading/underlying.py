"""The underlying topics of entities, as the definitions of a cluster's deployments have them (Q2, Q23)."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import orjson

from lapse.protocol import topic_pattern
from lapse_client.reading.definitions import Definitions


def reads_others_only(definitions: Definitions) -> Callable[[str, str], bool]:
    """Return a function that says whether an entity, by its name, is defined and does not read a topic.

    It returns False for entities that only a `lapse.toml` defines, and if a definition cannot be understood.

    Args:
        definitions: the definitions of the cluster's deployments.
    """
    defined: dict[str, list[bytes]] = {}
    for latest in definitions.latest:
        for entity, definition in latest.items():
            if definition is not None:  # a deployment of another name may have left an older one
                defined.setdefault(entity, []).append(definition)

    @functools.cache
    def answer(entity: str, topic: str) -> bool:
        known = defined.get(entity, [])
        return bool(known) and not any(may_be_underlying(definition, entity, topic) for definition in known)

    return answer


def may_be_underlying(definition: bytes, entity: str, topic: str) -> bool:
    """Return whether an entity reads a topic by its definition, or the definition cannot be understood."""
    try:
        found = orjson.loads(definition)
        kind, settings = found["kind"], found["settings"]
        if kind == "sow":
            return bool((settings.get("topic") or entity) == topic)
        pattern, named = settings.get("topic_pattern"), settings.get("topics") or []
        if pattern is not None and topic_pattern.compiled(pattern).fullmatch(topic):
            return True
        return topic in (named if named or pattern is not None else [entity])
    except (ValueError, TypeError, KeyError, AttributeError, re.error):
        return True
