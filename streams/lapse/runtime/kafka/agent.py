"""The Faust agent of a worker: it has all entities' topics assigned, and hands batches to the entities that read them.

The transport gives it the batches directly (`BatchConsumer.take_in`). Through the agent's stream each batch would pass
two tasks and two queues. An agent needs a stream, a queue, a supervisor and two tasks, so one for each entity would be
a third of the cost of an idle entity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import faust
from faust.topics import Topic

from lapse.runtime.tp import TP

Receive: TypeAlias = Callable[[TP, Sequence[Any]], None]
"""Processes the records of a batch."""

_NAME: Final = "lapse"


def _leave(_tp: TP, _records: Sequence[Any]) -> None:
    """Do nothing, because stores read changelogs by themselves."""


class _Topics(Topic):
    """The topics of a worker, as one Faust channel. Faust gets the current topics whenever it asks."""

    def __init__(self, *args: Any, topics: Any, **kwargs: Any) -> None:
        super().__init__(*args, topics=topics, **kwargs)
        self.topics = topics  # shared with Faust's copies, so that they see changes

    def __str__(self) -> str:
        return f"{len(self.topics)} topics"


class WorkerAgent:
    """The one agent of a worker, for any number of entities.

    Args:
        app: the worker.
    """

    def __init__(self, app: faust.App) -> None:
        self._app = app
        self._readers: dict[str, dict[str, Receive]] = {}
        """By topic, the receivers of its batches, by the entity's name."""
        topics = _Topics(app, topics=self._readers, key_serializer="raw", value_serializer="raw")

        async def receive(stream: Any) -> None:
            async for _ in stream:
                raise RuntimeError("a message came through a stream, past the transport")

        # Does the same as `@app.agent`, without reading the source of every module for a scan that lapse does not use.
        kind: Any = app.conf.Agent
        agent = kind(receive, name=_NAME, app=app, channel=topics, on_error=app._on_agent_error)
        app.agents[agent.name] = agent
        app.topics.beacon.add(agent)

    def add(self, entity: str, topics: Iterable[str], receive: Receive, changelog: str) -> None:
        """Hand an entity the records of some topics, once they are subscribed to.

        Args:
            entity: its name.
            topics: the topics that it reads.
            receive: called with each batch.
            changelog: its changelog, which is assigned with the topics, but not handed over.
        """
        for topic in topics:
            self._readers.setdefault(topic, {})[entity] = receive
        self._readers.setdefault(changelog, {})[entity] = _leave

    def remove(self, entity: str) -> None:
        """Hand nothing more to an entity. A topic that no other entity reads is no longer subscribed to."""
        for topic, readers in list(self._readers.items()):
            if readers.pop(entity, None) is not None and not readers:
                del self._readers[topic]

    async def to_read(self) -> list[str]:
        """Tell Faust which topics the entities read now; return them all."""
        conductor: Any = self._app.topics
        return list(await conductor._update_indices())

    def hand_over(self, tp: TP, records: Sequence[Any]) -> None:
        """Hand a batch to every entity that reads its topic."""
        for receive in list(self._readers.get(tp.topic, {}).values()):
            receive(tp, records)
