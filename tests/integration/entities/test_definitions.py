"""Definitions on a topic: all workers serve what `lapse apply` wrote there, and follow its changes (Q23, C64, C65)."""

import asyncio
import json
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from lapse.config import load
from lapse.config.definition import Definition, in_file
from lapse.core.shard.changelog import CLAIM
from lapse.core.shard.retirement import RETIREMENT, Cause, Phase, Retirement
from lapse.protocol import topic as names
from lapse.runtime.topics import deleted_entities
from lapse.runtime.topics.definition_draft import create_and_grant
from lapse.runtime.topics.definitions import DefinitionsTopic, OutdatedChange
from lapse.topic_creation import NewTopic
from lapse_client import Admin, LapseError, SowClient
from support.kafka.created_topic import create
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment, WorkerProcess


def defined(here: Deployment) -> dict[str, Definition]:
    found = DefinitionsTopic(load(here.config)).read()
    return {name: Definition.decode(name, value) for name, value in found.items()}


@pytest.mark.feature("Q23", "C64", "C65", "C66", "C23")
def test_workers_serve_what_the_topic_says_and_follow_it_without_a_restart(deploy: Deploy) -> None:
    here = deploy({"orders": {"max_deliveries": 3}, "other": {}}, definitions="topic").apply()
    worker = here.worker().wait_for_shards(2)
    here.write("orders", "a", "b")
    with here.subscriber("orders", 2) as subscriber:
        deliveries = [subscriber.receive(20), subscriber.receive(20)]
        for delivery in deliveries:
            assert delivery is not None
            delivery.cancel()
    here.configure({"orders": {"max_deliveries": 1}, "other": {}}, definitions="topic")
    applied = json.loads(here.lapse("apply", "--yes", "--json").stdout)
    assert [(one["version"], one["keys"]) for one in applied["defined"]] == [(2, ["max_deliveries"])]
    until(lambda: "version 2 is served" in worker.text, "the running worker has taken it up")
    letters = here.letters("orders", 2)
    assert {letter.value() for letter in letters} == {b"a", b"b"}, "a limit that is lowered takes messages out (C23)"
    assert worker.shards == 3, "the shard of the other queue was not taken over anew"
    journal = here.tail(names.changelog(here.app_id, here.name("orders"))).drain()
    claims = [record for record in journal if (record.key() or b"").startswith(CLAIM)]
    assert [(record.value() or b"").partition(b", ")[2] for record in claims] == [b"definition 1", b"definition 2"]
    assert claims[0].timestamp()[1] < claims[1].timestamp()[1], "each with its instant (C66)"

    here.configure({"orders": {"max_deliveries": 7}, "other": {}}, definitions="topic")
    second = here.worker()
    until(lambda: "lapse.toml says otherwise" in second.text, "a worker with another file says so")
    assert "version 2 of its definition counts" in second.text
    assert defined(here)[here.name("orders")].settings == {"max_deliveries": 1}

    here.write("orders", "live")
    until(lambda: here.depth("orders")["depth"] == 1, "a live message")
    here.configure({"orders": {"max_deliveries": 1, "priority": "/p"}, "other": {}}, definitions="topic")
    refused = here.lapse("apply", "--yes")
    assert refused.returncode == 1
    assert "priority cannot change while anything is live: 1 are. Let them be settled" in refused.stderr
    with here.queue("orders") as queue:
        queue.purge()
    assert here.lapse("apply", "--yes").returncode == 0
    assert defined(here)[here.name("orders")].version == 3
    until(lambda: "version 3 is served" in worker.text + second.text, "an empty queue may change its priority")


@pytest.mark.feature("Q23", "C42", "C52")
def test_a_definitions_topic_that_is_deleted_is_reported_and_followed_again_once_it_is_there(deploy: Deploy) -> None:
    here = deploy({"orders": {"max_deliveries": 3}, "other": {}}, definitions="topic").apply()
    worker = here.worker().wait_for_shards(2)
    for limit in (4, 5):
        here.configure({"orders": {"max_deliveries": limit}, "other": {}}, definitions="topic")
        here.apply()
    until(lambda: "version 3 is served" in worker.text, "the changes are taken up")
    topic, settings = names.definitions(here.app_id), {"orders": {"max_deliveries": 1}, "other": {}}
    admin = AdminClient({"bootstrap.servers": here.servers})
    admin.delete_topics([topic])[topic].result(20)
    until(lambda: f"{topic} is gone" in worker.text, "the worker says so")
    assert "Run `lapse apply`" in worker.text
    here.configure(settings, definitions="topic")
    here.apply()
    until(lambda: f"{topic} is there again" in worker.text, "the worker finds it")
    until(lambda: "version 1 is served: max_deliveries changed" in worker.text, "it follows the new topic")
    here.write("orders", "a")
    with here.subscriber("orders") as subscriber:
        delivery = subscriber.receive(20)
        assert delivery is not None
        delivery.cancel()
    assert [letter.value() for letter in here.letters("orders", 1)] == [b"a"]
    assert worker.text.count(f"{topic} is gone") == 1
    assert worker.shards == 5, "only the changed queue was taken over anew"


@pytest.mark.feature("Q23", "X7")
def test_workers_with_different_files_serve_the_same_from_the_first_apply_on(deploy: Deploy) -> None:
    settings = {"partitions": 2, "max_deliveries": 3}
    here = deploy({"orders": settings}, definitions="file").apply()
    here.configure({"orders": settings}, definitions=None)  # a deployment that has nothing but files yet
    first = here.worker().wait_for_shards(2)
    assert f"lapse.definitions.{here.app_id} is not there, or we may not see it: each worker serves what" in first.text
    refused = here.lapse("queue", "create", here.name("fresh"))
    assert refused.returncode == 1
    assert "nobody has defined yet what lapse.toml has. Run `lapse apply` first" in refused.stderr

    here.configure({"orders": {**settings, "max_deliveries": 1}}, definitions=None)
    assert here.lapse("apply", "--yes").returncode == 0
    until(lambda: "version 1 is served: max_deliveries changed" in first.text, "who began by a file follows the topic")
    here.configure({"orders": {**settings, "max_deliveries": 7}}, definitions=None)
    assert "lapse.toml says otherwise of" in here.lapse("check").stderr
    second = here.worker()
    until(lambda: "lapse.toml says otherwise" in second.text and second.shards, "it has one of the shards", 40)
    for partition in (0, 1):
        here.write("orders", f"{partition}", partition=partition)
    with here.subscriber("orders", 2) as subscriber:
        for _ in range(2):
            delivery = subscriber.receive(20)
            assert delivery is not None
            delivery.cancel()
    letters = here.letters("orders", 2)
    assert {letter.value() for letter in letters} == {b"0", b"1"}, "both workers go by the one definition"

    here.configure({"orders": settings}, definitions="file")
    assert 'a worker with definitions = "file" refuses' in here.lapse("check").stderr
    third = here.worker()
    assert third.wait(40) == 1
    assert f"defines what the entities of {here.app_id} are, for all workers" in third.text


@pytest.mark.feature("Q23", "Q16", "Q2")
def test_where_state_is_kept_and_where_publishes_go_changes_at_run_time(deploy: Deploy) -> None:
    here = deploy({"orders": {"topics": ["first{}", "other{}"]}}, definitions="topic").apply()
    worker = here.worker().wait_for_shards(1)
    name, other = here.name("orders"), here.name("other")
    here.write("first", "leased", *(f"{number}" for number in range(200)))
    with here.subscriber("orders", 1) as subscriber:
        held = subscriber.receive(20)
        assert held is not None
        changed = ("state=disk", "state_memory=8", f"default_publish_target={other}")
        assert here.lapse("queue", "alter", name, *changed).returncode == 0
        until(lambda: "version 2 is served: " in worker.text, "the running worker has taken it up")
        held.acknowledge()
        until(lambda: here.depth("orders")["depth"] == 200, "its lease was kept")
        assert here.lapse("publish", name, "late").returncode == 0
        until(lambda: here.depth("orders")["depth"] == 201, "it is in the queue")
    assert [one.value() for one in here.tail(other).drain()] == [b"late"]
    worker.kill()
    worker.start().wait_for_shards(1)
    assert here.depth("orders")["depth"] == 201
    assert here.lapse("queue", "alter", name, "state=memory").returncode == 0
    until(lambda: "version 3 is served: state changed" in worker.text, "back in memory")
    with here.subscriber("orders", 300) as subscriber:
        assert len([one for one in (subscriber.receive(10) for _ in range(201)) if one is not None]) == 201


RULE = """
import os

def left(message):
    with open(os.path.join(os.path.dirname(__file__), "left"), "a") as out:
        out.write(message.value.decode() + "\\n")

def also(message):
    with open(os.path.join(os.path.dirname(__file__), "also"), "a") as out:
        out.write(message.value.decode() + "\\n")
"""


def altered(here: Deployment, worker: WorkerProcess, queue: str, *changed: str) -> None:
    """Alter a queue, and wait until its worker serves the new version."""
    done = here.lapse("queue", "alter", queue, *changed, "--json")
    assert done.returncode == 0, done.stderr
    version = json.loads(done.stdout)["version"]
    until(lambda: f"{queue}: version {version} is served" in worker.text, f"{changed} is taken up", 20)


def delivered_value(here: Deployment, stem: str = "orders", text: str = "") -> bytes | None:
    """Receive a message of a queue, and acknowledge it."""
    with here.subscriber(stem, 1, filter=text or None) as subscriber:
        delivery = subscriber.receive(20)
        assert delivery is not None
        delivery.acknowledge()
        return delivery.value


@pytest.mark.feature("Q23", "C65", "Q21", "L15", "Q2")
def test_topics_forwarding_rule_and_format_change_at_run_time(deploy: Deploy) -> None:
    here = deploy(
        {"orders": {"topics": ["one{}"], "expiration": "enabled"}, "behind": {"topics": ["kept{}", "new{}"]}},
        definitions="topic",
    ).apply()
    worker = here.worker().wait_for_shards(2)
    name, behind, left = here.name("orders"), here.name("behind"), here.directory

    alter, delivered = partial(altered, here, worker), partial(delivered_value, here)
    alter(name, f'topics=["{here.name("one")}", "{here.name("more")}"]')
    here.write("more", "of the added topic")
    assert delivered() == b"of the added topic"
    here.write("one", "in the way")
    here.write("more", "not in the way")
    until(lambda: here.depth("orders")["depth"] == 2, "both topics have a live message")
    only_more = f'topics=["{here.name("more")}"]'
    refused = here.lapse("queue", "alter", name, only_more)
    assert "topics cannot change while anything of a topic that is taken away is live: 1 are" in refused.stderr
    assert delivered() == b"in the way"
    until(lambda: here.depth("orders")["depth"] == 1, "it is settled")
    alter(name, only_more)
    here.write("one", "of the topic that was taken away")
    here.write("more", "of the one that stayed")
    assert delivered() == b"not in the way"
    assert delivered() == b"of the one that stayed"

    alter(name, f"forward_to={behind}")
    here.write("more", "forwarded")
    assert delivered("behind") == b"forwarded"
    alter(behind, f"default_publish_target={here.name('new')}")
    until(lambda: worker.text.count(f"{name}, partition 0") >= 5, "who forwards to it is taken over as well", 20)
    here.write("more", "elsewhere")
    until(lambda: [one.value() for one in here.tail(here.name("new")).drain()] == [b"elsewhere"], "it goes there")
    alter(name, "--unset", "forward_to")
    here.write("more", '{"a": 7}')
    assert delivered(text="/a = 7") == b'{"a": 7}'

    (left / f"rule_{here.token}.py").write_text(RULE, "utf-8")
    for function in ("left", "also"):
        alter(name, f"on_expire=rule_{here.token}:{function}")
        here.write("more", function, headers=[("lapse-ttl-ms", b"1")])
        until(lambda path=left / function: path.exists() and path.read_text() == f"{path.name}\n", "it is called", 20)
    (left / "a.avsc").write_text('{"type": "record", "name": "A", "fields": [{"name": "a", "type": "int"}]}', "utf-8")
    refused = here.lapse("queue", "alter", name, f"on_expire=rule_{here.token}:missing")
    assert refused.returncode == 1, "a function that is not there is refused"
    until(lambda: here.depth("orders")["depth"] == 0, "nothing is live")
    alter(name, "value_format=avro", "value_schema=a.avsc", "--unset", "on_expire")
    here.write("more", b"\x0e")
    assert delivered(text="/a = 7") == b"\x0e"
    worker.kill()
    worker.start().wait_for_shards(2)
    here.write("more", b"\x0c")
    assert delivered(text="/a = 6") == b"\x0c"
    assert "counts from" not in worker.text


@pytest.mark.feature("C64")
def test_a_change_that_is_based_on_an_older_version_is_refused(deploy: Deploy) -> None:
    here = deploy({"orders": {}}, definitions="topic").apply()
    name = here.name("orders")
    topic = DefinitionsTopic(load(here.config))
    first = defined(here)[name]
    assert first == in_file(here.config)[name]
    topic.publish([replace(first, version=2, settings={"lease_period": "9s"})])
    with pytest.raises(OutdatedChange, match="based on version 1, and version 2 is there"):
        topic.publish([replace(first, version=2, settings={"lease_period": "8s"})])
    assert defined(here)[name].settings == {"lease_period": "9s"}
    topic.withdraw({name: 0})
    assert name in defined(here), "somebody has defined it anew since"
    topic.withdraw({name: 99})
    assert defined(here) == {}
    assert here.lapse("apply", "--yes").returncode == 0
    again = defined(here)[name]
    assert again.version > 2, "what is based on the deleted one fits the new one no better"
    for older in (0, 1, 2):
        with pytest.raises(OutdatedChange, match=f"version {again.version} is there"):
            topic.publish([replace(again, version=older + 1, settings={"lease_period": "7s"})])
    refused = here.lapse("queue", "alter", name, "lease_period=7s", "--version", "2")
    assert f"based on version 2, and version {again.version} is there" in refused.stderr
    assert here.lapse("queue", "alter", name, "lease_period=7s", "--version", str(again.version)).returncode == 0


@pytest.mark.feature("C64", "Q23")
def test_one_connection_reads_again_and_sees_what_others_have_defined_meanwhile(deploy: Deploy) -> None:
    here = deploy({"orders": {}}, definitions="topic").apply()
    topic, other = DefinitionsTopic(load(here.config)), DefinitionsTopic(load(here.config))
    orders, more, third = here.name("orders"), here.name("more"), here.name("third")

    async def read() -> set[str]:
        return {*await asyncio.to_thread(topic.read_to_change)}

    async def run() -> None:
        async with topic.one_reader():
            assert await read() == await read() == {orders}
            await asyncio.to_thread(other.publish, [Definition(more, "queue", 1, "other", {})])
            assert await read() == {orders, more}
            await asyncio.to_thread(topic.publish, [Definition(third, "queue", 1, "we", {})])
            with pytest.raises(OutdatedChange, match="version 1 is there"):
                await asyncio.to_thread(topic.publish, [Definition(more, "queue", 1, "we", {})])
            await asyncio.to_thread(other.withdraw, {more: sys.maxsize})
            assert await read() == {orders, third}
        assert await read() == {orders, third}, "and with a connection of its own"

    asyncio.run(run())


@pytest.mark.feature("Q23", "Q18")
def test_a_worker_without_anything_to_serve_waits_for_what_programs_create(deploy: Deploy) -> None:
    here = deploy({}, definitions="topic")
    refused = here.worker()
    assert refused.wait(40) == 1
    assert "there is nothing to run. If programs are to create queues, run `lapse apply` first" in refused.text
    here.apply()
    worker = here.worker()
    name = here.name("fresh")
    until(lambda: "the worker waits for `lapse apply`, or for programs" in worker.text, "it runs", 40)
    with Admin(here.app_id, connection=here.connection) as admin:
        for changed in (True, False):
            assert admin.create_queue(name).changed is changed
            until(lambda: worker.shards, "it serves what was created", 20)
            here.write("fresh", "one")
            with here.subscriber("fresh", 1) as fresh:
                delivery = fresh.receive(20)
                assert delivery is not None
                delivery.acknowledge()
            worker.kill()
            worker.start()
            until(lambda: worker.shards, "a killed one finds it again", 40)
        admin.delete_queue(name, force=True)
        until(lambda: defined(here) == {}, "its definition goes with it", 40)
        worker.kill()
        worker.start()
        second = here.worker()
        until(lambda: "the worker waits for `lapse apply`" in second.text, "a second one runs", 40)
        until(lambda: worker.running and "the worker waits for `lapse apply`" in worker.text, "it runs again", 40)
        assert admin.create_queue(here.name("shared"), partitions=3).changed
        here.worker().wait_for_shards(1)
        for partition in range(3):
            here.write("shared", "one", partition=partition)
        with here.subscriber("shared", 3) as shared:
            assert all(shared.receive(20) is not None for _ in range(3)), "each shard is at one worker, and is served"


@pytest.mark.feature("Q23")
def test_entities_that_are_created_while_workers_run_are_served_beside_the_others(deploy: Deploy) -> None:
    here = deploy({"orders": {}}, definitions="topic").apply()
    first, second = here.worker(), here.worker()
    until(lambda: first.shards + second.shards, "the shard is at one of them", 40)
    until(lambda: all("No users" in one.text for one in (first, second)), "both are there", 40)
    here.write("orders", "leased")
    with here.subscriber("orders", 9) as subscriber:
        held = subscriber.receive(20)
        assert held is not None
        here.configure({"orders": {}, "fresh": {"partitions": 2}}, {"prices": {}}, definitions="topic")
        assert here.lapse("apply", "--yes").returncode == 0
        name = here.name("fresh")
        until(lambda: all(f"{name}: version 1 is served" in one.text for one in (first, second)), "both serve it")
        here.write("fresh", "one")
        here.write("fresh", "two", partition=1)
        with here.subscriber("fresh", 2) as fresh:
            got = [fresh.receive(20), fresh.receive(20)]
            assert {one.value for one in got if one is not None} == {b"one", b"two"}
        here.write("prices", '{"price": 1}', key=b"A")
        with SowClient(here.name("prices"), connection=here.connection) as client:
            until(lambda: [record.key for record in client.query()] == [b"A"], "the SOW topic has its record")
        held.acknowledge()
        here.write("orders", "next")
        following = subscriber.receive(20)
        assert following is not None
        assert following.value == b"next", "the lease was kept, and the queue goes on"
        following.acknowledge()
    with here.queue("fresh") as queue:
        queue.delete(force=True)
    until(lambda: here.name("fresh") not in defined(here), "its definition goes with its topics", 40)
    assert here.lapse("apply", "--yes").returncode == 0
    line = re.compile(rf"{name}: version \d+ is served: new")
    until(lambda: all(len(line.findall(one.text)) == 2 for one in (first, second)), "it is served again", 40)
    here.write("fresh", "again")
    with here.subscriber("fresh", 1) as fresh:
        once_more = fresh.receive(20)
        assert once_more is not None
        assert once_more.value in (b"one", b"two", b"again"), "it reads its topic, which stayed, from the beginning"


@pytest.mark.feature("Q23", "C52")
def test_an_entity_that_cannot_be_served_when_it_is_defined_is_served_once_it_can_be(deploy: Deploy) -> None:
    here = deploy({"orders": {}}, definitions="topic").apply()
    worker = here.worker().wait_for_shards(1)
    name = here.name("fresh")
    DefinitionsTopic(load(here.config)).publish([Definition(name, "queue", 1, "somebody", {"max_deliveries": 1})])
    until(lambda: f"{name} is defined, and cannot be served" in worker.text, "its topics are missing")
    check_that_what_cannot_be_served_can_be_deleted(here)
    DefinitionsTopic(load(here.config)).publish([Definition(name, "queue", 2, "somebody", {"max_deliveries": 2})])
    until(lambda: worker.text.count(f"{name} is defined, and cannot be served") == 2, "it is changed")
    here.configure({"orders": {}, "fresh": {"max_deliveries": 2}}, definitions="topic")
    assert here.lapse("apply", "--yes").returncode == 0
    # `apply` takes an entity without topics for a deleted one and defines it anew, perhaps after the worker took it up.
    served = re.compile(rf"{name}: version [23] is served: new")
    until(lambda: served.search(worker.text), "it is taken up as it is defined now", 40)
    with Admin(here.app_id, connection=here.connection) as admin:
        until(lambda: not admin.alter_queue(name, lease_period="9s").late, "it follows further changes", 40)
    here.write("fresh", "one")
    with here.subscriber("fresh", 1) as fresh:
        delivery = fresh.receive(20)
        assert delivery is not None
        delivery.acknowledge()


def check_that_what_cannot_be_served_can_be_deleted(here: Deployment) -> None:
    """By force only, because nobody can say what is in it; whether its commands have a topic or not."""
    for stem, kind, command in (("bare", "queue", ("queue", "delete")), ("partly", "sow", ("sow", "delete-topic"))):
        name = here.name(stem)
        DefinitionsTopic(load(here.config)).publish([Definition(name, kind, 1, "somebody", {})])
        if stem == "partly":
            own = [NewTopic(one, 1, 1) for one in (names.commands(name), names.sow(name))]
            create(AdminClient({"bootstrap.servers": here.servers}), *own)
        refused = here.lapse(*command, name)
        assert refused.returncode == 1
        assert f"{name} cannot be served: " in refused.stderr
        assert "or delete it with --force" in refused.stderr
        with Admin(here.app_id, connection=here.connection) as admin:
            delete = admin.delete_queue if kind == "queue" else admin.delete_sow_topic
            with pytest.raises(LapseError, match=rf"`lapse {' '.join(command)} {name} --force`"):
                delete(name, force=True)
        assert name in defined(here)
        done = here.lapse(*command, name, "--force", "--yes")
        assert (done.returncode, done.stdout) == (0, f"{name} is deleted.\n"), done.stderr
        assert name not in defined(here)
        assert not {names.commands(name), names.sow(name)} & here.connection.partitions().keys()
    served = here.lapse("queue", "delete", here.name("nobody"), "--force", "--yes")
    assert "there is no queue" in served.stderr


def check_that_a_missing_topic_is_named_and_deletion_is_defined(here: Deployment, name: str, prices: str) -> None:
    admin = AdminClient({"bootstrap.servers": here.servers})
    admin.delete_topics([f"dlq.{name}"])[f"dlq.{name}"].result(15)
    until(lambda: f"dlq.{name}" not in here.connection.partitions(), "somebody has deleted one of its topics")
    assert f"{name} is defined, and not in lapse.toml: topic dlq.{name}: missing" in here.lapse("check").stderr
    assert json.loads(here.lapse("check", "--json").stdout)["also_defined"] == sorted((name, prices))
    assert here.lapse("queue", "delete", name).returncode == 0
    assert name not in here.lapse("definitions").stdout, "it is listed no longer, though it is defined for a moment"
    assert here.lapse("sow", "delete-topic", prices).returncode == 0
    until(lambda: set(defined(here)) == {here.name("orders")}, "a deletion is in the topic, too", 40)


def check_that_the_file_fits_beside_what_only_the_topic_has(here: Deployment, name: str) -> None:
    """Forwarding from one to the other and back is a circle (C38), whoever has defined which of them."""
    orders = here.name("orders")
    assert here.lapse("queue", "alter", name, f"forward_to={orders}").returncode == 0
    here.configure({"orders": {"forward_to": name}, "more": {}}, definitions="topic")
    refused = here.lapse("apply", "--yes")
    assert refused.returncode == 1
    assert f"not defined: {orders}: " in refused.stderr
    assert "a circle: " in refused.stderr
    found = defined(here)
    assert found[orders].version == 1
    assert found[here.name("more")].version == 1, "it concerns nobody else"
    topic = DefinitionsTopic(load(here.config))
    circle = replace(found[orders], version=2, settings={"forward_to": name})
    with pytest.raises(OutdatedChange, match="somebody has defined meanwhile.* a circle"):
        topic.publish([circle], here.directory)
    assert here.lapse("queue", "alter", name, "--unset", "forward_to").returncode == 0
    assert here.lapse("queue", "delete", here.name("more")).returncode == 0
    here.configure({"orders": {}}, definitions="topic")


def check_that_a_spoiled_definition_can_be_written_anew(here: Deployment, worker: WorkerProcess, name: str) -> None:
    spoil = Producer({"bootstrap.servers": here.servers})
    spoil.produce(names.definitions(here.app_id), b"no JSON", name)
    assert not spoil.flush(20)
    refused = here.lapse("queue", "alter", name, "max_deliveries=3")
    assert f"definition of {name}: no JSON" in refused.stderr, "it is not told that there is no such queue"
    assert "Write it anew with all of its settings" in refused.stderr
    assert here.lapse("queue", "create", name, "partitions=2", "max_deliveries=4").returncode == 0
    version = defined(here)[name].version
    assert version > 2
    until(lambda: f"{name}: version {version} is served" in worker.text, "it is newer than what workers had", 40)


def check_that_a_change_names_what_it_leaves_to_people(here: Deployment, name: str, narrow: str) -> None:
    """A queue of two shards takes a topic of one partition, which commands do not change."""
    change = ("queue", "alter", name, f'topics=["{name}", "{narrow}"]', "--dry-run")
    shown = here.lapse(*change).stdout.splitlines()[0]
    assert shown.startswith(f"topic {narrow}: has 1 partition; {name} needs 2")
    assert shown.endswith("; to be mended by you")
    (found,) = json.loads(here.lapse(*change, "--json").stdout)["differences"]
    assert (found["topic"], found["create"]) == (narrow, None)
    assert shown == f"topic {narrow}: {found['what']}; to be mended by you"


@pytest.mark.feature("Q23", "C64", "C65", "C38", "X7")
def test_commands_create_alter_and_delete_entities_of_a_running_deployment(deploy: Deploy) -> None:
    here = deploy({"orders": {}}, definitions="file").apply()
    name, prices = here.name("fresh"), here.name("prices")
    refused = here.lapse("queue", "create", name)
    assert refused.returncode == 1
    assert 'the file decides what the entities are (definitions = "file")' in refused.stderr
    here.configure({"orders": {}}, definitions="topic")
    here.apply()
    worker = here.worker().wait_for_shards(1)

    dry = json.loads(here.lapse("queue", "create", name, "partitions=2", "--dry-run", "--json").stdout)
    assert dry["dry_run"]
    assert name in dry["created"]
    assert name not in defined(here) | here.connection.partitions(), "a dry run does nothing"
    created = here.lapse("queue", "create", name, "partitions=2", "lease_period=20s")
    assert f"queue {name}: version 1 is defined (new)" in created.stdout, created.stderr
    assert "Nothing to define" in here.lapse("queue", "create", name, "partitions=2", "lease_period=20s").stdout
    refused = here.lapse("queue", "create", name, "lease_period=5s")
    assert refused.returncode == 1
    assert "already, with other settings (version 1, by lapse queue create)" in refused.stderr
    assert here.lapse("sow", "create", prices).returncode == 0
    check_that_a_change_names_what_it_leaves_to_people(here, name, prices)
    until(lambda: f"{prices}: version 1 is served: new, by lapse sow create" in worker.text, "both are served", 40)
    here.write("fresh", "one", partition=1)
    with here.subscriber("fresh", 1) as subscriber:
        held = subscriber.receive(20)
        assert held is not None
        asked = here.lapse(
            "queue", "alter", name, "max_deliveries=1", "--unset", "lease_period", "--version", "1", "--json"
        )
        assert json.loads(asked.stdout) == {
            "entity": name,
            "kind": "queue",
            "version": 2,
            "changed": True,
            "keys": ["lease_period", "max_deliveries"],
            "created": [],
            "differences": [],
            "dry_run": False,
        }
        refused = here.lapse("queue", "alter", name, "max_deliveries=2", "--version", "1")
        assert "based on version 1, and version 2 is there, by lapse queue alter" in refused.stderr
        until(lambda: f"{name}: version 2 is served" in worker.text, "the change is taken up", 40)
        refused = here.lapse("queue", "alter", name, "group_by=/customer")
        assert "group_by cannot change while anything is live: 1 are" in refused.stderr
        held.acknowledge()
    check_that_a_spoiled_definition_can_be_written_anew(here, worker, name)
    check_that_the_file_fits_beside_what_only_the_topic_has(here, name)
    applied = here.lapse("apply", "--yes")
    assert f"{name} is defined, and not in the file: it stays" in applied.stdout
    checked = here.lapse("check")
    assert checked.returncode == 0
    assert f"not in lapse.toml: {', '.join(sorted((name, prices)))}." in checked.stdout
    check_that_a_missing_topic_is_named_and_deletion_is_defined(here, name, prices)


def remove(here: Deployment, *topics: str) -> None:
    """Delete topics, and wait until no broker lists them."""
    admin = AdminClient({"bootstrap.servers": here.servers})
    for future in admin.delete_topics(list(topics)).values():
        future.result(15)
    until(lambda: not {*topics}.intersection(here.connection.partitions()), "no broker lists them")


def act_at_first_look(patch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Call a function when a command looks for the first time whether a deleted entity is gone."""
    looks = iter([act, *[lambda: None] * 1_000])
    patch.setattr(deleted_entities, "time", SimpleNamespace(sleep=lambda _: next(looks)(), monotonic=time.monotonic))


@pytest.mark.feature("Q23", "C4")
def test_a_deleted_entity_is_waited_for_and_counts_for_nothing_once_its_topics_are_gone(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its definition is taken out behind its topics; or never, if the worker ends in between."""
    here = deploy({"orders": {}}, definitions="topic").apply()
    name = here.name("orders")
    changelog = names.changelog(here.app_id, name)
    remove(here, names.commands(name), names.deliveries(name))
    finished = threading.Event()

    def finish() -> None:
        remove(here, changelog)
        DefinitionsTopic(load(here.config)).withdraw({name: sys.maxsize})
        finished.set()

    with monkeypatch.context() as patch:
        act_at_first_look(patch, finish)
        made = here.lapse("queue", "create", name, "lease_period=7s")
    assert finished.is_set(), "its changelog was there"
    assert made.returncode == 0, made.stderr
    first = defined(here)[name]
    assert first.settings == {"lease_period": "7s"}

    remove(here, names.commands(name), names.deliveries(name))
    with monkeypatch.context() as patch:
        act_at_first_look(patch, finish)
        assert here.lapse("apply", "--yes").returncode == 0
    second = defined(here)[name]
    assert second.settings == {}
    assert 1 < first.version < second.version
    assert changelog in here.connection.partitions(), "what is created is what is missing at the end"
    altered = here.lapse("queue", "alter", name, "lease_period=7s")
    assert altered.returncode == 0, altered.stderr

    monkeypatch.setattr(deleted_entities, "_LONGEST_S", 0)
    check_that_what_nobody_finishes_keeps_others_out_until_its_changelog_is_gone(here, name)
    check_that_one_of_another_kind_that_comes_between_is_found(here, monkeypatch)
    check_that_a_worker_hears_of_the_new_one(here, name)


def check_that_what_nobody_finishes_keeps_others_out_until_its_changelog_is_gone(here: Deployment, name: str) -> None:
    changelog = names.changelog(here.app_id, name)
    remove(here, names.commands(name), names.deliveries(name))
    refused = here.lapse("queue", "create", name, "lease_period=8s")
    assert "with other settings" in refused.stderr, "its state is there still, so it is not deleted"
    remove(here, changelog)
    altered = here.lapse("queue", "alter", name, "lease_period=8s")
    assert "there is no queue" in altered.stderr
    version = defined(here)[name].version
    assert here.lapse("queue", "create", name, "lease_period=8s").returncode == 0
    assert (defined(here)[name].version, defined(here)[name].settings) == (version + 1, {"lease_period": "8s"})
    assert changelog in here.connection.partitions()

    retired = Retirement(phase=Phase.RETIRED, id=1, cause=Cause.DELETE).encode()
    worker_that_died = Producer({"bootstrap.servers": here.servers})
    worker_that_died.produce(changelog, retired, RETIREMENT + bytes(16), partition=0)
    assert not worker_that_died.flush(20)
    remove(here, names.commands(name), names.deliveries(name))
    created = here.lapse("queue", "create", name, "lease_period=9s")
    assert created.returncode == 0, f"its state says that it is deleted: {created.stderr}"
    assert not here.tail(changelog).drain(), "it begins with nothing of the old one"


def check_that_one_of_another_kind_that_comes_between_is_found(
    here: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = here.name("lost")
    with monkeypatch.context() as patch:

        def create_late(*given: Any) -> None:
            """The queue is there when the topics of the SOW topic are, and before its definition."""
            patch.undo()
            create_and_grant(*given)
            assert here.lapse("queue", "create", lost).returncode == 0

        patch.setattr("lapse.cli.define.create_and_grant", create_late)
        refused = here.lapse("sow", "create", lost)
    assert f"there is a queue {lost} already" in refused.stderr
    until(lambda: names.sow(lost) not in here.connection.partitions(), "nobody would use it")
    assert names.commands(lost) in here.connection.partitions()


def check_that_a_worker_hears_of_the_new_one(here: Deployment, name: str) -> None:
    remove(here, names.commands(name), names.deliveries(name), names.changelog(here.app_id, name))
    here.configure({"orders": {"lease_period": "8s"}}, definitions="topic")
    version = defined(here)[name].version
    worker = here.worker()
    until(lambda: "Not served" in worker.text, "a worker takes it for deleted", 40)
    assert here.lapse("apply", "--yes").returncode == 0
    worker.wait_for_shards(1)
    assert defined(here)[name].version == version + 1, "so the worker hears of it"
