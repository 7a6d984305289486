"""Private deliveries on a broker with an authorizer: what `lapse apply` grants, and what nobody else gets (X4)."""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from lapse.protocol import topic
from lapse.runtime.topics import access
from lapse_client import Admin, LapseError, Publisher
from lapse_client.kafka.connection import Connection
from support.kafka.log import until, write
from support.kafka.secure import PASSWORD, USER, SecureKafka, secure_kafka
from support.processes.entitled import Entitled

pytestmark = pytest.mark.feature("X4", "X5")

PASSWORDS = {name: f"s3cret-of-{name}" for name in ("alice", "bob", "mallory")}
USERS = {
    "alice": {
        "principal": "User:alice",
        "entitlements": {
            ".*": {"read": True, "publish": True, "filter": "/desk = 'A'"},
            "own{}": {"create": True, "read": True, "publish": True, "admin": True},
        },
    },
    "bob": {"principal": "User:bob", "entitlements": {".*": {"read": True, "filter": "/desk = 'B'"}}},
}


class Guarded(Entitled):
    """A deployment on that broker: workers, users and their passwords."""

    broker: SecureKafka

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "LAPSE_SASL_PASSWORD": PASSWORD}

    def options(self, user: str) -> dict[str, str]:
        return self.broker.options_of(user, PASSWORDS[user])


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A queue on a broker with an authorizer, not applied yet."""
    with secure_kafka(tmp_path_factory.mktemp("broker"), PASSWORDS) as broker:
        Guarded.broker = broker
        Guarded.security = {
            "protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "username": USER,
            "ca_file": str(broker.ca_file),
        }
        deployment = Guarded(broker.servers, tmp_path_factory.mktemp("office"), {})
        deployment.users = USERS
        deployment.configure({"orders": {}}, {"quotes": {}}, definitions="topic")
        yield deployment
        deployment.close()


def read_error(office: Guarded, user: str, name: str) -> int | None:
    """The code of the error with which a user reads a topic; None = they may."""
    options = {"bootstrap.servers": office.servers, "group.id": "spy", **office.options(user)}
    consumer = Consumer({**options, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    hidden = consumer.list_topics(name, timeout=15).topics[name].error
    if hidden is not None:
        consumer.close()
        return int(hidden.code())
    consumer.assign([TopicPartition(name, 0, 0)])
    codes: list[int | None] = []

    def is_logged() -> bool:
        message = consumer.poll(0.2)
        error = None if message is None else message.error()
        if message is not None and (error is None or error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED):
            codes.append(None if error is None else error.code())  # groups are of no concern here
        return bool(codes)

    try:
        until(is_logged, f"a record or a refusal from {name}")
        return codes[0]
    finally:
        consumer.close()


def write_error(office: Guarded, user: str, name: str) -> int | None:
    """The code of the error with which a user writes to a topic; None = they may."""
    codes: list[int | None] = []
    producer = Producer({"bootstrap.servers": office.servers, **office.options(user), "message.timeout.ms": 10_000})
    report = lambda error, _: codes.append(None if error is None else error.code())  # noqa: E731
    producer.produce(name, b'{"desk": "A"}', partition=0, on_delivery=report)
    assert producer.flush(20) == 0
    return codes[0]


REFUSED = KafkaError.TOPIC_AUTHORIZATION_FAILED


def check_that_kafka_lets_nobody_else_in(office: Guarded, orders: str) -> None:
    assert read_error(office, "alice", topic.deliveries(orders, "alice")) is None
    for user, name in (
        ("bob", topic.deliveries(orders, "alice")),
        ("mallory", topic.deliveries(orders, "alice")),
        ("bob", topic.commands(orders)),
        ("bob", orders),
        ("alice", orders),
        ("alice", topic.events(orders)),
        ("bob", topic.sow(office.name("quotes"))),
    ):
        assert read_error(office, user, name) in (REFUSED, KafkaError.UNKNOWN_TOPIC_OR_PART), (user, name)
    assert write_error(office, "alice", orders) is None
    for user, name in (
        ("bob", orders),
        ("mallory", topic.commands(orders)),
        ("bob", topic.deliveries(orders, "alice")),
        ("alice", topic.deliveries(orders, "alice")),
    ):
        assert write_error(office, user, name) in (REFUSED, KafkaError.UNKNOWN_TOPIC_OR_PART), (user, name)


def check_that_rights_end_with_what_they_were_given_for(office: Guarded) -> None:
    """What alice creates for a while takes the rights along that were given for it."""
    own, admin = office.name("own"), AdminClient({"bootstrap.servers": office.broker.plain})

    def rights() -> int:
        return sum(own in one.name for one in access.look(admin).bindings)

    with Admin(office.app_id, connection=office.as_user("alice")) as creator:
        assert creator.create_queue(own, auto_delete_on_idle="5m", dead_letter=False).changed
        assert rights() > 5
        creator.delete_queue(own)
        until(lambda: not any(own in name for name in admin.list_topics(timeout=15).topics), "its topics go", 40)
        until(lambda: not rights(), "the rights go", 10)


def test_apply_grants_what_users_need_and_nothing_to_others(office: Guarded) -> None:
    orders = office.name("orders")
    shown = json.loads(office.lapse("check", "--json").stdout)
    (warning,) = shown["warnings"]
    assert warning.startswith("lapse.definitions.")
    assert "`lapse apply` creates it" in warning
    wanted = {
        one["topic"]: {(grant["principal"], grant["operation"]) for grant in one["grant"]}
        for one in shown["differences"]
        if one["grant"]
    }
    workers = {(f"User:{USER}", operation) for operation in ("READ", "WRITE", "DELETE")}
    assert wanted[topic.deliveries(orders, "alice")] == {("User:alice", "READ"), *workers}
    assert wanted[topic.commands(orders)] == {("User:alice", "WRITE"), ("User:bob", "WRITE"), *workers}
    assert wanted[orders] == {("User:alice", "WRITE"), (f"User:{USER}", "READ")}
    done = office.lapse("apply", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gave rights on 10" in done.stdout
    again = office.lapse("apply", "--yes")
    assert "Nothing to do: the cluster fits." in again.stdout

    worker = office.worker().wait_for_shards(2)
    assert "authorizer" not in worker.text
    with (
        office.subscriber_of("alice", "orders") as alice,
        office.subscriber_of("bob", "orders") as bob,
        Publisher(office.as_user("alice")) as publisher,
    ):
        for desk in "AB":
            publisher.publish(orders, b'{"desk": "%s"}' % desk.encode(), ttl_ms=60_000)
        publisher.flush()
        for subscriber, desk in ((alice, b"A"), (bob, b"B")):
            delivery = subscriber.receive(20)
            assert delivery is not None
            assert delivery.value == b'{"desk": "%s"}' % desk
            delivery.acknowledge()
    write(office.broker.plain, office.name("quotes"), [b'{"desk": "B"}'], key=b"1")
    with office.sow_of("bob", "quotes") as sow:
        until(lambda: [one.key for one in sow.query()] == [b"1"], "bob's record")

    check_that_kafka_lets_nobody_else_in(office, orders)
    check_that_rights_end_with_what_they_were_given_for(office)
    # Who signs as alice with her key, and is somebody else to Kafka, cannot even send it.
    stranger = Connection(office.servers, office.options("mallory"), user="alice", secret=office.secret("alice"))
    with pytest.raises(LapseError):
        stranger.shards("queue", orders)


def test_what_the_cluster_does_not_keep_is_reported(kafka: str, tmp_path) -> None:
    deployment = Entitled(kafka, tmp_path, {})
    deployment.users = USERS
    deployment.configure({"orders": {}})
    try:
        checked = deployment.apply().lapse("check")
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert "Warning: the cluster has no authorizer: commands are signed, but whoever reaches it" in checked.stderr
        worker = deployment.worker().wait_for_shards(1)
        assert "the cluster has no authorizer: commands are signed" in worker.text
    finally:
        deployment.close()


def test_users_without_a_principal_are_named(office: Guarded) -> None:
    office.users = {**USERS, "carol": {"entitlements": {".*": {"read": True}}}}
    office.configure({"orders": {}}, {"quotes": {}}, definitions="topic")
    printed = json.loads(office.lapse("check", "--json").stdout)
    # The topics of a queue that a test before has deleted may still be going.
    (warning,) = [one for one in printed["warnings"] if "principal" in one]
    assert warning.startswith("users carol have no principal: `lapse apply` gives them no rights on the cluster")
