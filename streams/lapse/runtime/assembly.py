"""The assembly of a worker: the Faust application, with what `lapse.toml` and the topics on the cluster say."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lapse.config import Config, key
from lapse.config.decided_entities import DecidedEntities
from lapse.config.definition import UNDEFINED
from lapse.config.key import Keys
from lapse.protocol import confluent
from lapse.protocol import topic as names
from lapse.runtime.application import LapseApp
from lapse.runtime.authorization.command_authorizer import Guard
from lapse.runtime.journal.rocksdb_store import remove_copies
from lapse.runtime.kafka import security, transport
from lapse.runtime.kafka.agent import WorkerAgent
from lapse.runtime.kafka.faust_settings import faust_settings, store_url
from lapse.runtime.kafka.group.membership import Membership
from lapse.runtime.key_watch import KeyWatch
from lapse.runtime.metrics import MetricsServer
from lapse.runtime.queue.queue_entity import QueueEntity
from lapse.runtime.shard.served_entity import Entity
from lapse.runtime.shard.services import Services
from lapse.runtime.sow.sow_entity import SowEntity
from lapse.runtime.topics.advice import deletion_advice, warnings
from lapse.runtime.topics.cluster import Cluster
from lapse.runtime.topics.definer import Definer
from lapse.runtime.topics.definition_follower import DefinitionFollower
from lapse.runtime.topics.entity_cleanup import EntityCleanup
from lapse.runtime.topics.late_entity import LateEntities
from lapse.runtime.topics.log_watch import LogWatch
from lapse.runtime.topics.served_versions import ServedVersions
from lapse.runtime.topics.topology import Topology, TopologyError
from lapse.runtime.topics.worker_messages import WorkerMessages


def make_app(config: Config, topology: Topology | None = None, decided: DecidedEntities | None = None) -> LapseApp:
    """Build the application.

    Args:
        config: the configuration.
        topology: the topics on the cluster; None to look them up.
        decided: the definitions from which the configuration was made; None if it was read only from a file.

    Raises:
        TopologyError: the cluster does not answer, or does not fit.
        ConfigError: a user's key cannot be read.
    """
    if topology is None:
        topology = Cluster(config).topology(served=True)
    deleted = topology.deleted()
    topology = topology.without(deleted)
    if decided is None and deleted and not topology.config.queue and not topology.config.sow:
        raise TopologyError(f"there is nothing to run: {deletion_advice(deleted)}")
    barred = topology.barred()
    topology = topology.servable()
    app = LapseApp(config.lapse.app_id, **faust_settings(config))
    transport.install(app)
    keys = key.read(config) if config.users else None
    _equip(app, config, keys, decided)
    app.key_watch = None if keys is None else KeyWatch(config, keys)
    app.warnings = [*topology.missing(), *warnings(topology), *key.exposure_warnings(config), *app.warnings]
    app.not_served, app.barred = deleted, barred
    for name in deleted:
        remove_copies(Path(str(app.conf.tabledir)), name)
    app._make = _maker(app, config, keys)
    for name in topology.entities():
        app._make(name, topology)
    app.late_entities = _late_entities(app, config, barred)
    app.on_partitions_revoked.connect(app.pause_shards, weak=False)
    app.on_partitions_assigned.connect(app.resume_shards, weak=False)
    app.on_before_shutdown.connect(app.release_shards, weak=False)
    logging.getLogger("faust.transport.drivers.aiokafka").addFilter(_not_about_declaring)
    return app


def _equip(app: LapseApp, config: Config, keys: Keys | None, decided: DecidedEntities | None) -> None:
    """Create what the entities of an application share, before it has any."""
    worker = config.lapse
    admin = {"bootstrap.servers": worker.brokers, **security.for_librdkafka(config.security)}
    app.services = Services(
        worker.brokers,
        security.for_aiokafka(config.security),
        worker.max_clock_skew,
        worker.session_timeout / 1000,
        admin,
        worker.standby,
    )
    connection = app.services.connection
    confluent.configure(worker.schema_ids)
    app.warnings = []
    app.entities = {}
    app.reading = WorkerAgent(app)
    app._renewing = asyncio.Lock()
    app._beside = set()
    app.membership = Membership(Path(str(app.conf.datadir)), worker.app_id, connection)
    app.definitions = app.definer = None
    if decided is not None:
        app.warnings = list(decided.warnings)
        app.definitions = DefinitionFollower(app, config, decided, connection)
        app.definer = _definer(app, app.definitions, config, decided, keys)
        versions = {name: one.version for name, one in decided.definitions.items()}
        app.services.versions.update({name: version for name, version in versions.items() if version != UNDEFINED})
    app.entity_cleanup = EntityCleanup(app, connection, app.definitions)
    app.log_watch = LogWatch(
        lambda: list(app.entities.values()), app.renew, app.services.topic_ids, app.services.log_reader
    )
    app.metrics = MetricsServer(app.entities, app.services.clock, app.readiness)
    app.metrics_address = worker.metrics_host, worker.metrics_port
    app.users = _user_line(keys)


def _late_entities(app: LapseApp, config: Config, barred: dict[str, list[str]]) -> LateEntities:
    """Return what serves entities later; it goes by the configuration of that time."""

    def current() -> Config:
        return config if app.definitions is None else app.definitions.config

    def look() -> Topology:
        return Cluster(current()).topology(served=True)

    return LateEntities(app, barred, look, lambda name, there: app._make(name, there, current()), app.definitions)


def _maker(app: LapseApp, config: Config, keys: Keys | None) -> Callable[..., Entity]:
    """Return a function that makes an entity for a topology, and declares it to Faust."""

    def make(name: str, topology: Topology, whole: Config = config) -> Entity:
        entity = _entity(name, topology, app.services, whole.forward_topic(name) if name in whole.queue else None)
        if keys is not None:
            kind = "queue" if name in whole.queue else "SOW topic"
            clock = app.services.clock
            entity.guard = Guard(name, kind, keys.users, whole.entitled_users(name), keys.workers, clock.now_ms)
        entity.expect(topology.existing)
        entity.declare(app, app.reading, store_url(config))
        entity.on_end = lambda one: app.run_beside(app.entity_cleanup.clean_up(one))
        app.entities[name] = entity
        return entity

    return make


def _entity(name: str, topology: Topology, services: Services, target: str | None) -> Entity:
    """Return an entity of a topology; `target` is the topic to which a queue forwards."""
    if name in topology.config.queue:
        return QueueEntity(name, topology.config.queue[name], topology.partitions(name), services, target)
    most_bytes = topology.record_bytes(name)
    return SowEntity(name, topology.config.sow[name], topology.partitions(name), services, most_bytes)


def _definer(
    app: LapseApp, follower: DefinitionFollower, config: Config, decided: DecidedEntities, keys: Keys | None
) -> Definer:
    """Return the definer, which also exchanges messages with the other workers."""
    name = names.definer(config.lapse.app_id)
    guard = None
    if keys is not None:
        guard = Guard(name, "deployment", keys.users, config.creators(), keys.workers, app.services.clock.now_ms)
    messages = WorkerMessages(name, app.services, guard, ServedVersions(app, follower))

    async def announce_served(entity: str) -> None:
        tables: Any = app.tables
        await tables.restored_of(names.table(entity))
        await messages.announce_served(entity)

    follower.on_served = lambda entity: app.run_beside(announce_served(entity))
    follower.on_ended = messages.forget
    return Definer(config, decided.beside, app.services, guard, messages)


def _user_line(keys: Keys | None) -> str:
    """Return the log line about users. All entities are guarded if users are configured, and otherwise none (X4)."""
    if keys is None:
        return (
            "No users are configured: whoever can write to a commands topic may do everything, and whoever can read a "
            "deliveries topic sees all of it (docs/security.md)"
        )
    return f"Users are configured ({', '.join(sorted(keys.users))}): commands have to be signed (docs/security.md)"


def _not_about_declaring(record: logging.LogRecord) -> bool:
    """Return False for Faust's message that it creates no topics, because `lapse apply` creates them."""
    return "Topic creation disabled" not in record.getMessage()
