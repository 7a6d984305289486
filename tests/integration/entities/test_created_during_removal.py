"""Entities that are created again while those that they replace end, or are being removed (C65, Q23)."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import Producer

from lapse.config import load
from lapse.config.decided_entities import DecidedEntities
from lapse.core.shard.retirement import LAST_READ, RETIREMENT, Cause, Phase, Retirement
from lapse.protocol import topic as names
from lapse.runtime.topics.cluster import Cluster
from lapse.runtime.topics.definition_follower import DefinitionFollower
from lapse.runtime.topics.definitions import DefinitionsTopic, understood
from lapse.runtime.topics.entity_cleanup import EntityCleanup
from lapse.runtime.tp import TP
from lapse_client import Admin, CommandFailed
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment


class SlowCleanup(EntityCleanup):
    """A clean-up in which an entity is created again while the brokers are asked who reads what.

    Or, with `between`, when all of its topics are removed but the changelog.
    """

    def __init__(
        self, here: Deployment, definitions: DefinitionFollower, name: str, *settings: str, between: bool = False
    ) -> None:
        async def topics() -> set[str]:
            return {*here.connection.partitions()}

        async def existing_ends(tps: list[TP]) -> dict[TP, int]:
            return dict.fromkeys(tps, 0)  # nothing was ever written

        reader = SimpleNamespace(existing_ends=existing_ends)
        services = SimpleNamespace(topics=topics, forget=lambda topics: None, aside_reader=reader)
        app = cast("Any", SimpleNamespace(conf=SimpleNamespace(id=here.app_id), services=services))
        super().__init__(app, {"bootstrap_servers": here.servers}, definitions)
        self._left = lambda: {*here.connection.partitions()}
        self._create = lambda: here.lapse("queue", "create", name, *settings)
        self._between = between

    async def _read_by_groups(self, admin: AIOKafkaAdminClient) -> set[str]:
        await self._meanwhile()
        return set()

    async def _delete_topics(self, admin: AIOKafkaAdminClient, topics: list[str]) -> dict[str, str]:
        refused = await super()._delete_topics(admin, topics)
        if self._between:
            self._between = False
            await asyncio.to_thread(until, lambda: not self._left().intersection(topics), "they are removed")
            await self._meanwhile()
        return refused

    async def _meanwhile(self) -> None:
        created = await asyncio.to_thread(self._create)
        assert created.returncode == 0, created.stderr


def following(here: Deployment) -> DefinitionFollower:
    """A follower that has read the definitions as they are now."""
    config = load(here.config)
    contents = DefinitionsTopic(config).read_if_there()
    assert contents is not None
    decided = DecidedEntities(config, understood(contents.found), (), Path(), contents.offsets)
    worker: Any = SimpleNamespace(services=SimpleNamespace(topics=None), entities={})
    follower = DefinitionFollower(worker, config, decided, {})
    follower._found = dict(contents.found)
    return follower


@pytest.mark.feature("C65", "Q18", "Q23")
def test_topics_of_a_new_entity_are_not_removed_with_the_old_one_of_its_name(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = deploy({}, definitions="topic").apply()
    name = here.name("brief")
    assert here.lapse("queue", "create", name, "auto_delete_on_idle=5m").returncode == 0
    config, follower = load(here.config), following(here)
    Cluster(config).remove(names.entity_topics(here.app_id, name))
    until(lambda: names.commands(name) not in here.connection.partitions(), "its own topics are removed")
    monkeypatch.setattr("lapse.runtime.topics.deleted_entities._LONGEST_S", 0)

    async def end() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=here.servers)
        await admin.start()
        await SlowCleanup(here, follower, name, "auto_delete_on_idle=1h")._end(admin, [name])
        await admin.close()

    asyncio.run(end())
    assert {name, names.commands(name), names.events(name)} <= here.connection.partitions().keys()
    after = DefinitionsTopic(config).read_if_there()
    assert after is not None
    assert understood(after.found)[name].settings == {"auto_delete_on_idle": "1h"}


@pytest.mark.feature("C4", "Q23")
def test_the_changelog_of_a_new_entity_is_not_removed_by_a_worker_that_was_slow_to_remove_the_old_one(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who creates the entity takes the worker for dead, and finishes what it has begun."""
    here = deploy({}, definitions="topic").apply()
    name = here.name("brief")
    assert here.lapse("queue", "create", name).returncode == 0
    changelog, follower = names.changelog(here.app_id, name), following(here)
    retired = Retirement(phase=Phase.RETIRED, id=1, cause=Cause.DELETE).encode()
    worker = Producer({"bootstrap.servers": here.servers})
    worker.produce(changelog, retired, RETIREMENT + bytes(16), partition=0)
    assert not worker.flush(20)
    monkeypatch.setattr("lapse.runtime.topics.deleted_entities._LONGEST_S", 0)

    async def remove() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=here.servers)
        await admin.start()
        await SlowCleanup(here, follower, name, "lease_period=9s", between=True)._remove(admin, [name])
        await admin.close()

    asyncio.run(remove())
    assert {changelog, names.commands(name)} <= here.connection.partitions().keys()
    assert not here.tail(changelog).drain(), "it is a new one"
    after = DefinitionsTopic(load(here.config)).read_if_there()
    assert after is not None
    assert understood(after.found)[name].settings == {"lease_period": "9s"}


def delete(here: Deployment, stem: str, partitions: int = 1, **options: bool) -> str:
    """Delete an entity as a client of another kind, which does not wait until its topics and its definition are gone.

    Returns:
        The name of the entity.
    """
    name, writer = here.name(stem), Producer({"bootstrap.servers": here.servers})
    answers = here.tail(names.deliveries(name))
    command = json.dumps({"command": "delete", "id": "d", **options}).encode()
    for partition in range(partitions):
        writer.produce(names.commands(name), command, partition=partition)
    assert not writer.flush(20)
    answers.wait_for(lambda records: [one for one in records if b'"delete"' in (one.value() or b"")], "the answer")
    return name


@pytest.mark.feature("Q23", "C4", "X2")
def test_an_entity_is_created_anew_as_soon_as_the_deletion_of_the_old_one_is_answered(deploy: Deploy) -> None:
    """Its topics and its definition go some time later."""
    here = deploy({"orders": {}, "other": {}, "third": {}}, definitions="topic").apply()
    here.worker().wait_for_shards(3)
    created = here.lapse("queue", "create", delete(here, "third"), "--json")
    assert json.loads(created.stdout)["changed"], "it is not the old one, which is about to go"
    orders, other = delete(here, "orders"), delete(here, "other")
    with Admin(here.app_id, connection=here.connection) as admin:
        assert admin.create_queue(orders).changed
        with pytest.raises(CommandFailed, match="there is no queue"):
            admin.alter_queue(other, lease_period="9s")
    until(lambda: names.commands(other) not in here.connection.partitions(), "the old ones are removed")
    here.write("orders", "1")
    with here.subscriber("orders") as subscriber:
        delivery = subscriber.receive(20)
        assert delivery is not None
        assert delivery.value == b"1"


@pytest.mark.feature("Q23", "C4")
@pytest.mark.parametrize("definitions", ["topic", "file"])
def test_apply_creates_anew_what_has_just_been_deleted(deploy: Deploy, definitions: str) -> None:
    """It waits for the removal of the old topics, which all exist when it looks, and leaves the others alone.

    A tombstone of every record stands behind the decision in the changelog of the SOW topic.
    """
    here = deploy({}, definitions=definitions)
    here.configure({"orders": {}, "other": {}}, {"prices": {}}, definitions=definitions)
    here.apply().worker().wait_for_shards(3)
    writer, changelog = (
        Producer({"bootstrap.servers": here.servers}),
        here.tail(names.changelog(here.app_id, here.name("prices"))),
    )
    for number in range(2 * LAST_READ):
        writer.produce(here.name("prices"), b"{}", b"%d" % number)
    assert not writer.flush(20)
    changelog.wait_for(lambda records: len({one.key() for one in records}) > 2 * LAST_READ, "the records")
    ended = {delete(here, "orders"), delete(here, "prices", force=True)}
    done = here.lapse("apply", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert ended == {
        name for name in map(here.name, ("orders", "other", "prices")) if names.commands(name) in made["created"]
    }
    assert ended == {one["entity"] for one in made["defined"]} or definitions == "file"
    again = here.lapse("apply", "--json")
    assert not any(json.loads(again.stdout).values()), "what is there now stays"


@pytest.mark.feature("C4", "Q18")
def test_the_changelog_says_that_the_end_is_decided_before_any_topic_goes(deploy: Deploy) -> None:
    """No worker runs here. A later note, that the entity is in service again, counts; so do records behind the note."""
    here = deploy({"ended": {}, "kept": {}, "fresh": {}}, definitions="topic").apply()
    since_ms = 1_769_860_800_000
    retired = Retirement(phase=Phase.RETIRED, id=1, cause=Cause.DELETE, since_ms=since_ms).encode()
    writer, note = Producer({"bootstrap.servers": here.servers}), RETIREMENT + bytes(16)
    for stem, values in (("ended", [None, retired]), ("kept", [retired, None])):
        for value in values:
            writer.produce(names.changelog(here.app_id, here.name(stem)), value, note, partition=0)
        for number in range(500):
            writer.produce(names.changelog(here.app_id, here.name(stem)), b"", b"a%d" % number, partition=0)
    assert not writer.flush(20)
    entities = {here.name(stem) for stem in ("ended", "kept", "fresh")}
    assert Cluster(load(here.config)).ending({*entities, "nobody"}).keys() == {here.name("ended")}
    checked = here.lapse("check", "--json")
    assert checked.returncode == 1
    (difference,) = json.loads(checked.stdout)["differences"]
    assert difference["topic"] == names.commands(here.name("ended"))
    assert "is being deleted since 2026-01-31T12:00:00.000Z, by command" in difference["what"]
    assert "fits" not in here.lapse("check").stdout
