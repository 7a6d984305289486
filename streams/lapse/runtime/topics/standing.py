"""Standing: how many of an entity's own topics are on the cluster, so whether it is new, deleted or between (C4)."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from lapse.config import Config
from lapse.protocol import topic as names


class Standing(StrEnum):
    """How many of an entity's own topics are on the cluster."""

    NEW = "new"
    WHOLE = "whole"
    PARTLY = "partly"
    DELETED = "deleted"


def standing_of(config: Config, existing: Collection[str], name: str) -> Standing:
    """Return how many of an entity's own topics are on the cluster.

    Args:
        config: the configuration with the entity.
        existing: the topics on the cluster.
        name: name of the entity.
    """
    kept = names.entity_topics(config.lapse.app_id, name)
    others = {names.decisions(name)}  # optional: a client may have created it
    if name not in config.sow:
        others.add(names.sow(name))
    there = [topic in existing for topic in kept if topic not in others]
    if all(there):
        return Standing.WHOLE
    if any(there):
        return Standing.PARTLY
    return Standing.DELETED if names.events(name) in existing else Standing.NEW
