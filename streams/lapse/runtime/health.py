"""The health of a worker: `/health` and `/ready`, for its supervisor.

A worker that hangs is not healthy, and must be started again. One that is not ready needs time, or an operator: its
shards are still being restored, or it is not in the group yet, or the brokers are away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import TimeoutError as Late
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from lapse.protocol import topic as names

if TYPE_CHECKING:
    from lapse.runtime.shard.served_entity import Entity

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 5.0
"""How long an event loop may take to answer before the worker counts as hanging, s."""

AWAY_FIGURE: Final = ("lapse_worker_broker_away_seconds", "For how long the brokers have not answered.")

_NAMED: Final = 10
"""How many awaited shards are named. The others are counted."""

StartResponse = Callable[[str, list[tuple[str, str]]], Any]
Wsgi = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]


class Readiness(NamedTuple):
    """Whether a worker serves what it should.

    Attributes:
        joined: whether it is a member of the group of workers.
        assigned: the number of shards that the group has assigned to it. 0 is right if there are more workers than
            shards.
        served: how many of them answer.
        awaited: the others, such as `orders 0`.
        barred: entities that cannot be served on this cluster, with the reasons, by name (C52).
        away_s: for how long the brokers have not answered, s; None if they answer.
        added: the number of partitions of underlying topics beyond an entity's shards, by entity and topic (C81).
        behind: how many records of each topic are in the log and not yet in its shards' state.
    """

    joined: bool
    assigned: int
    served: int
    awaited: tuple[str, ...]
    barred: Mapping[str, list[str]]
    away_s: float | None
    added: Mapping[str, Mapping[str, int]] = MappingProxyType({})
    behind: Mapping[str, int] = MappingProxyType({})

    @property
    def ready(self) -> bool:
        """Whether all assigned shards are served. A barred entity needs an operator, and does not count."""
        return self.joined and not self.awaited and self.away_s is None

    @property
    def why(self) -> str:
        """Why the worker is not ready; empty if it is."""
        if self.away_s is not None:
            return f"the brokers have not answered for {self.away_s:.0f} s"
        if not self.joined:
            return "the worker has no place in its consumer group yet"
        if self.awaited:
            return f"{len(self.awaited)} of {self.assigned} shards are not restored yet"
        return ""

    def as_dict(self) -> dict[str, Any]:
        """Return the facts for JSON."""
        return {
            "ready": self.ready,
            "why": self.why,
            "joined": self.joined,
            "brokers_away_s": self.away_s,
            "assigned": self.assigned,
            "served": self.served,
            "awaited": list(self.awaited[:_NAMED]),
            "barred": {name: list(why) for name, why in self.barred.items()},
            "added_partitions": {name: dict(topics) for name, topics in self.added.items()},
            "behind": dict(self.behind),
        }


def readiness(
    entities: Mapping[str, Entity],
    assignment: Iterable[tuple[str, int]],
    joined: bool,
    barred: Mapping[str, list[str]],
    away_s: float | None,
    behind: Mapping[str, int],
) -> Readiness:
    """Compare what a worker serves with its assignment, which has a partition of a commands topic for each shard.

    Args:
        entities: the worker's entities, with their shards.
        assignment: the partitions that the group has assigned to it.
        joined: whether it is a member of the group.
        barred: entities that cannot be served, with the reasons.
        away_s: for how long the brokers have not answered, s; None if they answer.
        behind: how many records of each topic are in the log and not yet in its shards' state.
    """
    by_topic = {names.commands(name): entity for name, entity in entities.items()}
    assigned = sorted((by_topic[topic].name, partition) for topic, partition in assignment if topic in by_topic)
    awaited = tuple(f"{name} {partition}" for name, partition in assigned if partition not in entities[name].runners)
    added = {name: topics for name, entity in entities.items() if entity.runners and (topics := entity.added)}
    return Readiness(joined, len(assigned), len(assigned) - len(awaited), awaited, barred, away_s, added, behind)


def with_health_paths(app: Wsgi, look: Callable[[], Readiness], loop: asyncio.AbstractEventLoop) -> Wsgi:
    """Add `/health` and `/ready` to an application.

    Args:
        app: answers all other paths.
        look: returns the readiness; called on the loop.
        loop: the loop of the shards.
    """

    async def ask() -> Readiness:
        return look()

    def serve(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path not in ("/health", "/ready") or environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            return app(environ, start_response)
        if loop.is_closed():
            raise RuntimeError("the event loop has ended")
        future = asyncio.run_coroutine_threadsafe(ask(), loop)
        facts: dict[str, Any]
        try:
            found = future.result(PATIENCE_S)
        except Late:
            future.cancel()
            good, facts = False, {"healthy": False, "why": f"the event loop did not answer within {PATIENCE_S:.0f} s"}
        else:
            good, facts = (True, {"healthy": True}) if path == "/health" else (found.ready, found.as_dict())
        status = "200 OK" if good else "503 Service Unavailable"
        start_response(status, [("Content-Type", "application/json"), ("Cache-Control", "no-store")])
        return [orjson.dumps(facts)]

    return serve
