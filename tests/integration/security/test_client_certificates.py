"""A broker that asks its clients for certificates: who has one works, and who has not is told so at once (X5, X7)."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lapse_client import Publisher, QueueSubscriber
from lapse_client.error import ConnectionFailed
from lapse_client.kafka.connection import Connection
from support.kafka.log import until
from support.kafka.mutual import MutualKafka, mutual_kafka
from support.processes.deployment import Deployment

pytestmark = pytest.mark.feature("X5", "X7")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MutualKafka]:
    with mutual_kafka(tmp_path_factory.mktemp("mutual")) as made:
        yield made


class Certified(Deployment):
    """A deployment whose processes show a certificate."""

    broker: MutualKafka

    def configure(self, queues, sow=None, **lapse):
        super().configure(queues, sow, **lapse)
        self.connection = Connection(self.servers, self.broker.options("known"))
        self.plain = self.config.read_text()
        self.show("known")

    def show(self, who: str) -> None:
        self.config.write_text(f"{self.plain}\n{self.broker.security(who)}")


@pytest.fixture
def deployment(broker: MutualKafka, tmp_path: Path) -> Iterator[Certified]:
    Certified.broker = broker
    made = Certified(broker.servers, tmp_path, {"orders": {"expiration": "1h"}})
    yield made
    made.close()


def test_all_parts_work_with_a_certificate_and_say_so_without(deployment: Certified) -> None:
    worker = deployment.apply().worker().wait_for_shards(1)
    name = deployment.name("orders")
    with Publisher(deployment.connection) as publisher:
        publisher.publish(name, b"handled")
    with deployment.subscriber("orders") as subscriber:
        delivery = subscriber.receive(20)
        assert delivery is not None
        subscriber.settle("acknowledge", [delivery], wait=True)
    worker.kill()
    assert worker.start().wait_for_shards(1).running
    for who in ("", "strange"):
        deployment.show(who)
        for command in (["check"], ["apply", "--yes"], ["queue", "depth", name]):
            done = deployment.lapse(*command)
            assert done.returncode == 1
            printed = " ".join(done.stderr.split())
            assert "certificate" in printed
            assert "Correct " in printed
            assert "Is it running?" not in printed
        other = deployment.worker()
        until(lambda other=other: not other.running, "it ends", 20)
        assert "Correct [security] in lapse.toml" in other.text
        refused = Connection(deployment.servers, deployment.broker.options(who))
        for use in (
            lambda refused=refused: Publisher(refused).publish(name, b"x"),
            lambda refused=refused: QueueSubscriber(name, connection=refused).start(),
        ):
            with pytest.raises(ConnectionFailed) as caught:
                use()
            assert caught.value.refused
    assert worker.running


def test_a_key_of_another_certificate_is_reported_without_a_traceback(broker: MutualKafka, tmp_path: Path) -> None:
    options = {**broker.options("known"), "ssl.key.location": str(broker.directory / "strange.key")}
    connection = Connection(broker.servers, options)
    for use in (connection.queues, connection.producer, connection.consumer, connection.admin):
        with pytest.raises(ConnectionFailed, match=r"ssl\.key\.location"):
            use()
    properties = tmp_path / "client.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in options.items()))
    done = subprocess.run(
        [sys.executable, "-m", "lapse", "queue", "depth", "orders"],
        env={**os.environ, "KAFKA_BOOTSTRAP_SERVERS": broker.servers, "LAPSE_KAFKA_CONFIG": str(properties)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "key values mismatch" in done.stderr
