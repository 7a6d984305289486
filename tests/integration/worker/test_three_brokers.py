"""A cluster of three brokers: the copies that `lapse apply` asks for, and a broker that ends (Q16, X7)."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from lapse.config import load
from lapse.embedded import EmbeddedKafka
from lapse.embedded.settings import cluster_id
from lapse.protocol import topic
from lapse.runtime.topics.cluster import Cluster
from lapse.runtime.topics.definitions import DefinitionsTopic
from lapse_client import Connection, Queue
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment

COPIES = 3
EVERYWHERE = {"offsets.topic.replication.factor": str(COPIES), "default.replication.factor": str(COPIES)}


def _member(first: EmbeddedKafka, number: int, data: Path) -> EmbeddedKafka:
    """A broker beside the first one, which is their controller, too."""
    log = data / "log"
    log.mkdir(parents=True)
    cluster = next(
        line for line in (first.data / "log" / "meta.properties").read_text().splitlines() if "cluster.id" in line
    )
    (log / "meta.properties").write_text(f"version=1\n{cluster}\nnode.id={number}\ndirectory.id={cluster_id()}\n")
    joins = {
        "process.roles": "broker",
        "node.id": str(number),
        "listeners": "PLAINTEXT://127.0.0.1:{client}",
        "controller.quorum.voters": f"1@127.0.0.1:{first.ports.controller}",
    }
    return EmbeddedKafka(data, properties={**EVERYWHERE, **joins})


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[EmbeddedKafka]]:
    with ExitStack() as stack:
        first = stack.enter_context(EmbeddedKafka(tmp_path / "1", properties=EVERYWHERE))
        yield [first, *(stack.enter_context(_member(first, one, tmp_path / str(one))) for one in (2, 3))]


def _alone(here: Deployment, admin: AdminClient, stem: str, broker: int) -> None:
    """Put the topics of an entity on one broker only."""
    name = here.name(stem)
    settings = {"message.timestamp.type": "LogAppendTime"}
    own = (name, topic.commands(name), topic.deliveries(name), topic.changelog(here.app_id, name))
    created = admin.create_topics([NewTopic(one, 1, replica_assignment=[[broker]], config=settings) for one in own])
    for done in created.values():
        done.result(15)


def _looks_through_each_controller(here: Deployment) -> list[Callable[[], object]]:
    """Have clients find the controller, which a broker names by chance; return how each asks for the cluster again."""
    looks: list[Callable[[], object]] = [partial(Cluster(load(here.config)).reach, 45) for _ in range(12)]
    looks += [partial(_described, Connection(here.servers).admin()) for _ in range(12)]
    with ThreadPoolExecutor(8) as asking:
        list(asking.map(lambda look: look(), looks))
    return looks


def _described(admin: AdminClient) -> object:
    return admin.describe_cluster(request_timeout=45).result()


def _least_in_sync(admin: AdminClient, topics: list[str]) -> dict[str, str]:
    asked = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics])
    return {resource.name: found.result(15)["min.insync.replicas"].value for resource, found in asked.items()}


def _warned(here: Deployment) -> str:
    checked = here.lapse("check")
    assert checked.returncode == 0
    return " ".join(checked.stderr.split())


def _warns_of_one_in_sync(here: Deployment, admin: AdminClient, name: str) -> None:
    """A topic whose writes wait for one broker only is told."""
    loose = ConfigResource(ConfigResource.Type.TOPIC, name)
    loose.add_incremental_config(ConfigEntry("min.insync.replicas", "1", incremental_operation=AlterConfigOpType.SET))
    admin.incremental_alter_configs([loose])[loose].result(15)
    until(lambda: _least_in_sync(admin, [name]) == {name: "1"}, "the brokers have heard")
    assert f"{name} is with min.insync.replicas = 1" in _warned(here)


@pytest.mark.feature("X7", "Q16", "D3", "C52", "Q23")
def test_copies_are_asked_for_warned_of_and_outlive_a_broker(brokers: list[EmbeddedKafka], deploy: Deploy) -> None:
    servers = ",".join(one.bootstrap_servers for one in brokers)
    here = deploy({"orders": {"expiration": "enabled"}}, servers=servers, replication_factor=COPIES).apply()
    admin = AdminClient({"bootstrap.servers": servers})
    own = [name for name in admin.list_topics(timeout=15).topics if here.token in name]
    assert {topic.changelog(here.app_id, here.name("orders")), topic.dead_letters(here.name("orders"))} <= set(own)

    described = admin.list_topics(timeout=15).topics
    assert {len(part.replicas) for name in own for part in described[name].partitions.values()} == {COPIES}
    assert set(_least_in_sync(admin, own).values()) == {"2"}
    assert not _warned(here)
    _warns_of_one_in_sync(here, admin, topic.commands(here.name("orders")))
    here.configure({"orders": {"expiration": "enabled"}}, replication_factor=1)
    assert "replication_factor = 1 on a cluster of 3 brokers" in _warned(here)

    other = deploy({"orders": {}}, servers=servers, replication_factor=COPIES, definitions="topic").apply()
    definitions = topic.definitions(other.app_id)
    assert _least_in_sync(admin, [definitions]) == {definitions: "2"}
    assert not _warned(other)
    _warns_of_one_in_sync(other, admin, definitions)

    queues: dict[str, dict[str, str]] = {"orders": {"expiration": "enabled"}, "away": {}}
    _alone(here, admin, "away", 3)
    here.configure(queues, replication_factor=1)
    here.apply()
    worker = here.worker().wait_for_shards(2)
    here.write("away", "kept")
    looks = _looks_through_each_controller(here)
    with here.subscriber("orders", timeout_s=60) as subscriber:
        for number, ends in enumerate((brokers[2], None)):
            here.write("orders", f"{number}")
            delivery = subscriber.receive(60)
            assert delivery is not None
            assert delivery.value == b"%d" % number
            if ends is not None:
                ends.kill()
            subscriber.settle("acknowledge", [delivery], wait=True)
    with Queue(here.name("orders"), connection=here.connection, timeout_s=120) as queue:
        until(lambda: queue.depth()["depth"] == 0, "all is acknowledged", 60)
    for look in looks:  # also of those whose controller was the broker that died
        look()

    # What only the broker that ended has concerns its own entity: the others are served, and it is once it can be.
    worker.kill()
    worker.start().wait_for_shards(1)
    until(lambda: "cannot be taken over for now" in worker.text, "the worker has tried")
    assert here.depth("orders")["depth"] == 0
    waits = f"{here.name('away')}, partition 0: no broker leads it"
    until(lambda: waits in _warned(here), "the command names the partition, and who waits for it")
    brokers[2].start()
    worker.wait_for_shards(2)
    with here.subscriber("away", timeout_s=60) as subscriber:
        delivery = subscriber.receive(60)
        assert delivery is not None
        assert delivery.value == b"kept"
    assert f"{here.name('away')}, partition 0: is taken over after all" in worker.text
    worker.stop()
    _waits_for_definitions(brokers, admin, deploy({"orders": {}}, servers=servers, definitions="topic"))


def _waits_for_definitions(brokers: list[EmbeddedKafka], admin: AdminClient, here: Deployment) -> None:
    """A worker that starts while nobody leads the definitions topic waits: it knows nothing to serve (Q23).

    The broker dies while it should write the end of a transaction, which Kafka forgets then.
    """
    name, settings = topic.definitions(here.app_id), {"cleanup.policy": "compact"}
    producer = Producer({"bootstrap.servers": here.servers, "transactional.id": name})
    producer.init_transactions(30)  # makes Kafka create the topic of its transactions
    at = 2 if admin.list_topics(timeout=15).topics["__transaction_state"].partitions[0].leader == 3 else 3
    broker = brokers[at - 1]
    created = admin.create_topics([NewTopic(name, 1, replica_assignment=[[at]], config=settings)])
    created[name].result(15)
    here.apply()
    assert _end(here, name) == 2, "the definition is committed when that is reported"
    _lose_end(broker, here, name)
    worker = here.worker()
    until(lambda: f"{name}: " in worker.text and "The worker waits for it" in worker.text, "the worker waits", 60)
    broker.start()
    worker.wait_for_shards(1)
    assert worker.running
    until(
        lambda: f"{name}: a change that begins at offset 2 is neither committed nor aborted" in worker.text, "it says"
    )
    assert _end(here, name) == 2, "Kafka has lost the end of the transaction"
    assert "begins at offset 2 is neither" in " ".join(here.lapse("check").stderr.split())

    here.configure({"orders": {}, "more": {}}, definitions="topic")
    here.apply()
    assert _end(here, name) == 7, "a record and its abort, and a definition with its commit"
    worker.wait_for_shards(2)
    assert {*DefinitionsTopic(load(here.config)).read()} == {here.name("orders"), here.name("more")}


def _end(here: Deployment, name: str) -> int:
    """Where a topic ends for readers of committed records."""
    consumer = Consumer({"bootstrap.servers": here.servers, "group.id": name})
    try:
        return consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=15)[1]
    finally:
        consumer.close()


def _lose_end(broker: EmbeddedKafka, here: Deployment, name: str) -> None:
    """Write the definition of an entity, and kill the broker after its commit but before the marker."""
    producer = Producer({"bootstrap.servers": here.servers, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"{}", b"ghost", partition=0)
    producer.flush(30)
    broker.pause()
    producer.commit_transaction(30)
    broker.kill()


@pytest.mark.feature("C52", "Q16")
@pytest.mark.at_length  # on a busy machine the next leader is found too late for the 30 s that a delivery may take
def test_payloads_are_read_from_the_next_leader_while_a_broker_is_frozen(
    brokers: list[EmbeddedKafka], deploy: Deploy
) -> None:
    """The shard is not given up: the messages of both topics come before the broker goes on."""
    servers = ",".join(one.bootstrap_servers for one in brokers)
    several = {"topics": ["a{}", "b{}"], "default_publish_target": "b{}", "payload_window": 1, "lease_period": "5m"}
    here = deploy({"many": several}, servers=servers, replication_factor=COPIES, session_timeout="10s")
    name, settings = here.name("many"), {"message.timestamp.type": "LogAppendTime"}
    own = [topic.commands(name), topic.deliveries(name), topic.events(name), topic.dead_letters(name)]
    at = {one: [1, 2] for one in [*own, topic.changelog(here.app_id, name), here.name("b")]}
    at[here.name("a")] = [3, 1, 2]
    admin = AdminClient({"bootstrap.servers": servers})
    wanted = [NewTopic(one, 1, replica_assignment=[copies], config=settings) for one, copies in at.items()]
    for done in admin.create_topics(wanted).values():
        done.result(15)
    worker = here.apply().worker().wait_for_shards(1)
    for depth in (40, 80, 120):  # more than the window holds
        here.write("a", *[b"a" * 100_000] * 20)
        here.write("b", *[b"b"] * 20)
        until(lambda depth=depth: here.depth("many")["depth"] == depth, "all are taken in")
    brokers[2].pause()
    try:
        with here.subscriber("many", 4, timeout_s=60) as subscriber:
            got = list[bytes]()
            while len(got) < 120:
                delivery = subscriber.receive(60)
                assert delivery is not None, f"after {len(got)} messages"
                got.append((delivery.value or b"")[:1])
                delivery.acknowledge()
        assert (got.count(b"a"), got.count(b"b")) == (60, 60)
        assert "It is given up" not in worker.text
        assert worker.running
    finally:
        brokers[2].resume()
