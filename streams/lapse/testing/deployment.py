"""A deployment in memory: entities, their shards, a clock, and faults on purpose (X8)."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from pydantic import ValidationError

from lapse.config import Config, ConfigError, QueueConfig, SowConfig, load
from lapse.config.definition import Definition, DefinitionChange, Kind
from lapse.config.document import describe_fault, read_toml
from lapse.core.lifetime import NEVER
from lapse.core.near_name import did_you_mean
from lapse.protocol import topic as names
from lapse.runtime.topics.definition_draft import Request, draft
from lapse.runtime.topics.live_parts import live_parts
from lapse.testing.cluster import Cluster
from lapse.testing.definer import MemoryDefiner
from lapse.testing.memory_entity import APP_ID, Entity, QueueEntity, SowEntity
from lapse.testing.memory_transport import MemoryTransport
from lapse.testing.record import MemoryRecord
from lapse.testing.shard import Crash, CrashPoint, MemoryShard
from lapse.testing.virtual_clock import BEGIN_MS, VirtualClock
from lapse_client import Admin, Connection, DeadLetter, DeadLetterReader, Publisher, QueueSubscriber, SowClient
from lapse_client import Queue as QueueClient
from lapse_client.aio.client import AsyncClient
from lapse_client.argument import check_count, check_timeout
from lapse_client.kafka.transport import defaulting_to
from lapse_client.session.client import Client

_LOOK_EVERY_S: Final = 0.001
_UNTIL_S: Final = 30.0
_KINDS: Final[tuple[Kind, ...]] = ("queue", "sow")
_THE_TEST: Final = "the test"
"""The origin of definitions for which no client asked."""


class Lapse:
    """Queues and SOW topics in memory, with the worker's own machines and the client's own code.

    As a context manager it also serves every client object without a connection of its own. So the code under test need
    not know of it::

        with Lapse() as lapse:
            lapse.queue("orders", lease_period="30s")
            ...
            lapse.clock.advance(31)

    Args:
        begin_ms: the first instant, ms since the epoch; 2026-01-01 by default.

    Attributes:
        clock: the clock, which alone moves time.
        connection: the connection for client objects that need one.
    """

    def __init__(self, begin_ms: int = BEGIN_MS) -> None:
        self._cluster = Cluster(begin_ms)
        self._tree: dict[str, dict[str, Any]] = {"queue": {}, "sow": {}}
        self._beside = Path()
        self._entities: dict[str, Entity] = {}
        self._shards: dict[tuple[str, int], MemoryShard] = {}
        self._crash: CrashPoint | None = None
        self._running = True
        self._definers = {APP_ID: MemoryDefiner(APP_ID, self._cluster, self)}
        self._definitions: dict[str, Definition] = {}
        self._versions: dict[str, int] = {}
        """By deleted entity, the version on which a new definition of its name is based (C64)."""
        self._recorded = 0
        """How often an entity was defined or deleted: where the next record of the definitions topic would be."""
        self._cluster.work = self._work
        self._transport = MemoryTransport(self._cluster)
        self._default = defaulting_to(self._transport)
        self.connection = Connection("memory", transport=self._transport)
        self.clock = VirtualClock(self._cluster, self._next_due_ms, self._silence_ms)

    def __enter__(self) -> Self:
        self._default.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._default.__exit__(kind, error, traceback)

    # Entities and topics

    def topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic.

        Raises:
            ValueError: Kafka would not create such a topic, or it exists with another number of partitions.
        """
        given: object = name
        if not isinstance(given, str) or not names.TOPIC_NAME.match(given) or given in (".", ".."):
            raise ValueError(f"topic {name!r}: expected up to 249 letters, digits, '.', '_' and '-'")
        check_count("partitions", partitions)
        if (there := self._cluster.partitions().get(name, partitions)) != partitions:
            raise ValueError(f"topic {name!r} exists, and has {there} partition{'s' if there > 1 else ''}")
        self._cluster.create(name, partitions)
        self._cluster.touch()

    def queue(self, name: str, **settings: Any) -> None:
        """Create a queue and its topics.

        Args:
            name: name of the queue.
            settings: the keys of `[queue.<name>]` in `lapse.toml`, with the same values.

        Raises:
            ConfigError: a key or a value that is not allowed in `lapse.toml` either.
        """
        self._add({"queue": {name: settings}})

    def sow(self, name: str, **settings: Any) -> None:
        """Create a SOW topic and its topics; the settings are the keys of `[sow.<name>]`.

        Raises:
            ConfigError: a key or a value that is not allowed in `lapse.toml` either.
        """
        self._add({"sow": {name: settings}})

    def load(self, path: str | Path) -> None:
        """Create all queues and SOW topics of a `lapse.toml`.

        Raises:
            ConfigError: the faults that `lapse check` finds; or the file has users, which are not checked here.
        """
        file = Path(path)
        config = load(file)
        if config.users:
            raise ConfigError(f"{path}: users are not checked here; test with a file that has none")
        self._beside = file.parent
        tree = read_toml(file)
        self._add({kind: tree.get(kind, {}) for kind in self._tree})
        deployment = config.lapse.app_id
        if deployment not in self._definers:
            self._definers[deployment] = MemoryDefiner(deployment, self._cluster, self)

    def _add(self, more: dict[str, dict[str, Any]]) -> None:
        """Create queues and SOW topics; all of them, or none."""
        tree = {kind: {**known, **more.get(kind, {})} for kind, known in self._tree.items()}
        for name in (name for named in more.values() for name in named):
            if name in self._entities:
                raise ConfigError(f"{name}: there is a queue or SOW topic of this name already")
        try:
            config = Config.model_validate(tree, context={"beside": self._beside})
        except ValidationError as error:
            faults = (describe_fault(fault) for fault in error.errors(include_url=False))
            raise ConfigError("\n".join(f"{'.'.join(path)}: {message}" for path, message in faults)) from error
        with self._cluster.changed:
            self._tree = tree
            for kind in _KINDS:
                for name, settings in more.get(kind, {}).items():
                    self._entities[name] = self._entity(name, config)
                    version = self._versions.pop(name, 0) + 1
                    self._definitions[name] = Definition(name, kind, version, _THE_TEST, settings)
                    self._recorded += 1
            self._cluster.touch()

    def define(self, request: Request) -> tuple[int, int, bool]:
        """Define an entity for a client; return its version, its number of shards, and whether it changed.

        Raises:
            Refused: the definition is not allowed.
        """
        name = request.name
        made = draft(request, self._definitions, Config(), self._beside, self._cluster.now_ms, versions=self._versions)
        if made.differs is None:
            return made.after.version, self._entities[name].shards, made.is_new
        made.check_state(self._live)
        before = self._cluster.partitions().keys()
        self._entities[name] = entity = self._entity(name, made.config)
        self._tree = {**self._tree, request.kind: {**self._tree[request.kind], name: dict(made.after.settings)}}
        after = made.after
        if made.differs.before is None and after.settings.get("auto_delete_on_idle"):
            after = replace(after, made=tuple(topic for topic in entity.underlying if topic not in before))
        self._definitions[name] = after
        self._versions.pop(name, None)
        self._recorded += 1
        for partition in range(entity.shards):  # its shards are taken over anew
            self._shards.pop((name, partition), None)
        self._cluster.touch()
        return after.version, entity.shards, True

    def _live(self, change: DefinitionChange) -> dict[str, int] | None:
        """Return how many messages or records an entity has, by topic; None if no worker runs."""
        if not self._running:
            return None
        found = [shard.machine for (name, _), shard in self._shards.items() if name == change.after.name]
        return dict(sum(chain.from_iterable(map(live_parts, found)), Counter()))

    def _entity(self, name: str, config: Config) -> Entity:
        own: QueueConfig | SowConfig = config.queue[name] if name in config.queue else config.sow[name]
        if own.on_expire is not None:
            warnings.warn(f"{name}: on_expire is not called here; test the function by itself", stacklevel=4)
        if isinstance(own, SowConfig):
            return SowEntity(name, own, self._cluster)
        forward = config.forward_topic(name)
        if forward is not None:
            self._cluster.create(forward, own.partitions)
        return QueueEntity(name, own, self._cluster, forward)

    # The client

    def publisher(self, **options: Any) -> Publisher:
        """Return a publisher; use it with `with`. The options are those of `lapse_client.Publisher`."""
        return Publisher(self.connection, **options)

    def subscriber(self, queue: str, max_backlog: int = 1, **options: Any) -> QueueSubscriber:
        """Return a subscriber; use it with `with`. The options are those of `lapse_client.QueueSubscriber`."""
        return QueueSubscriber(queue, max_backlog, connection=self.connection, **options)

    def queue_client(self, queue: str) -> QueueClient:
        """Return a client for peek, depth and settlement of a queue; use it with `with`."""
        return QueueClient(queue, connection=self.connection)

    def sow_client(self, topic: str) -> SowClient:
        """Return a client of a SOW topic; use it with `with`."""
        return SowClient(topic, connection=self.connection)

    def admin(self) -> Admin:
        """Return an administrator, who creates, changes and deletes entities; use it with `with`."""
        return Admin(APP_ID, connection=self.connection)

    def dead_letters(self, name: str) -> list[DeadLetter]:
        """Return all dead letters of an entity, or of a dead-letter topic, in order."""
        self.settle()
        return list(DeadLetterReader(name, connection=self.connection))

    def records(self, topic: str, partition: int = 0) -> list[MemoryRecord]:
        """Return the records of a topic's partition, once everything is written that can be at this instant.

        Raises:
            ValueError: there is no such partition.
        """
        self.settle()
        if not self._cluster.has(topic, partition):
            known = self._cluster.partitions()
            if topic in known:
                raise ValueError(
                    f"records: {topic} has no partition {partition}, but those from 0 to {known[topic] - 1}"
                )
            raise ValueError(f"records: there is no topic {topic!r}{did_you_mean(topic, known)}")
        return [*self._cluster.log(topic, partition)]

    def depth(self, queue: str) -> int:
        """Return how many messages a queue has."""
        with self.queue_client(queue) as client:
            return int(client.depth()["depth"])

    # Waiting

    def settle(self) -> None:
        """Wait until shards and client have done everything that they can do at this instant.

        Handlers of the test in threads of their own are not waited for: see `until`.
        """
        self._cluster.settle()

    def until(self, condition: Callable[[], object], timeout_s: float = _UNTIL_S) -> None:
        """Wait for threads of the test, in real time, until a condition holds.

        Args:
            condition: called until it returns a true value.
            timeout_s: how long to wait at most, by the real clock, s.

        Raises:
            TimeoutError: the condition did not hold in time.
        """
        check_timeout("timeout_s", timeout_s)
        give_up = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() >= give_up:
                raise TimeoutError(f"did not hold within {timeout_s:g} s")
            time.sleep(_LOOK_EVERY_S)

    # Faults

    def crash(self, before: CrashPoint | str | None = None) -> None:
        """Let the worker crash: its shards are lost, and recovered from their journals.

        Args:
            before: None to crash now, between two steps. Otherwise the worker crashes when it next writes this:
                `"letters"`, `"events"`, `"journal"` or `"deliveries"`. What a step writes before that is written, the
                rest is not.
        """
        if before is not None:
            with self._cluster.changed:
                self._crash = _crash_point(before)
            return
        self.settle()
        with self._cluster.changed:
            self._shards.clear()
            self._cluster.touch()
        self.settle()

    def stop_worker(self) -> None:
        """Let the worker crash, and none run until `start_worker`; time may pass meanwhile."""
        self.settle()
        with self._cluster.changed:
            self._running = False
            self._shards.clear()

    def start_worker(self) -> None:
        """Start a worker, which takes over what `stop_worker` left."""
        with self._cluster.changed:
            self._running = True
            self._cluster.touch()
        self.settle()

    def lose(self, client: Client[Any] | AsyncClient[Any]) -> None:
        """Cut a subscriber off: nothing that it sends arrives, and nothing reaches it.

        Once the heartbeat timeout has passed it counts as lost, and its leases return.
        """
        self._cut_off(client, True)

    def find(self, client: Client[Any] | AsyncClient[Any]) -> None:
        """Reconnect a subscriber that was cut off. What it sent meanwhile arrives now."""
        self._cut_off(client, False)
        self.settle()

    def _cut_off(self, client: Client[Any] | AsyncClient[Any], cut_off: bool) -> None:
        self.settle()
        one: Any = client
        twin = getattr(one, "_twin", one)
        if not isinstance(twin, Client) or isinstance(twin, Publisher):
            raise TypeError(f"{client!r}: expected a subscriber, or another client of a queue or SOW topic")
        channel: Any = twin.session.channel
        producer, consumer = channel.endpoints
        if cut_off:
            producer.cut_off = True
        else:
            producer.reconnect()
        consumer.cut_off(cut_off)

    # Private parts

    def _work(self) -> None:
        """Let every shard do all its work; call it under the cluster's lock."""
        if not self._running:
            return
        for definer in self._definers.values():
            definer.work()
        try:
            for entity in self._entities.values():
                for partition in range(entity.shards):
                    place = entity.name, partition
                    if place not in self._shards:
                        self._shards[place] = MemoryShard(entity, partition)
            for shard in list(self._shards.values()):
                shard.work(self._crash)
            self._clean_up()
        except Crash:
            # The worker crashes, so all of its shards are lost at once.
            self._crash = None
            self._shards.clear()
            self._cluster.touch()

    def _clean_up(self) -> None:
        """Delete the topics of entities whose shards have all stopped (C4).

        A worker's shards answer for some seconds more, until all clients have heard of it. If a client waits for the
        end, the shards end at this instant, because time would not pass.
        """
        for name, entity in list(self._entities.items()):
            shards = [self._shards.get((name, partition)) for partition in range(entity.shards)]
            if all(shard is not None and self._is_over(shard) for shard in shards):
                self._cluster.awaited.discard(name)
                for topic in [*names.entity_topics(APP_ID, name), *self._taken_along(name)]:
                    self._cluster.delete(topic)
                for partition in range(entity.shards):
                    del self._shards[name, partition]
                del self._entities[name], self._definitions[name]
                self._versions[name] = self._recorded
                self._recorded += 1
                for kind in self._tree.values():
                    kind.pop(name, None)

    def _is_over(self, shard: MemoryShard) -> bool:
        awaited = shard.entity.name in self._cluster.awaited
        return shard.machine.stopped or (awaited and shard.machine.shard.agreement.leaving)

    def _taken_along(self, name: str) -> list[str]:
        """Return underlying topics to delete with a temporary entity: created with it, and read by no other (C65)."""
        own = self._definitions[name]
        if not own.settings.get("auto_delete_on_idle"):
            return []
        read = {topic for other, entity in self._entities.items() if other != name for topic in entity.underlying}
        return [topic for topic in own.made if topic not in read]

    def _next_due_ms(self) -> int:
        with self._cluster.changed:
            return min((shard.next_due_ms() for shard in self._shards.values()), default=NEVER)

    def _silence_ms(self) -> int:
        with self._cluster.changed:
            silences = (shard.silence_ms() for shard in self._shards.values())
            return max(1, min(silences, default=NEVER) // 3)


def _crash_point(before: CrashPoint | str) -> CrashPoint:
    try:
        return CrashPoint(before)
    except ValueError:
        known = ", ".join(repr(one.value) for one in CrashPoint)
        raise ValueError(f"crash: {before!r} is none of what a step writes: {known}") from None
