"""Kafka over TLS and SASL for every part, and no secret where others can read it (X5)."""

import asyncio
import json
import os
from pathlib import Path

import click
import psutil
import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient

from lapse.cli import main
from lapse.core.reason import Reason
from lapse.protocol import topic
from lapse.protocol.bookmark import BookmarkRange
from lapse.protocol.event import EventKind
from lapse.topic_creation import NewTopic
from lapse_client import DeadLetterReader, Publisher, QueueSubscriber, aio
from lapse_client.error import ConnectionFailed
from lapse_client.kafka.connection import Connection as ClientConnection
from support.kafka.created_topic import create
from support.kafka.log import Tail, until
from support.kafka.secure import PASSWORD, USER
from support.kafka.wire import Wire
from support.processes import fork_server
from support.processes.deployment import Deployment
from support.suite import command
from support.suite.at_length import cases
from unit.cli.test_wrong_address import NOBODY, leaves

pytestmark = pytest.mark.feature("X5")


def has_password(directory: Path) -> list[Path]:
    return [file for file in directory.rglob("*") if file.is_file() and PASSWORD.encode() in file.read_bytes()]


@pytest.mark.spark
@pytest.mark.parametrize("ledger", cases([False], long=[True]), ids=lambda ledger: "ledger" if ledger else "letters")
def test_jobs_on_spark_read_and_write(spark, secured, unique, tmp_path, capfd, ledger):
    from lapse_spark import Connection, read
    from lapse_spark.cli import spark as commands

    queue, wire = unique("q"), Wire(secured.plain)
    origin, letters = unique("orders"), topic.dead_letters(queue)
    names = [origin, letters, topic.events(queue), topic.commands(queue)]
    admin = AdminClient({"bootstrap.servers": secured.plain})
    create(admin, *(NewTopic(name, 1, 1) for name in names))
    wire.records(origin, [b"x"] * 5)
    dead = BookmarkRange(origin, 0, 1, 3)
    wire.event(queue, EventKind.ACKNOWLEDGED, BookmarkRange(origin, 0, 0, 0))
    wire.event(queue, EventKind.DEAD_LETTERED, dead, reasons=("max_deliveries",), dead_letter_topic=letters)
    for bookmark in dead:
        wire.letter(queue, bookmark, Reason.MAX_DELIVERIES, value=b"payload")
    wire.flush()
    own, out, audit = tmp_path / "own", tmp_path / "out", tmp_path / "audit"
    own.mkdir()
    properties = secured.java_properties(own)

    def run(*arguments, file=properties):
        options = ["--bootstrap", secured.servers, "--kafka-config", str(file), "--json"]
        return CliRunner().invoke(commands, [*arguments, *options])

    answers = []
    if ledger:
        answers.append(run("ledger", "--queue", queue, "--topics", origin))
        printed = json.loads(answers[-1].stdout)
        assert (printed["balanced"], printed["published"], printed["dead_lettered"]) == (True, 5, {"max_deliveries": 3})
    answers.append(run("archive", str(out), "--pattern", letters))
    assert json.loads(answers[-1].stdout)["records"] == 3
    answers.append(run("redrive", str(audit), "--archive", str(out), "--send"))
    assert json.loads(answers[-1].stdout)["sent"] == 3
    tail = Tail(secured.plain, origin)
    assert [message.value() for message in tail.wait(8)][5:] == [b"payload"] * 3
    tail.close()

    for where in ({"LAPSE_KAFKA_CONFIG": str(properties)}, {}):
        option = [] if where else ["--kafka-config", str(properties)]
        listed = command.run("dlq", "ls", "--json", "-b", secured.servers, *option, environment=where)
        assert letters in listed.stdout, listed.stderr

    wrong = tmp_path / "wrong"
    wrong.mkdir()
    answers.append(
        run("ledger", "--queue", queue, "--topics", origin, file=secured.java_properties(wrong, "s3cret-no"))
    )
    assert answers[-1].exit_code == 1
    assert "Traceback" not in answers[-1].output
    assert "Authentication failed" in answers[-1].output
    assert "s3cret-no" not in answers[-1].output

    connection = Connection.from_file(secured.servers, properties)
    plan = read.dead_letters(spark, connection, names=[letters])._jdf.queryExecution().toString()
    shown = [repr(connection), plan, *capfd.readouterr(), *(answer.output for answer in answers)]
    assert [text for text in shown if PASSWORD in text] == []
    assert has_password(tmp_path) == [properties]


class Secured(Deployment):
    """A deployment whose processes reach the broker by TLS and a password."""

    def configure(self, queues, sow=None, **lapse):
        super().configure(queues, sow, **lapse)
        secure = self.security
        text = f'[security]\nprotocol = "SASL_SSL"\nsasl_mechanism = "SCRAM-SHA-512"\nusername = "{USER}"\n'
        self.config.write_text(f'{self.config.read_text()}\n{text}ca_file = "{secure.ca_file}"\n')
        self.connection = ClientConnection(self.servers, secure.client_options())

    def environment(self):
        return {**super().environment(), "LAPSE_SASL_PASSWORD": PASSWORD}


@pytest.fixture
def deployment(secured, tmp_path):
    Secured.security = secured
    made = Secured(secured.servers, tmp_path, {"orders": {"expiration": "1s"}})
    yield made
    made.close()


@pytest.mark.feature("Q17")
def test_messages_are_handed_over_to_it_and_back(deployment, deploy, tmp_path):
    """`lapse transfer --config`: the security of either side is in a file, and the password in the environment."""
    plain = deploy({"orders": {"expiration": "1h"}}).apply()
    plain.worker().wait_for_shards(1)
    deployment.apply().worker().wait_for_shards(1)
    security = f'protocol = "SASL_SSL"\nsasl_mechanism = "SCRAM-SHA-512"\nusername = "{USER}"\n'
    security += f'ca_file = "{deployment.security.ca_file}"\n'
    headers = [("lapse-ttl-ms", b"600000")]
    for here, there, side in ((plain, deployment, "to"), (deployment, plain, "from")):
        here.write("orders", "a", "b", headers=headers) if here is plain else None
        until(lambda here=here: here.depth("orders")["depth"] == 2, "two messages")
        file = tmp_path / f"{side}.toml"
        file.write_text(
            f'from = "{here.servers}"\nto = "{there.servers}"\nto_queue = "{there.name("orders")}"\n'
            f"[{side}_security]\n{security}"
        )
        command = ["-m", "lapse", "transfer", here.name("orders"), "--all", "--json", "-c", str(file)]
        wrong = fork_server.run(command, {**os.environ, "LAPSE_SASL_PASSWORD": "s3cret-no"})
        assert wrong.returncode == 1
        assert "Traceback" not in wrong.stderr
        done = fork_server.run(command, {**os.environ, **deployment.environment()})
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["transferred"] == 2
        assert here.depth("orders")["depth"] == 0
        assert [text for text in (wrong.stdout + wrong.stderr, done.stdout + done.stderr) if PASSWORD in text] == []
    with plain.subscriber("orders", 2) as subscriber:
        assert {subscriber.receive(20).value for _ in range(2)} == {b"a", b"b"}
    assert has_password(tmp_path) == []


@pytest.mark.feature("Q5", "D1", "D4")
def test_a_worker_and_clients(deployment, tmp_path):
    worker = deployment.apply().worker(fresh=True)  # its command line is looked at
    worker.wait_for_shards(1)
    name = deployment.name("orders")
    with Publisher(deployment.connection) as publisher:
        publisher.publish(name, b"handled", ttl_ms=60_000)
        publisher.publish(name, b"read by the client", ttl_ms=60_000, headers=[("of", b"mine")])
        publisher.publish(name, b"expires", ttl_ms=1)
    for payload, value in (("packed", b"handled"), ("reference", b"read by the client")):
        with deployment.subscriber("orders", max_backlog=1, payload=payload) as subscriber:
            delivery = subscriber.receive(20)
            assert delivery.value == value
            delivery.acknowledge()
    assert ("of", b"mine") in delivery.headers
    letters = DeadLetterReader(name, connection=deployment.connection)
    until(lambda: [letter.value for letter in letters] == [b"expires"], "one letter")
    asked = deployment.lapse("check")
    assert asked.returncode == 0, asked.stdout + asked.stderr
    command_line = psutil.Process(worker.process.pid).cmdline()
    worker.stop()
    shown = [repr(deployment.connection), *command_line, asked.stdout, asked.stderr]
    assert [text for text in shown if PASSWORD in text] == []
    assert has_password(tmp_path) == []


def test_a_client_with_a_wrong_password_or_an_unknown_authority_says_so_at_once(secured):
    """No waiting mends it: every client says it within seconds, in one sentence, and without the password."""
    untrusted = {**secured.client_options(), "ssl.ca.location": "/etc/ssl/certs/ca-certificates.crt"}
    for options, cause in ((secured.client_options("s3cret-no"), "credentials"), (untrusted, "certificate")):
        connection = ClientConnection(secured.servers, options)
        for use in (
            lambda connection=connection: Publisher(connection).publish("orders", b"x"),
            lambda connection=connection: QueueSubscriber("orders", connection=connection).start(),
            connection.queues,
        ):
            with pytest.raises(ConnectionFailed, match=cause) as caught:
                use()
            assert "s3cret-no" not in str(caught.value)


FIRST = {"apply", "check", "publish", "queue depth", "queue create", "dlq ls"}
"""Each asks Kafka by another part of lapse, and in `make test` they stand for all commands."""


ELSEWHERE = {"dev", "replicate"}
"""One starts a broker, the other has the security of its clusters in a file of its own."""

EVERY = [leaf for leaf in leaves(main, click.Context(main)) if leaf.id not in ELSEWHERE]


@pytest.mark.feature("X5", "X7")
@pytest.mark.parametrize(
    "words", cases([one for one in EVERY if one.id in FIRST], [one for one in EVERY if one.id not in FIRST])
)
def test_a_command_with_a_wrong_password_says_so(secured, tmp_path, words):
    file = tmp_path / "lapse.toml"
    security = f'[security]\nprotocol = "SASL_SSL"\nsasl_mechanism = "SCRAM-SHA-512"\nusername = "{USER}"\n'
    security += f'ca_file = "{secured.ca_file}"\n'
    entities = '[lapse]\ndefinitions = "topic"\n[queue.orders]\n[sow.prices]\n'
    file.write_text(entities + security, "utf-8")
    words = [secured.servers if one == NOBODY else one for one in words]
    environment = {"KAFKA_BOOTSTRAP_SERVERS": secured.servers, "LAPSE_SASL_PASSWORD": "s3cret-no"}
    done = command.run(*words, environment=environment, directory=tmp_path)
    assert done.returncode == 1
    printed = done.stdout if words[0] == "doctor" else done.stderr
    assert "s3cret-no" not in done.stdout + done.stderr
    assert "Traceback" not in printed
    assert "credentials" in printed or "Authentication" in printed, printed


def test_a_worker_and_asynchronous_clients_with_a_wrong_password_say_so(deployment):
    deployment.apply()
    worker = deployment.run(
        ["-m", "lapse", "worker", "--config", str(deployment.config), "--no-supervise"],
        {"LAPSE_SASL_PASSWORD": "s3cret-no"},
    )
    until(lambda: "invalid credentials" in worker.text or not worker.running, "the worker says so", 20)
    assert "invalid credentials" in worker.text
    assert "s3cret-no" not in worker.text
    assert "Traceback" not in worker.text
    worker.kill()
    connection = ClientConnection(deployment.servers, deployment.security.client_options("s3cret-no"))
    name = deployment.name("orders")

    async def use(made):
        async with made as one:
            if isinstance(one, aio.Publisher):
                await one.publish(name, b"x")

    for make in (
        lambda: aio.Publisher(connection),
        lambda: aio.QueueSubscriber(name, connection=connection),
        lambda: aio.Queue(name, connection=connection),
        lambda: aio.Admin(deployment.app_id, connection=connection),
    ):
        with pytest.raises(ConnectionFailed, match="credentials") as caught:
            asyncio.run(use(make()))
        assert "s3cret-no" not in str(caught.value)
