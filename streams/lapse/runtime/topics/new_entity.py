"""The own topics of a new entity, which are created together (C4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from lapse.config import Config
from lapse.runtime.topics.topology import Topology
from lapse.runtime.topics.wanted import Role, Wanted

_OWN: Final = frozenset({Role.DELIVERIES, Role.CHANGELOG, Role.SOW})


def with_all_own(config: Config, missing: Iterable[Wanted]) -> list[Wanted]:
    """Return missing topics, and the other own topics of the new entities among them, which are perhaps only listed.

    Args:
        config: configuration with these entities.
        missing: topics that the cluster lacks. An entity whose commands topic is missing is new.
    """
    topics = {one.name: one for one in missing}
    shards = {one.entity: one.partitions for one in topics.values() if one.role is Role.COMMANDS}
    for one in Topology(config, {}).wanted() if shards else ():
        if one.entity in shards and one.role in _OWN and one.name not in topics:
            topics[one.name] = replace(one, partitions=shards[one.entity])
    return list(topics.values())
