"""Deleted entities that are still defined: their definitions are removed a moment after their topics (C4, Q23)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeVar

from lapse.config import Config
from lapse.config.definition import Definition
from lapse.protocol import topic as names
from lapse.runtime.topics.cluster import Cluster
from lapse.runtime.topics.topology import TopologyError

_LONGEST_S: Final = 5.0
"""How long to wait for an end, s. It takes some tenths of a second, unless the worker is killed meanwhile."""

_RETIRED_S: Final = 10.0
"""How long to wait for an end that shards have just decided, s. Clients have some time to read what was answered."""

_SOON_S: Final = 1.0
"""How long to wait before we ask whether topics are only hidden from us, s."""

T = TypeVar("T")

_LOOK_EVERY_S: Final = 0.1
_PATIENCE_S: Final = 15.0


def await_removals(entities: Collection[str], config: Config) -> None:
    """Wait until those of some entities whose end is decided have no topics for clients any more.

    Until then they look as if they were in service.

    Raises:
        TopologyError: the cluster does not answer, or the topics of one are not removed in time.
    """
    cluster = Cluster(config)
    leaving = set(cluster.ending(entities) if entities else ())
    give_up = time.monotonic() + _RETIRED_S
    while leaving := {one for one in leaving if names.commands(one) in cluster.metadata(_PATIENCE_S).topics}:
        if time.monotonic() >= give_up:
            raise TopologyError(
                f"{min(leaving)} is deleted, and its topics are about to be removed, which takes a worker. Try again"
            )
        time.sleep(_LOOK_EVERY_S)


def settled(
    read: Callable[[], dict[str, Definition]], config: Config, entities: Collection[str]
) -> tuple[dict[str, Definition], frozenset[str]]:
    """Return the definitions, once nothing of deleted entities is left.

    The name of a deleted entity is free when its topics for clients are gone. Its changelog and its definition are
    removed after these. Topics that were created before that would begin with the old state, or lose their definition.
    If the worker that removes them has died, the changelog says that the entity is deleted, and what is left is removed
    here. Otherwise the name would not be free before the next worker starts.

    Args:
        read: reads the definitions.
        config: configuration of the cluster and the deployment.
        entities: the entities whose ends to wait for.

    Returns:
        The definitions, and those of the entities that are deleted but still defined, because nobody removed their
            definitions in time.

    Raises:
        TopologyError: the cluster does not answer, or does not let us see the topics of an entity, or one whose end is
            decided still has all of its topics.
    """
    await_removals(read().keys() & entities, config)
    cluster: Cluster | None = None
    give_up, looks_at = time.monotonic() + _LONGEST_S, time.monotonic() + _SOON_S
    while True:
        there = read()
        defined = there.keys() & entities
        if not defined:
            return there, frozenset()
        cluster = cluster or Cluster(config)
        topics = cluster.metadata(_PATIENCE_S).topics.keys()
        ending = {name for name in defined if names.commands(name) not in topics}
        if ending and time.monotonic() >= looks_at and (unseen := cluster.hidden(map(names.commands, ending))):
            raise TopologyError(f"{min(unseen)}: we lack the right Describe on it: have it granted")
        if not ending:
            return there, frozenset()
        if time.monotonic() >= give_up:
            left = {name for name in ending if names.changelog(config.lapse.app_id, name) in topics}
            return there, frozenset(ending - left | cluster.finish_removals(left))
        time.sleep(_LOOK_EVERY_S)


def left(found: Mapping[str, T], topics: Collection[str]) -> dict[str, T]:
    """Return the definitions without those of deleted entities, of which only the events topic is left.

    Args:
        found: the definitions, by entity.
        topics: the topics on the cluster, looked up after the definitions, since topics are created before a
            definition. Topics that we may not see cause a warning elsewhere.
    """
    gone = {name for name in found if names.commands(name) not in topics and names.events(name) in topics}
    return {name: one for name, one in found.items() if name not in gone}
