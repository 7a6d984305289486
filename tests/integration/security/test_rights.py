"""A user who lacks rights on the cluster is told which, by every command, at once (X5, X7)."""

import logging
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import tomlkit
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from integration.security.needed_rights import ALWAYS, AT_LENGTH, LONG, ROWS, Need, commands
from lapse.protocol import topic as names
from lapse.protocol.bookmark import Bookmark
from lapse.runtime.topics import deleted_entities
from lapse_client import Admin, Connection, Publisher, SowClient
from lapse_client.letters.redriven import TOPIC as REDRIVEN
from support.kafka import created_topic
from support.kafka.log import until, write
from support.kafka.secure import SecureKafka, secure_kafka
from support.kafka.wire import Wire
from support.processes.deployment import Deployment, WorkerProcess
from support.suite import command
from support.suite.at_length import cases

pytestmark = pytest.mark.feature("X5", "X7")

USER, PASSWORD = "walter", "s3cret-of-walter"
STRANGER = "stranger"
"""Another user of the brokers, who is given no right at all; of the same password."""

AT = ("--at", "2020-01-01T00:00:00Z")
LONGEST_S = 20
"""Far more than a command takes that is refused; far less than one that waits for an answer."""


_DENIED = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.DENY
)


class Office:
    """A deployment that is served, and a user of the brokers who may do nothing there yet."""

    def __init__(self, broker: SecureKafka, directory: Path) -> None:
        self.broker = broker
        self.served = Deployment(broker.plain, directory, {"orders": {}})
        self.served.configure({"orders": {}}, {"prices": {}}, definitions="topic")
        self.served.apply()
        self.orders, self.prices = self.served.name("orders"), self.served.name("prices")
        security = {
            "protocol": "SASL_SSL",
            "sasl_mechanism": "PLAIN",
            "username": USER,
            "ca_file": str(broker.ca_file),
        }
        document = tomlkit.parse(self.served.config.read_text())
        document["lapse"]["bootstrap_servers"] = broker.servers  # type: ignore[index]
        self.config = directory / "walter.toml"
        self.config.write_text(tomlkit.dumps({**document, "security": security}))
        self.environment = {
            "LAPSE_SASL_PASSWORD": PASSWORD,
            "KAFKA_BOOTSTRAP_SERVERS": broker.servers,
            "COLUMNS": "250",
        }

    def permit(self, operation: AclOperation, *names: str, kind: ResourceType = ResourceType.TOPIC) -> None:
        """Give the user a right."""
        admin = AdminClient({"bootstrap.servers": self.broker.plain})
        pattern, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        rights = [AclBinding(kind, name, pattern, f"User:{USER}", "*", operation, allow) for name in names]
        for future in admin.create_acls(rights).values():
            future.result(15)

    def deny(self, need: Need, name: str) -> None:
        """Take away one right of a user who has all."""
        admin, denied = AdminClient({"bootstrap.servers": self.broker.plain}), AclPermissionType.DENY
        one = AclBinding(need.kind, name, ResourcePatternType.LITERAL, f"User:{USER}", "*", need.operation, denied)
        admin.create_acls([one])[one].result(30)
        until(lambda: len(admin.describe_acls(_DENIED).result(30)) == 1, "the broker knows")

    def deny_nothing(self) -> None:
        """Give back what `deny` has taken away."""
        admin = AdminClient({"bootstrap.servers": self.broker.plain})
        admin.delete_acls([_DENIED])[_DENIED].result(30)
        until(lambda: not admin.describe_acls(_DENIED).result(30), "the broker knows")

    def revoke(self, kind: ResourceType, name: str | None = None) -> None:
        """Take away every right to what is of a kind, and has a name if one is given."""
        admin = AdminClient({"bootstrap.servers": self.broker.plain})
        rights = AclBindingFilter(
            kind, name, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        for future in admin.delete_acls([rights]).values():
            future.result(15)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command as the user. The directories of Spark's jobs are not left in the project."""
        own = self.config.parent
        return command.run(*arguments, "--config", str(self.config), environment=self.environment, directory=own)

    def refused(self, *arguments: str) -> str:
        """What a command says that is refused."""
        done = self.run(*arguments)
        assert done.returncode == 1, done.stdout + done.stderr
        if arguments[0] not in ("check", "doctor"):  # these list all that is wrong
            assert len([line for line in done.stderr.splitlines() if not line.startswith("Warning: ")]) == 1, (
                done.stderr
            )
        return done.stdout + done.stderr

    def done(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command that is not refused."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def worker(self, name: str) -> WorkerProcess:
        """A supervised worker that connects as the user, not started."""
        return self.process(name, "worker", "--data-dir", str(self.config.parent / name))

    def process(self, name: str, *arguments: str) -> WorkerProcess:
        """A command that connects as the user, not started."""
        directory = self.config.parent
        arguments = ["-m", "lapse", *arguments, "--config", str(self.config)]
        return WorkerProcess(arguments, directory / f"{name}.log", self.environment)

    @property
    def own(self) -> list[str]:
        """Topics of lapse's own that a worker writes."""
        return [
            name for name in self.served.connection.partitions() if self.served.token in name and name not in self.named
        ]

    @property
    def named(self) -> tuple[str, str]:
        return self.orders, self.prices


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Leave signals and logs as they were, which `lapse gateway`, `replicate` and `transfer --follow` set up."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    logs = [logging.getLogger(name) for name in (None, "uvicorn", "lapse_client.kafka")]
    endings, levels, handlers = (
        [signal.getsignal(one) for one in numbers],
        [log.level for log in logs],
        logs[0].handlers[:],
    )
    yield
    for number, ending in zip(numbers, endings, strict=True):
        signal.signal(number, ending)
    for log, level in zip(logs, levels, strict=True):
        log.setLevel(level)
    logs[0].handlers[:] = handlers


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    with secure_kafka(tmp_path_factory.mktemp("broker"), {USER: PASSWORD, STRANGER: PASSWORD}) as broker:
        office = Office(broker, tmp_path_factory.mktemp("office"))
        yield office
        office.served.close()


@pytest.mark.feature("X4")
def test_a_gateway_that_waits_shows_what_its_user_may_see_and_else_answers_as_if_nothing_were_there(
    office: Office,
) -> None:
    late = f"late-{office.served.token}"
    gateway = office.process("gateway", "gateway", "--port", "0", "--wait").start()
    try:
        until(lambda: "lapse gateway: " in gateway.text or not gateway.running, "the gateway runs", 30)
        assert "do not let this user see topics lapse.*, if there are any" in gateway.text
        assert "The gateway goes on, and shows what it may see" in gateway.text
        (address,) = re.findall(r"lapse gateway: (\S+)", gateway.text)
        with httpx.Client(base_url=address, timeout=30) as http:
            for method, path in (
                ("POST", "/v1/queues/{}/receive?subscription=w&wait_s=20"),
                ("GET", "/v1/queues/{}/stream?subscription=w"),
                ("GET", "/v1/queues/{}"),
                ("POST", "/v1/queues/{}/pause"),
                ("GET", "/v1/events/{}"),
                ("POST", "/v1/publish/{}"),
                ("GET", "/v1/letters/{}"),
                ("GET", "/v1/explain?bookmark={}:0:0"),
                ("GET", "/queues/{}"),
            ):
                answers = [http.request(method, path.format(name)) for name in (office.orders, "never")]
                hidden, missing = ((one.status_code, one.text) for one in answers)
                assert hidden == (missing[0], missing[1].replace("never", office.orders)), path
                assert hidden[0] == 404, (path, hidden)
            assert http.get("/v1/queues").json() == {"queues": []}
            assert http.get("/ready").status_code == 200
            admin = AdminClient({"bootstrap.servers": office.broker.plain})
            created_topic.create(admin, NewTopic(names.commands(late), 1, 1))
            office.permit(AclOperation.DESCRIBE, names.commands(late))
            until(lambda: http.get("/v1/queues").json() == {"queues": [late]}, "what it may see is shown")
            office.revoke(ResourceType.TOPIC, names.commands(late))
    finally:
        assert gateway.stop() == 0
    assert "Traceback" not in gateway.text


def check_that_commands_name_the_topics_they_may_not_see(office: Office) -> None:
    """Each by its topic, or by the pattern of those that it looks for."""
    client = [
        (("queue", "depth", office.orders), f"lapse.{office.orders}.commands"),
        (("queue", "subscribe", office.orders, "--count", "1"), f"lapse.{office.orders}.commands"),
        (("sow", "query", office.prices), f"lapse.{office.prices}.commands"),
        (("publish", office.orders, "x"), office.orders),
        (("dlq", "show", office.orders), f"dlq.{office.orders}"),
        (("explain", f"{office.orders}:0:0", "--entity", office.orders), f"lapse.{office.orders}.commands"),
        (("explain", f"{office.orders}:0:0"), office.orders),
        (("top", office.orders), f"lapse.{office.orders}.commands"),
        (("replicate", "--to", office.broker.plain, "--topic", office.prices), f"lapse.sow.{office.prices}"),
        (("transfer", office.orders, "--follow", "--to", office.broker.plain), f"lapse.{office.orders}.commands"),
        (("transfer", office.orders, "--all", "--to", office.broker.plain), f"lapse.{office.orders}.commands"),
        (("spark", "ledger", "--queue", office.orders, "--topics", office.orders), f"lapse.events.{office.orders}"),
        (("spark", "lives", "--entity", office.orders, "--output", "lives"), f"lapse.events.{office.orders}"),
        (("spark", "alerts", ".", "--topic", office.orders), office.orders),
    ]
    for arguments, topic in client:
        assert f"do not let this user see {topic}, if it is there" in office.refused(*arguments)
    for arguments, topics in [
        (("dlq", "ls"), "dlq.*"),
        (("top",), "lapse.*"),
        (("gateway", "--port", "0"), "lapse.*"),
        *((("spark", job, "out"), "dlq.*") for job in ("archive", "monitor", "redrive")),
    ]:
        assert f"the brokers do not let this user see topics {topics}, if there are any" in office.refused(*arguments)


def test_who_lacks_rights_learns_which_and_waits_for_nothing(office: Office, kafka: str) -> None:
    check_that_commands_name_the_topics_they_may_not_see(office)
    definitions = names.definitions(office.served.app_id)
    for arguments in (
        ("definitions",),
        ("queue", "alter", office.orders, "expiration=2m"),
        ("sow", "create", f"{office.prices}-more"),
        ("queue", "partitions", office.orders),
        ("apply", "--yes"),
    ):
        failures = office.refused(*arguments)
        assert f"{definitions}: we lack the right Describe on it: have it granted" in failures
        assert len(failures.splitlines()) == 1
    for arguments in (("simulate", office.orders, "--replay"), ("spark", "state", "--entity", office.orders, *AT)):
        assert "do not let this user see " in office.refused(*arguments)
    for arguments in (("check",), ("doctor",)):
        assert f"the consumer group {office.served.app_id} may not be joined" in office.refused(*arguments)
    office.permit(AclOperation.READ, office.served.app_id, kind=ResourceType.GROUP)
    for arguments in (("check",), ("doctor",), ("apply", "--yes")):
        failures = office.refused(*arguments)
        assert "missing" not in failures
        assert "we lack the right Describe on it" in failures

    office.permit(AclOperation.DESCRIBE, "*")
    for arguments in (("queue", "depth", office.orders), ("sow", "query", office.prices)):
        assert "granted (docs/operations.md, Rights)" in office.refused(*arguments), "one of the two that are missing"
    created_topic.create(AdminClient({"bootstrap.servers": kafka}), NewTopic(office.prices, 1, 1))
    failures = office.refused("replicate", "--to", kafka, "--topic", office.prices)
    assert "authorization failed. Have the rights granted that docs/operations.md" in failures

    deliveries = [f"lapse.{name}.deliveries" for name in office.named]
    office.permit(AclOperation.READ, *deliveries)
    for arguments in (
        ("queue", "depth", office.orders),
        ("queue", "subscribe", office.orders, "--count", "1"),
        ("queue", "pause", office.orders),
        ("sow", "query", office.prices),
    ):
        assert "Have Write on it granted" in office.refused(*arguments)
    failures = office.refused("publish", office.orders, "x")
    assert f"topic {office.orders}, " in failures
    assert "Have Write on it granted" in failures

    assert "we lack the right Read on it" in office.refused("check")
    failures = office.refused("doctor")
    assert "we lack the right Read and Write on it: have it granted; changelog" in failures
    worker = office.worker("refused")
    worker.start().wait(LONGEST_S)
    assert worker.code == 1, "the supervisor does not try on"
    assert f"{names.definitions(office.served.app_id)}: we lack the right Read on it" in worker.text
    office.permit(AclOperation.READ, definitions)
    altered = office.refused("queue", "alter", office.orders, "expiration=2m")
    assert f"{definitions}: we lack the right Write on the transactional id of that name: have it granted" in altered
    worker.start().wait(LONGEST_S)
    assert worker.code == 1, "the supervisor does not try on"
    assert "we lack the right Write on it" in worker.text
    assert "Traceback" not in worker.text


def transferred_to(office: Office, queue: str) -> str:
    """What `lapse transfer` says of a target on which its user has no right."""
    file = office.config.with_name("transfer.toml")
    text = f'to = "{office.broker.servers}"\nto_queue = "{queue}"\n[to_security]\nprotocol = "SASL_SSL"\n'
    text += f'sasl_mechanism = "PLAIN"\nusername = "{STRANGER}"\nca_file = "{office.broker.ca_file}"\n'
    file.write_text(text)
    environment = {**office.environment, "KAFKA_BOOTSTRAP_SERVERS": office.broker.plain}
    done = command.run("transfer", office.orders, "--all", "-c", str(file), environment=environment)
    assert (done.returncode, done.stdout) == (1, ""), done.stdout
    return done.stderr


@pytest.mark.feature("C52", "D3")
def test_the_rights_of_the_page_are_enough_for_a_worker_and_its_clients(office: Office) -> None:
    """Those of `docs/operations.md`, and no other."""
    for kind in (ResourceType.TOPIC, ResourceType.GROUP):
        office.revoke(kind)
    office.permit(AclOperation.READ, office.served.app_id, kind=ResourceType.GROUP)
    office.permit(AclOperation.READ, names.definitions(office.served.app_id))
    deliveries = names.deliveries(office.orders)
    both = [name for name in office.own if name.endswith((".commands", "-changelog")) or name == deliveries]
    office.permit(AclOperation.READ, *office.named, *both)
    office.permit(AclOperation.WRITE, *office.own)
    worker = office.worker("permitted")
    worker.start().wait_for_shards(2)
    try:
        with Publisher(connection=Connection(office.broker.plain)) as publisher:
            publisher.publish(office.orders, b"x", ttl_ms=60_000)
        with office.served.subscriber("orders") as subscriber:
            delivery = subscriber.receive(20)
            assert delivery is not None
            subscriber.settle("acknowledge", [delivery], wait=True)
        until(lambda: office.served.depth("orders")["depth"] == 0, "it is acknowledged")
        _withdraw_and_give_back(office, worker)
        definer = names.commands(names.definer(office.served.app_id))
        refused = f"{definer} could not be read, and is tried again: "
        until(lambda: refused in worker.text, "programs cannot create anything without the right to that group")
        office.permit(AclOperation.READ, definer, kind=ResourceType.GROUP)
        with Admin(office.served.app_id, connection=office.served.connection) as admin:
            assert not admin.create_queue(office.orders).changed, "the worker answers"
        transferred = [transferred_to(office, name) for name in (office.orders, "never")]
        assert transferred[0] == transferred[1].replace("never", office.orders), (
            "a hidden target is told as one that is not there"
        )
        assert "do not let this user see" in transferred[0]
        assert worker.text.count(refused) == 1
        office.served.write("orders", "held")
        with office.served.subscriber("orders") as subscriber:
            assert subscriber.receive(20) is not None
            worker.kill()  # the next one looks for what was delivered
            worker.start().wait_for_shards(2)
        assert "may not read its deliveries" not in worker.text
        office.revoke(ResourceType.TOPIC, names.deliveries(office.orders))
        office.permit(AclOperation.WRITE, names.deliveries(office.orders))
        with office.served.subscriber("orders") as subscriber:
            assert subscriber.receive(40) is not None
            worker.kill()
            worker.start().wait_for_shards(2)
        assert f"{office.orders}, partition 0: may not read its deliveries" in worker.text
        found = office.refused("check")
        assert "we lack the right Read on it: have it granted; deliveries of" in " ".join(found.split())
    finally:
        worker.stop()
    assert "Traceback" not in worker.text


def _withdraw_and_give_back(office: Office, worker: WorkerProcess) -> None:
    """A right that is withdrawn stops its shard only, until it is given back (C52)."""
    journal = names.changelog(office.served.app_id, office.orders)
    office.revoke(ResourceType.TOPIC, journal)
    office.permit(AclOperation.READ, journal)
    office.served.write("orders", "kept")
    until(lambda: f"{office.orders}, partition 0: Kafka refuses what it writes" in worker.text, "it is given up")
    office.served.write("prices", "1", key=b"k")
    with SowClient(office.prices, connection=office.served.connection) as prices:
        until(lambda: [record.value for record in prices.query()] == [b"1"], "the others go on")
    office.permit(AclOperation.WRITE, journal)
    with office.served.subscriber("orders", timeout_s=60) as subscriber:
        delivery = subscriber.receive(60)
        assert delivery is not None
        assert delivery.value == b"kept"
        subscriber.settle("acknowledge", [delivery], wait=True)
    assert worker.running


def test_a_worker_that_may_do_all_but_join_its_group_says_so_and_ends(office: Office) -> None:
    """With every right on topics nothing but the group itself tells."""
    office.permit(AclOperation.ALL, "*")
    office.revoke(ResourceType.GROUP)
    worker = office.worker("uninvited")
    worker.start().wait(LONGEST_S)
    assert worker.code == 1, "the supervisor does not try on"
    assert f"the consumer group {office.served.app_id} may not be joined: have Read on it granted" in worker.text


def test_each_right_is_named_that_one_command_alone_takes(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for stands on the page of rights, and is enough."""
    for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID):
        office.revoke(kind)
    dead, events = f"dlq.{office.orders}", names.events(office.orders)
    with Publisher(connection=Connection(office.broker.plain)) as publisher:
        publisher.publish(dead, b"x")
        publisher.publish(office.orders, b"x")
    office.permit(AclOperation.READ, dead, office.orders)
    redrive = ("dlq", "redrive", dead, "--to", office.orders, "--yes")
    needed = f"Create, Read and Write on the topic {REDRIVEN}, Write on the transactional ids that begin with that name"
    assert needed in office.refused(*redrive)
    for operation in (AclOperation.CREATE, AclOperation.READ, AclOperation.WRITE):
        office.permit(operation, REDRIVEN)
    assert needed in office.refused(*redrive)
    office.permit(AclOperation.WRITE, f"{REDRIVEN}.{dead}", kind=ResourceType.TRANSACTIONAL_ID)
    assert f"{office.orders}: the brokers do not let this user write it" in office.refused(*redrive)
    office.permit(AclOperation.WRITE, office.orders)
    assert office.done(*redrive).stdout.endswith("1 letter sent.\n")

    explain = ("explain", f"{office.orders}:0:0", "--entity", office.orders)
    office.permit(AclOperation.DESCRIBE, names.commands(office.orders))
    assert f"do not let this user see {events}, lapse.{office.orders}.deliveries" in office.done(*explain).stderr
    office.permit(AclOperation.READ, events, names.deliveries(office.orders))
    assert not office.done(*explain).stderr

    definitions = names.definitions(office.served.app_id)
    replay = ("simulate", office.orders, "--replay")
    office.permit(AclOperation.READ, definitions, names.changelog(office.served.app_id, office.orders))
    office.revoke(ResourceType.TOPIC, names.commands(office.orders))
    assert f"do not let this user see {names.commands(office.orders)}" in office.refused(*replay)
    monkeypatch.setattr(deleted_entities, "_LONGEST_S", LONGEST_S)
    needed = office.refused("queue", "alter", office.orders, "expiration=2m")
    assert f"{names.commands(office.orders)}: we lack the right Describe on it" in needed, "it is not deleted"


@pytest.fixture(scope="module")
def all_but_one(office: Office, kafka: str) -> Iterator[dict[str, str]]:
    """A user who has every right, and a worker that answers: what commands are given, by the name in their rows."""
    for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID):
        office.permit(AclOperation.ALL, "*", kind=kind)
    if REDRIVEN not in office.served.connection.partitions():
        created_topic.create(AdminClient({"bootstrap.servers": office.broker.plain}), NewTopic(REDRIVEN, 1, 1))
    write(office.broker.plain, REDRIVEN, [b"{}"], key=b"no letter")
    office.served.worker().wait_for_shards(2)
    with Publisher(connection=office.served.connection) as publisher:
        publisher.publish(office.orders, b"x")
        publisher.publish(f"dlq.{office.orders}", b"x")
    office.served.lapse("queue", "purge", office.orders, "--yes")  # so that there are events, and a letter
    wire = Wire(office.broker.plain)
    wire.letter(office.prices, Bookmark(office.prices, 0, 0), "time_limit")
    wire.flush()
    if office.prices not in Connection(kafka).partitions():
        created_topic.create(AdminClient({"bootstrap.servers": kafka}), NewTopic(office.prices, 1, 1))
    given = {"q": office.orders, "s": office.prices, "new": office.served.name("new"), "app": office.served.app_id}
    yield {**given, "own": office.broker.servers, "other": kafka}
    office.deny_nothing()


def test_every_command_has_a_row_of_the_rights_that_it_needs() -> None:
    assert set(commands()) == set(ROWS)
    assert all(bool(row.needs) != bool(row.why_none) for row in ROWS.values())


@pytest.mark.parametrize(("command", "need"), cases(ALWAYS, AT_LENGTH, long=LONG))
def test_each_command_names_the_one_right_that_it_lacks(
    office: Office, all_but_one: dict[str, str], command: str, need: Need
) -> None:
    name = need.name.format_map(all_but_one)
    office.deny(need, name)
    try:
        failures = office.refused(*command.split(), *ROWS[command].arguments.format_map(all_but_one).split())
    finally:
        office.deny_nothing()
    assert (need.message.format_map(all_but_one) or name) in failures
    assert "granted" in failures
