"""Clients create, change and delete entities of a running deployment, as far as they may (Q23, C64 to C67)."""

import asyncio
import json
import re
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from lapse.config import QueueConfig, SowConfig, load
from lapse.config.definition import Definition, DefinitionChange
from lapse.core.error_code import ErrorCode
from lapse.protocol import topic as names
from lapse.runtime.topics.definitions import DefinitionsTopic
from lapse.topic_creation import NewTopic
from lapse_client import (
    Admin,
    AnswerTimeout,
    CommandFailed,
    DeadLetterReader,
    EntityDeleted,
    LapseError,
    Publisher,
    Queue,
    QueueSubscriber,
    SowClient,
)
from lapse_client.aio import Admin as AsyncAdmin
from lapse_client.letters.letter_purge import LetterPurge
from support.kafka.created_topic import create
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment, WorkerProcess
from support.processes.entitled import Entitled

LIVE_FORBIDS = {
    "topics": {"topics": ["other{}"]},
    "topic_pattern": {"topic_pattern": "more{}.*", "topics": ["other{}"]},
    "semantics": {"semantics": "at-most-once"},
    "ordering": {"ordering": "total"},
    "priority": {"priority": "/p", "ordering": "total"},
    "barrier": {"barrier": "/b = 1", "ordering": "total"},
    "group_by": {"group_by": "/customer"},
    "value_format": {"value_format": "avro", "value_schema": "order.avsc"},
    "value_schema": {"value_format": "avro", "value_schema": "order.avsc"},
}
"""By key of a queue that decides how live messages are kept, ordered and read: a change of it (C65)."""

RECORDS_FORBID = {
    "topic": {"topic": "other{}"},
    "key": {"key": ["/symbol"]},
    "value_format": {"value_format": "avro", "value_schema": "order.avsc"},
    "value_schema": {"value_format": "avro", "value_schema": "order.avsc"},
}
"""The same, by key of a SOW topic."""

NEVER = {"partitions": {"partitions": 3}}


def needing_empty(model: type[QueueConfig | SowConfig]) -> set[str]:
    """The keys that a change needs an empty entity for."""
    any_ = Definition("any", "queue", 1, "", {})
    return set(DefinitionChange(any_, any_, tuple(model.model_fields)).keys_that_need_empty)


def check_refusal(refused: CommandFailed, name: str, key: str) -> None:
    """Check that an answer refuses the change of a key, and names the ways that are open."""
    if key in NEVER:
        expected = ErrorCode.INVALID_ARGUMENT, f"{key} cannot change: it keeps the shards that it was created with."
        way = "ake a new name for an entity over the same topics"
    else:
        what = "anything of a topic that is taken away" if key.startswith("topic") else "anything"
        expected = ErrorCode.IN_USE, f"cannot change while {what} is live: 1 are."
        way = "Let them be settled or expire, or purge them; or take a new name for an entity over the same topics"
    message = str(refused)
    assert (refused.code, message.count(expected[1]), message.count(way)) == (expected[0], 1, 1), message
    assert key in message.partition(f"{name}: ")[2].partition(" cannot change")[0].split(", ")


def is_served_in_time(admin: Admin, name: str) -> bool:
    """Create a queue and delete it; return whether all shards served it within the 2 s that an answer waits (C66)."""
    late = admin.create_queue(name).late
    admin.delete_queue(name)
    return not late


def defined(here: Deployment) -> dict[str, Definition]:
    found = DefinitionsTopic(load(here.config)).read()
    return {name: Definition.decode(name, value) for name, value in found.items()}


def check_creation(here: Deployment, admin: Admin, name: str, fresh: dict[str, object]) -> None:
    """Create a queue, and again with the same settings; all shards serve it within the time that an answer waits."""
    numbers = count()
    made = admin.create_queue(name, **fresh)
    assert (made.version, made.changed, made.shards) == (1, True, 2)
    assert admin.create_queue(name, **{**fresh, "retry": {"delay": "1000ms"}}).changed is False
    if made.late:  # of a busy machine; another creation is answered in time
        until(lambda: is_served_in_time(admin, here.name(f"soon-{next(numbers)}")), "in 2 s (Q23)", 60)
    until(lambda: not admin.create_queue(name, **fresh).late, "served")
    create(here.connection.admin(), NewTopic(names.dead_letters(name), 1))  # as an earlier definition has left it
    assert DeadLetterReader(name, connection=here.connection).topic == fresh["dead_letter"], "its letters (D1)"
    older = names.dead_letters(name)
    assert DeadLetterReader(older, connection=here.connection).topic == older
    with pytest.raises(LapseError, match="Name the topic itself"):
        LetterPurge(name, here.connection)


def check_changes_beside_a_lease(here: Deployment, admin: Admin, name: str) -> None:
    """Change a queue while a message is leased; each change that may not be is refused with its code."""
    with Publisher(here.connection) as publisher:
        publisher.publish(name, b"one")
    with QueueSubscriber(name, 1, connection=here.connection) as subscriber:
        held = subscriber.receive(20)
        assert held is not None
        changed = admin.alter_queue(name, version=1, max_deliveries=3, retry=None)
        assert (changed.version, changed.changed, changed.late) == (2, True, ()), "all shards serve it (C66)"
        for code, settings in (
            (ErrorCode.OUTDATED, {"version": 1, "max_deliveries": 4}),
            (ErrorCode.INVALID_ARGUMENT, {"lease": "1s"}),
            (ErrorCode.INVALID_ARGUMENT, {}),
            (ErrorCode.IN_USE, {"group_by": "/customer"}),
            (ErrorCode.FORBIDDEN, {"on_expire": "os:system"}),
            (ErrorCode.FORBIDDEN, {"value_format": "avro", "value_schema": "../worker.key"}),
        ):
            with pytest.raises(CommandFailed) as refused:
                admin.alter_queue(name, **settings)
            assert refused.value.code == code, refused.value
        held.acknowledge()


def check_what_live_entities_forbid(here: Deployment, admin: Admin) -> None:
    """Each key that decides how live messages and records are kept stays as it is (C65)."""
    here.write("orders", "live")
    until(lambda: here.depth("orders")["depth"] == 1, "a live message")
    for key, change in {**LIVE_FORBIDS, **NEVER}.items():
        with pytest.raises(CommandFailed) as refused:
            admin.alter_queue(here.name("orders"), **here.named(change))
        check_refusal(refused.value, here.name("orders"), key)
    here.write("kept", '{"customer": "A"}', key=b"A")
    with SowClient(here.name("kept"), connection=here.connection) as client:
        until(lambda: list(client.query()), "a live record")
    for key, change in {**RECORDS_FORBID, **NEVER}.items():
        with pytest.raises(CommandFailed) as kept:
            admin.alter_sow_topic(here.name("kept"), **here.named(change))
        check_refusal(kept.value, here.name("kept"), key)
    assert f"`lapse queue partitions {here.name('orders')}` gives it more" in str(refused.value)
    assert defined(here)[here.name("orders")].version == 1, "nothing has changed"


def check_changes_of_topics(here: Deployment, admin: Admin, name: str) -> None:
    """A queue gets a topic, and another one is taken away that has nothing live."""
    with pytest.raises(CommandFailed, match="already, with other settings") as refused:
        admin.create_queue(name, lease_period="1s")
    assert refused.value.code == ErrorCode.EXISTS
    with pytest.raises(CommandFailed, match="there is no queue"):
        admin.alter_queue(f"{name}x", lease_period="1s")
    assert admin.alter_queue(name, topics=[name, here.name("more")]).late == (), "topics count at once as well"
    here.write("more", b"of a topic that stays")
    until(lambda: here.depth("fresh")["depth"] == 1, "it is live")
    assert admin.alter_queue(name, topics=[here.name("more")]).changed, "the topic taken away has nothing live"
    with QueueSubscriber(name, 1, connection=here.connection) as subscriber:
        stayed = subscriber.receive(20)
        assert stayed is not None
        assert stayed.value == b"of a topic that stays"
        stayed.acknowledge()


def check_that_a_deleted_name_is_free(here: Deployment, admin: Admin) -> None:
    again = here.name("again")
    admin.create_queue(again, lease_period="9s")
    with Queue(again, connection=here.connection) as open_:
        admin.delete_queue(again)
        assert admin.create_queue(again, lease_period="1s").changed, "other settings, at once"
        admin.delete_queue(again)
        with pytest.raises(EntityDeleted):
            open_.depth()


async def check_the_asynchronous_admin(here: Deployment, prices: str, name: str) -> None:
    """Create, change and delete SOW topics and queues of one name, and delete the queue `name`."""
    async with AsyncAdmin(here.app_id, connection=here.connection) as admin:
        assert (await admin.create_sow_topic(prices)).shards == 1
        assert (await admin.alter_sow_topic(prices, dedup_window="1s")).version == 2
        with SowClient(prices, connection=here.connection) as client:
            assert list(client.query()) == []
        await admin.delete_sow_topic(prices)
        again = await admin.create_sow_topic(prices, hash_index=["/a"])
        assert again.changed, "the name is free once a deletion has returned"
        with pytest.raises(CommandFailed, match=f"based on version 2, and version {again.version} is there"):
            await admin.alter_sow_topic(prices, version=2, dedup_window="2s")
        await admin.delete_sow_topic(prices)
        queue = await admin.create_queue(prices, max_deliveries=3)
        assert queue.version > again.version > 2, "for a queue as well"
        await admin.delete_queue(prices)
        await admin.delete_queue(name)


def check_what_cannot_be_shared(here: Deployment, admin: Admin, name: str) -> None:
    """`rate` counts in one order; shares need to know all messages (C72)."""
    grouped = {"group_by": "/customer", "target_queue_depth": 5}
    for settings, why in (
        ({"topics": [name], "rate": "5/1s"}, 'rate: a rate over 2 partitions requires ordering = "total"'),
        ({"target_queue_depth": 5, "rate": "5/1s"}, "rate: is not possible together with target_queue_depth"),
        ({**grouped, "group_weight": {"a": 2}}, "group_weight: is not possible together with target_queue_depth"),
        ({**grouped, "group_limit": 2}, "group_limit: above 1 is not possible together with target_queue_depth"),
    ):
        with pytest.raises(CommandFailed, match=re.escape(why)) as caught:
            admin.create_queue(here.name("shared"), **settings)
        assert caught.value.code == ErrorCode.INVALID_ARGUMENT


def check_how_much_is_created(here: Deployment, admin: Admin) -> None:
    """A command that would create very many partitions, or what Kafka refuses, creates nothing (C67, X7)."""
    one, other = here.name("huge"), here.name("vast")
    for settings in ({"partitions": 5_000}, {"topics": [one, other], "partitions": 2_500}):
        with pytest.raises(CommandFailed, match=r"would create \d topics with [\d,]+ partitions together") as caught:
            admin.create_queue(one, **settings)
        assert caught.value.code == ErrorCode.INVALID_ARGUMENT
    kafka = AdminClient({"bootstrap.servers": here.servers})
    create(kafka, NewTopic(here.name("a_b"), 1, 1))
    clash = here.name("a.b")
    with pytest.raises(CommandFailed, match="Kafka does not create it beside") as caught:
        admin.create_queue(clash, partitions=2)
    assert caught.value.code == ErrorCode.INVALID_ARGUMENT
    beside = here.name("beside")
    with pytest.raises(CommandFailed, match="could not be created: .*collides"):
        admin.alter_queue(here.name("orders"), topics=[here.name("orders"), beside, clash])
    phantom = names.commands(here.name("phantom"))
    with pytest.raises(CommandFailed, match="is one of the topics that only lapse writes"):
        admin.alter_queue(here.name("orders"), topics=[here.name("orders"), phantom])
    there = kafka.list_topics(timeout=15).topics
    assert phantom not in there
    assert not [topic for topic in there if any(name in topic for name in (one, other, clash, beside))]


@pytest.mark.feature("Q23", "C64", "C65", "C66", "C67", "C72", "X3", "D1")
def test_a_program_creates_changes_and_deletes_what_it_needs(deploy: Deploy) -> None:
    here = deploy({"orders": {}}, definitions="topic")
    here.configure({"orders": {}}, {"kept": {}}, definitions="topic")
    here.apply()
    fresh = {"partitions": 2, "lease_period": "20s", "retry": {"delay": "1s"}, "dead_letter": here.name("letters")}
    first, second = here.worker(), here.worker()
    until(lambda: all("No users" in one.text for one in (first, second)), "both are there", 40)
    until(lambda: first.shards + second.shards, "the shard is at one of them", 40)
    name = here.name("fresh")
    schema = {"type": "record", "name": "Order", "fields": [{"name": "customer", "type": "string"}]}
    (here.directory / "order.avsc").write_text(json.dumps(schema))
    assert needing_empty(QueueConfig) == LIVE_FORBIDS.keys()
    assert needing_empty(SowConfig) == RECORDS_FORBID.keys()
    with Admin(here.app_id, connection=here.connection) as admin:
        check_creation(here, admin, name, fresh)
        check_what_cannot_be_shared(here, admin, name)
        check_how_much_is_created(here, admin)
        check_changes_beside_a_lease(here, admin, name)
        check_what_live_entities_forbid(here, admin)
        check_changes_of_topics(here, admin, name)
        check_that_a_deleted_name_is_free(here, admin)
    asyncio.run(check_the_asynchronous_admin(here, here.name("prices"), name))
    until(
        lambda: set(defined(here)) == {here.name("orders"), here.name("kept")}, "their definitions went with them", 40
    )
    assert f"definitions.{here.app_id}" not in here.connection.queues(), "what answers about definitions is no queue"
    assert "command refused: 'depth'" not in first.text + second.text, "a client may ask whether a worker is there"
    with pytest.raises(LapseError, match="deployment nowhere: there is no topic lapse.definitions.nowhere.commands"):
        Admin("nowhere", connection=here.connection).start()


@pytest.mark.feature("C65", "Q18")
def test_a_temporary_queue_takes_the_topics_along_that_were_created_with_it(deploy: Deploy) -> None:
    here = deploy({"orders": {}}, definitions="topic").apply()
    worker = here.worker().wait_for_shards(1)
    own, read, there = (here.name(stem) for stem in ("own", "read", "orders"))
    other = Consumer({"bootstrap.servers": here.servers, "group.id": here.name("others")})
    with Admin(here.app_id, connection=here.connection) as admin:
        admin.create_queue(here.name("reply"), topics=[own, read, there], auto_delete_on_idle="5m", dead_letter=False)
        admin.alter_queue(here.name("reply"), lease_period="9s")
        events = names.events(here.name("reply"))
        assert defined(here)[here.name("reply")].made == (events, own, read), "not the one that was there"
        reply = {"topics": [own, read, there], "auto_delete_on_idle": "6m", "dead_letter": False}
        here.configure({"orders": {}, "reply": reply}, definitions="topic")
        here.apply()
        assert defined(here)[here.name("reply")].version == 3
        assert defined(here)[here.name("reply")].made == (events, own, read), "whoever changes it"
        other.commit(offsets=[TopicPartition(read, 0, 0)], asynchronous=False)
        other.close()
        admin.delete_queue(here.name("reply"))
        until(lambda: f"removed {events}, {own}, which was created with it" in worker.text, "its own topic goes", 40)
        until(lambda: not {events, own} & here.connection.partitions().keys(), "they are gone", 20)
    assert f"topic {read}, which was created with it, stays: others read it" in worker.text
    assert {read, there} <= here.connection.partitions().keys()


@pytest.mark.feature("C66")
def test_an_answer_names_the_shards_that_do_not_serve_a_change_yet(deploy: Deploy) -> None:
    """Those of a worker that stands still. If that one carries changes out, nobody answers: then the other one does."""
    here = deploy({"busy": {"partitions": 2}}, definitions="topic", session_timeout="60s").apply()
    name, workers = here.name("busy"), [here.worker().wait_for_shards(2), here.worker().wait_for_shards(1)]
    (moved,) = (number for number in range(2) if f"{name}, partition {number}: restored" in workers[1].text)

    def late(frozen: WorkerProcess, lease: str, patience_s: int) -> tuple[str, ...] | None:
        frozen.signal(signal.SIGSTOP)
        try:
            with Admin(here.app_id, connection=here.connection, timeout_s=patience_s) as admin:
                return admin.alter_queue(name, lease_period=lease).late
        except AnswerTimeout:
            return None
        finally:
            frozen.signal(signal.SIGCONT)

    expected, delayed = moved, late(workers[1], "40s", 15)
    if delayed is None:
        expected, delayed = 1 - moved, late(workers[0], "41s", 45)
    assert delayed == (f"{name}:{expected}",)
    with Admin(here.app_id, connection=here.connection, timeout_s=50) as admin:
        until(lambda: not admin.alter_queue(name, lease_period="42s").late, "it serves it", 40)
    assert all(worker.running for worker in workers)


@pytest.fixture
def office(kafka: str, tmp_path: Path) -> Iterator[Entitled]:
    """A deployment whose users may create entities of some names, and one who may not."""
    deployment = Entitled(kafka, tmp_path, {})
    token = deployment.token
    deployment.users = {
        "alice": {
            "entitlements": {
                f"mine.*{token}": {"create": True, "read": True, "publish": True, "admin": True},
                f"part-{token}": {"read": True, "filter": "/desk = 'A'"},
                f"open-{token}": {"read": True},
            }
        },
        "bob": {"entitlements": {f"other-{token}": {"create": True}}},
        "carol": {"entitlements": {".*": {"read": True, "publish": True, "admin": True}}},
    }
    deployment.configure({"open": {}, "part": {}}, definitions="topic")
    deployment.apply().worker().wait_for_shards(2)
    yield deployment
    deployment.close()


@pytest.mark.feature("C67", "X4")
def test_who_may_create_what(office: Entitled) -> None:
    mine = office.name("mine")

    def refused(user: str, name: str, **settings: object) -> str:
        with Admin(office.app_id, connection=office.as_user(user)) as admin, pytest.raises(CommandFailed) as caught:
            admin.create_queue(name, **settings)
        assert caught.value.code == ErrorCode.FORBIDDEN
        return str(caught.value)

    with Admin(office.app_id, connection=office.as_user("alice")) as admin:
        made = admin.create_queue(mine, topics=[office.name("open"), mine])
        assert made.version == 1
        assert defined(office)[mine].origin == "alice"
        until(lambda: not admin.create_queue(mine, topics=[office.name("open"), mine]).late, "it is served")
        with office.subscriber_of("alice", "mine", 1) as subscriber:
            office.write("open", "one")
            delivery = subscriber.receive(20)
            assert delivery is not None
            delivery.acknowledge()
        assert admin.alter_queue(mine, max_deliveries=2).version == 2
        with pytest.raises(CommandFailed, match="to define .* like this takes publish on letters") as caught:
            admin.alter_queue(mine, dead_letter=office.name("letters"))
        assert caught.value.code == ErrorCode.FORBIDDEN
        admin.delete_queue(mine)
    assert f"takes create on {office.name('fresh')}; alice has not got it" in refused("alice", office.name("fresh"))
    with Admin(office.app_id, connection=office.as_user("alice")) as admin, pytest.raises(CommandFailed) as caught:
        admin.alter_queue(office.name("opn"), max_deliveries=2)
    assert f"takes create on {office.name('opn')}; alice has not got it" in str(caught.value), (
        "it names no other entity"
    )
    failures = refused("alice", office.name("mine.2"), topics=[office.name("part")])
    assert f"takes read without a filter on {office.name('part')}" in failures
    assert f"read on {office.name('other')}" in refused("bob", office.name("other"))
    with pytest.raises(LapseError, match="user carol the right to create something"):
        Admin(office.app_id, connection=office.as_user("carol")).start()
    forger = Admin(office.app_id, connection=office.as_user("alice", "a key that is not alice's own"))
    with forger, pytest.raises(CommandFailed, match="the signature is not alice's"):
        forger.create_queue(mine)
    nobody = Admin(office.app_id, connection=office.connection)
    with nobody, pytest.raises(CommandFailed, match="bears no user"):
        nobody.create_queue(mine)
