"""A client made of a plain producer and consumer, as kcat or a Java program would be: it writes JSON commands."""

import itertools
from typing import Any

import orjson
from confluent_kafka import Message

from lapse.protocol import topic
from support.kafka.log import Tail, header, write
from support.processes.deployment import Deployment

_IDS = itertools.count()


class Kcat:
    """A client of one queue shard that relies only on the documented protocol."""

    def __init__(self, deployment: Deployment, queue: str, partition: int = 0) -> None:
        self.queue = deployment.name(queue)
        self.partition = partition
        self._servers = deployment.servers
        self.tail: Tail = deployment.tail(topic.deliveries(self.queue), from_end=True)

    def send(self, value: bytes, **options: Any) -> None:
        """Write raw bytes to the commands topic."""
        write(self._servers, topic.commands(self.queue), [value], partition=self.partition, **options)

    def ask(self, command: str, **fields: Any) -> dict[str, Any]:
        """Send a JSON command and wait for its answer."""
        ident = f"kcat-{next(_IDS)}"
        self.send(orjson.dumps({"command": command, "id": ident, **fields}))
        return self.answer(ident)

    def answer(self, ident: str) -> dict[str, Any]:
        """Wait for the answer to a command."""

        def found() -> list[Message]:
            return [one for one in self.answers() if header(one, "lapse-command-id") == ident.encode()]

        self.tail.wait_for(lambda _: found(), f"the answer to {ident}")
        parsed: dict[str, Any] = orjson.loads(found()[0].value() or b"")
        return parsed

    def answers(self) -> list[Message]:
        """Return all answers that were read so far."""
        return [one for one in self.tail.records if header(one, "lapse-kind") == b"answer"]

    def deliveries(self, count: int, subscription: str) -> list[Message]:
        """Wait until a subscription has got `count` deliveries in all."""

        def mine() -> list[Message]:
            return [
                one
                for one in self.tail.records
                if header(one, "lapse-kind") == b"delivery"
                and header(one, "lapse-subscription") == subscription.encode()
            ]

        self.tail.wait_for(lambda _: len(mine()) >= count, f"{count} deliveries")
        return mine()
