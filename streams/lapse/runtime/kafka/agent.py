"""The Faust agent of a worker: all entities' topics are assigned by it, and it hands batches to who reads them.

The transport brings it the batches itself (`BatchConsumer.take_in`). Through the agent's stream each would pass two
tasks and two queues. An agent is a stream, a queue, a supervisor and two tasks, too: one for each entity would make up
a third of what an idle entity costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import faust
from faust.topics import Topic

from lapse.runtime.tp import TP

Receive: TypeAlias = Callable[[TP, Sequence[Any]], None]
"""Takes the records of a batch."""

_NAME: Final = "lapse"


def _leave(_tp: TP, _records: Sequence[Any]) -> None:
    """Nothing: stores read changelogs by themselves."""


class _Topics(Topic):
    """The topics of a worker, as one channel of Faust's: those that it reads when Faust asks."""

    def __init__(self, *args: Any, topics: Any, **kwargs: Any) -> None:
        super().__init__(*args, topics=topics, **kwargs)
        self.topics = topics  # Faust's copies, too, look into what is changed here

    def __str__(self) -> str:
        return f"{len(self.topics)} topics"


class WorkerAgent:
    """One agent, whatever number of entities there is.

    Args:
        app: the worker's.
    """

    def __init__(self, app: faust.App) -> None:
        self._app = app
        self._readers: dict[str, dict[str, Receive]] = {}
        """What reads each topic, by the entity's name."""
        topics = _Topics(app, topics=self._readers, key_serializer="raw", value_serializer="raw")

        async def receive(stream: Any) -> None:
            async for _ in stream:
                raise RuntimeError("a message came through a stream, past the transport")

        # What `@app.agent` does, without finding the source of every module for a scan that lapse does not use.
        kind: Any = app.conf.Agent
        agent = kind(receive, name=_NAME, app=app, channel=topics, on_error=app._on_agent_error)
        app.agents[agent.name] = agent
        app.topics.beacon.add(agent)

    def add(self, entity: str, topics: Iterable[str], receive: Receive, changelog: str) -> None:
        """Have an entity get what comes in on some topics, once they are subscribed to.

        Args:
            entity: its name.
            topics: what it reads.
            receive: takes what comes in.
            changelog: is assigned to the worker with the others; nothing of it is handed over.
        """
        for topic in topics:
            self._readers.setdefault(topic, {})[entity] = receive
        self._readers.setdefault(changelog, {})[entity] = _leave

    def remove(self, entity: str) -> None:
        """Hand nothing to an entity any more; a topic that no other reads is read no longer."""
        for topic, readers in list(self._readers.items()):
            if readers.pop(entity, None) is not None and not readers:
                del self._readers[topic]

    async def to_read(self) -> list[str]:
        """Have Faust hand out what entities read now; returns all to subscribe to."""
        conductor: Any = self._app.topics
        return list(await conductor._update_indices())

    def hand_over(self, tp: TP, records: Sequence[Any]) -> None:
        """Pass a batch on to every entity that reads its topic."""
        for receive in list(self._readers.get(tp.topic, {}).values()):
            receive(tp, records)
