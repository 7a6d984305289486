"""What a worker's own shards serve: versions of definitions, how many messages are live (C65, C66)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from lapse.runtime.topics.definition_follower import DefinitionFollower, FollowingWorker
from lapse.runtime.topics.live_parts import live_parts

if TYPE_CHECKING:
    from lapse.runtime.shard.runner import Runner


class ServedVersions:
    """What a worker's own shards serve, for messages to the other workers.

    Args:
        app: the worker.
        follower: knows the versions.
    """

    def __init__(self, app: FollowingWorker, follower: DefinitionFollower) -> None:
        self._app = app
        self._follower = follower

    def served(self, entity: str) -> tuple[int, list[int]]:
        """Return the version that is served here, and the shards that serve it."""
        return self._follower.version(entity), sorted(self._runners(entity))

    async def live(self, entity: str) -> dict[int, dict[str, int]]:
        """Return the numbers of live messages or records of each shard of this worker, by underlying topic.

        A shard that is given up meanwhile is left out, since its state is freed. Its next owner counts.
        """
        found: dict[int, dict[str, int]] = {}
        for partition, runner in self._runners(entity).items():
            counts, parts = Counter[str](), live_parts(runner.machine)
            while self._runners(entity).get(partition) is runner:
                part = next(parts, None)
                if part is None:
                    found[partition] = dict(counts)
                    break
                counts += part
                await asyncio.sleep(0)  # others have their turn (C60)
        return found

    def _runners(self, entity: str) -> dict[int, Runner]:
        served = self._app.entities.get(entity)
        return {} if served is None else dict(served.runners)
