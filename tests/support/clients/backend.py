"""Backends that clients are tested against: scripted shards, real workers, or `lapse.testing`.

Each is a parameter of the conformance suite.
To add one, implement `Backend` and add it to `BACKENDS`.
"""

import uuid
from abc import ABC, abstractmethod
from typing import Any

from lapse.testing import Lapse
from lapse_client import Connection, Queue, SowClient
from support.clients.scripted_shard import ScriptedShards
from support.clients.scripted_sow import ScriptedSow
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment


class Backend(ABC):
    """Serves a queue and a SOW topic of two shards each. Both are empty when a case begins."""

    connection: Connection

    @abstractmethod
    def queue(self) -> str:
        """Return the name of an empty queue, to which clients may publish by its name."""

    @abstractmethod
    def sow(self) -> str:
        """Return the name of an empty SOW topic."""

    @abstractmethod
    def crash(self) -> None:
        """Kill the worker. Another one takes the shards over before this returns, or soon after."""

    def let_time_pass(self) -> None:  # noqa: B027  # a broker's clock runs by itself
        """Advance the clock by at least a moment."""

    @abstractmethod
    def tidy(self) -> None:
        """Remove everything of a case that has ended."""


class Scripted(Backend):
    """Scripted fakes of shards, on a real broker."""

    def __init__(self, kafka: str, deploy: Deploy) -> None:
        self._kafka = kafka
        self.connection = Connection(kafka)
        self._made: list[ScriptedShards | ScriptedSow] = []

    def queue(self) -> str:
        made = ScriptedShards(self._kafka, _unique("orders"), 2)
        self._made.append(made)
        return made.queue

    def sow(self) -> str:
        made = ScriptedSow(self._kafka, _unique("prices"), 2)
        self._made.append(made)
        return made.name

    def crash(self) -> None:
        for one in self._made:
            assert isinstance(one, ScriptedShards)
            one.take_over()

    def tidy(self) -> None:
        while self._made:
            self._made.pop().stop()


class Workers(Backend):
    """Worker processes."""

    def __init__(self, kafka: str, deploy: Deploy) -> None:
        settings = {"partitions": 2, "default_publish_target": "orders{}", "heartbeat_timeout": "60s"}
        self._deployment: Deployment = deploy({"orders": settings}, sow={"prices": {"partitions": 2}}).apply()
        self._deployment.worker().wait_for_shards(4)
        self.connection = self._deployment.connection

    def queue(self) -> str:
        return self._deployment.name("orders")

    def sow(self) -> str:
        return self._deployment.name("prices")

    def crash(self) -> None:
        worker = self._deployment.workers[0]
        worker.kill()
        worker.start()

    def tidy(self) -> None:
        with Queue(self.queue(), connection=self.connection) as queue:
            until(lambda: queue.depth()["subscriptions"] == 0, "nobody subscribes any more")
            queue.purge(leased=True)
        with SowClient(self.sow(), connection=self.connection) as sow:
            sow.delete(filter="1 = 1")


class Memory(Backend):
    """`lapse.testing`: the real core in memory, without Kafka (X8)."""

    def __init__(self, kafka: str, deploy: Deploy) -> None:
        self._lapse = Lapse()
        self.connection = self._lapse.connection

    def queue(self) -> str:
        name = _unique("orders")
        self._lapse.queue(name, partitions=2)
        return name

    def sow(self) -> str:
        name = _unique("prices")
        self._lapse.sow(name, partitions=2)
        return name

    def crash(self) -> None:
        self._lapse.crash()

    def let_time_pass(self) -> None:
        self._lapse.clock.advance(1)

    def tidy(self) -> None:
        """Do nothing: every case has entities of its own."""


def _unique(stem: str) -> str:
    return f"{stem}-{uuid.uuid4().hex[:8]}"


BACKENDS: dict[str, Any] = {"memory": Memory, "scripted": Scripted, "workers": Workers}
