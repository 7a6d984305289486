"""Deleted entities that are still defined: their definitions are taken out a moment after their topics (C4, Q23)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeVar

from lapse.config import Config
from lapse.config.definition import Definition
from lapse.protocol import topic as names
from lapse.runtime.topics.cluster import Cluster

_LONGEST_S: Final = 5.0
"""How long an end is waited for, s; it takes some tenths of a second, unless the worker ends meanwhile."""

T = TypeVar("T")

_LOOK_EVERY_S: Final = 0.1
_PATIENCE_S: Final = 15.0


def settled(
    read: Callable[[], dict[str, Definition]], config: Config, entities: Collection[str]
) -> tuple[dict[str, Definition], frozenset[str]]:
    """What is defined, once nothing of deleted entities is left.

    Who deletes an entity has its name back when the topics for clients are gone. Its changelog and its definition go
    behind these. Topics that were created beside them would begin with the old state, or lose their definition.

    Args:
        read: reads what is defined.
        config: where the cluster is, and whose deployment it is.
        entities: waits for the ends of these.

    Returns:
        The definitions; and which of these entities are deleted although they are defined, since nobody took them out.

    Raises:
        TopologyError: the cluster does not answer.
    """
    cluster: Cluster | None = None
    give_up = time.monotonic() + _LONGEST_S
    while True:
        there = read()
        defined = there.keys() & entities
        if not defined:
            return there, frozenset()
        cluster = cluster or Cluster(config)
        topics = cluster.metadata(_PATIENCE_S).topics.keys()
        ending = {name for name in defined if names.commands(name) not in topics}
        if not ending or time.monotonic() >= give_up:
            app_id = config.lapse.app_id
            return there, frozenset(name for name in ending if names.changelog(app_id, name) not in topics)
        time.sleep(_LOOK_EVERY_S)


def left(found: Mapping[str, T], topics: Collection[str]) -> dict[str, T]:
    """What is defined, but for entities that are deleted: of these, the topics for clients are gone, and events stay.

    Args:
        found: what is defined, by entity.
        topics: on the cluster, looked up behind that: those of a new entity are there before it is defined. Who may not
            see an entity's topics is told of it.
    """
    gone = {name for name in found if names.commands(name) not in topics and names.events(name) in topics}
    return {name: one for name, one in found.items() if name not in gone}
