"""The client against a real worker: every way to receive, a take-over, SOW topics, the commands."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from lapse.cli.publish import publish as publish_command
from lapse.cli.queue import queue as queue_command
from lapse.cli.sow import sow as sow_command
from lapse_client import Connection, Delivery, Publisher, Queue, QueueSubscriber, SowClient
from support.kafka.log import until
from support.processes import fork_server
from support.suite.at_length import cases


class Deployment:
    """A worker of this module's own, on the shared broker."""

    def __init__(self, servers: str, directory: Path, unique: str) -> None:
        self.connection = Connection(servers)
        self.orders, self.source, self.prices = f"orders{unique}", f"source{unique}", f"prices{unique}"
        self._config = directory / "lapse.toml"
        self._log = (directory / "worker.log").open("wb")
        self._environment = {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": servers}
        self._config.write_text(
            f'[lapse]\napp_id = "app{unique}"\ndata_dir = "{directory}/data"\n'
            f'[queue.{self.orders}]\ntopics = ["{self.source}"]\npartitions = 2\nexpiration = "enabled"\n'
            f'[sow.{self.prices}]\npartitions = 2\nexpiration = "enabled"\n'
        )
        applied = self._lapse("apply", "--yes")
        assert applied.wait(60) == 0
        self.worker = self._lapse("worker", "--no-supervise")

    def _lapse(self, command: str, option: str) -> fork_server.Process:
        arguments = ["-m", "lapse", command, option, "-c", str(self._config)]
        return fork_server.start(arguments, self._log, self._environment)

    def take_over(self) -> None:
        self.worker.kill()
        self.worker.wait(30)
        self.worker = self._lapse("worker", "--no-supervise")

    def publish(self, count: int, prefix: str = "") -> set[bytes]:
        values = [f"{prefix}{number}" for number in range(count)]
        with Publisher(self.connection) as publisher:
            for value in values:
                publisher.publish(self.orders, value, key=value, headers={"own": "yes"}, ttl_ms=600_000)
        return {value.encode() for value in values}

    def subscriber(self, max_backlog: int, **options: object) -> QueueSubscriber:
        return QueueSubscriber(self.orders, max_backlog, connection=self.connection, timeout_s=90, **options)


@pytest.fixture(scope="module")
def lapse(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp("worker")
    deployment = Deployment(kafka, directory, f"{time.time_ns()}")
    yield deployment
    deployment.worker.terminate()
    try:
        deployment.worker.wait(30)
    except subprocess.TimeoutExpired:
        deployment.worker.kill()
        deployment.worker.wait(30)


def collect(subscriber: QueueSubscriber, wanted: set[bytes], timeout: float = 60) -> list[Delivery]:
    seen: list[Delivery] = []
    for delivery in subscriber.messages(timeout):
        with delivery:
            seen.append(delivery)
        if {one.value for one in seen} >= wanted:
            break
    assert {one.value for one in seen} == wanted
    return seen


@pytest.mark.feature("Q2", "Q3", "X3", "D4")
@pytest.mark.parametrize("payload", cases(["packed"], long=["inline", "reference"]))
@pytest.mark.parametrize("max_backlog", [1, 100])
def test_what_is_published_to_a_queue_comes_once(lapse: Deployment, payload: str, max_backlog: int) -> None:
    count = 20 if max_backlog == 1 else 1000
    wanted = lapse.publish(count, f"{payload}-{max_backlog}-")
    with lapse.subscriber(max_backlog, payload=payload) as subscriber:
        seen = collect(subscriber, wanted)
    assert len(seen) == count
    for one in seen:
        assert one.bookmark.topic == lapse.source
        assert one.key == one.value
        assert ("own", b"yes") in one.headers
        assert one.expires_at_ms == one.timestamp_ms + 600_000
        assert one.lease_until_ms is not None
        assert one.delivery_count == 1
    with Queue(lapse.orders, connection=lapse.connection) as queue:
        assert queue.depth()["depth"] == 0


@pytest.mark.feature("Q5", "Q8", "X3")
@pytest.mark.parametrize("payload", cases(["packed"], long=["inline", "reference"]))
def test_a_cancelled_message_comes_again(lapse: Deployment, payload: str) -> None:
    wanted = lapse.publish(10, "again")
    with lapse.subscriber(10, payload=payload) as subscriber:
        cancelled = subscriber.receive(60)
        cancelled.cancel()
        seen = collect(subscriber, wanted)
    counts = {one.value: one.delivery_count for one in seen}
    assert counts.pop(cancelled.value) == 2
    assert set(counts.values()) == {1}


@pytest.mark.feature("X3", "C5")
@pytest.mark.slow
def test_a_subscription_outlives_a_take_over(lapse: Deployment) -> None:
    wanted = lapse.publish(10, "before")
    with lapse.subscriber(100, heartbeat_timeout_ms=30_000) as subscriber:
        collect(subscriber, wanted)
        subscriber.flush()
        time.sleep(1)
        lapse.take_over()
        collect(subscriber, lapse.publish(10, "after"))


@pytest.mark.feature("S2", "S3", "S5", "S6", "S7", "X3")
def test_a_sow_topic_is_queried_and_followed(lapse: Deployment) -> None:
    with (
        Publisher(lapse.connection) as publisher,
        SowClient(lapse.prices, connection=lapse.connection, timeout_s=90) as prices,
    ):
        for symbol, price in (("A", 90), ("B", 110), ("C", 130)):
            publisher.publish(lapse.prices, json.dumps({"symbol": symbol, "price": price}), key=symbol)
        publisher.flush()
        deadline = time.monotonic() + 60
        while len(list(prices.query())) < 3:
            assert time.monotonic() < deadline
        assert [record.key for record in prices.query(order_by="/price DESC", top_n=2)] == [b"C", b"B"]
        with prices.sow_and_subscribe("/price > 100") as updates:
            publisher.publish(lapse.prices, b'{"price": 95}', key="B", delta=True)
            publisher.publish(lapse.prices, b'{"symbol": "D", "price": 150}', key="D", ttl_ms=1000)
            publisher.flush()
            seen, awaited = list[tuple[str, bytes | None]](), {("publish", b"D"), ("oof", b"B"), ("oof", b"D")}
            for update in updates.updates(timeout=30):
                seen.append((update.kind, update.key))
                if awaited <= set(seen):
                    break
        assert sorted(seen[:2]) == [("sow", b"B"), ("sow", b"C")]
        assert awaited <= set(seen)
        assert prices.delete(filter="/price > 100") == 1


@pytest.mark.feature("X3", "X7", "Q15")
def test_the_commands_do_the_same(lapse: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", lapse.connection.bootstrap_servers)
    run: Callable[..., object] = CliRunner().invoke
    published = run(publish_command, [lapse.orders, "hello", "--ttl-ms", "60000", "--json"])
    assert published.exit_code == 0, published.output
    bookmark = json.loads(published.output)["bookmark"]
    assert bookmark.startswith(f"{lapse.source}:")
    deadline = time.monotonic() + 30
    while json.loads(run(queue_command, ["depth", lapse.orders, "--json"]).output)["depth"] != 1:
        assert time.monotonic() < deadline
    peeked = json.loads(run(queue_command, ["peek", lapse.orders, "--json"]).output)
    assert (peeked["bookmark"], peeked["state"]) == (bookmark, "available")
    assert run(queue_command, ["peek", lapse.orders, "--json", "--state", "leased"]).output == ""
    before_ms = int(time.time() * 1000)
    with QueueSubscriber(lapse.orders, connection=lapse.connection) as subscriber:
        delivery = subscriber.receive(30)
        assert delivery is not None
        leased = json.loads(run(queue_command, ["peek", lapse.orders, "--json", "--state", "leased"]).output)
        assert before_ms - 1_000 <= leased["since_ms"] < leased["until_ms"] == delivery.lease_until_ms
        subscriber.settle("renew", [delivery], wait=True)
        renewed = json.loads(run(queue_command, ["peek", lapse.orders, "--json", "--state", "leased"]).output)
        assert renewed["since_ms"] == leased["since_ms"], "a lease that is renewed is the same lease"
        assert renewed["until_ms"] > leased["until_ms"]
    later_ms = int(time.time() * 1000) + 3_600_000
    for key, price in (("a", 1), ("b", 2)):
        words = [lapse.prices, f'{{"price": {price}}}', "--key", key, "--enqueue-at-ms", str(later_ms + price)]
        assert run(publish_command, words).exit_code == 0
    with SowClient(lapse.prices, connection=lapse.connection) as prices:
        until(lambda: prices.depth()["scheduled"] == 2, "two updates are to come")
    shown = run(sow_command, ["scheduled", lapse.prices, "--json", "-f", "/price > 1"]).output
    update = json.loads(shown)
    assert (update["key"], update["change"], update["enqueue_at_ms"]) == ("b", "publish", later_ms + 2)
    assert update["bookmark"] in run(sow_command, ["scheduled", lapse.prices]).output
    withdrawn = run(sow_command, ["withdraw", lapse.prices, "--bookmark", update["bookmark"]])
    assert withdrawn.output == "1 scheduled update withdrawn.\n"
    assert json.loads(run(sow_command, ["scheduled", lapse.prices, "--json"]).output)["key"] == "a"
    assert run(sow_command, ["withdraw", lapse.prices]).exit_code == 1
    with QueueSubscriber(lapse.orders, connection=lapse.connection, filter="FALSE"):
        listed = json.loads(run(queue_command, ["subscriptions", lapse.orders, "--json"]).output)
        assert (listed["outstanding"], listed["filter"]) == (0, "FALSE")
        assert 0 < listed["since_ms"] <= listed["heard_ms"]
        shown = run(queue_command, ["subscriptions", lapse.orders]).output
        assert listed["subscription"] in shown
    with SowClient(lapse.prices, connection=lapse.connection) as prices, prices.subscribe("/price > 1"):
        listed = json.loads(run(sow_command, ["subscriptions", lapse.prices, "--json"]).output)
        assert listed["filter"] == "/price > 1"
    printed = json.loads(run(queue_command, ["subscribe", lapse.orders, "-n", "1", "--timeout", "30", "--json"]).output)
    assert (printed["value"], printed["bookmark"]) == ("hello", bookmark)
    assert run(queue_command, ["depth", "nowhere"]).exit_code == 1
    assert run(publish_command, [lapse.orders, "x", "--ttl-ms", "1", "--expires-at-ms", "2"]).exit_code == 2
    assert run(sow_command, ["query", lapse.prices, "--json"]).exit_code == 0
    wrong = run(sow_command, ["query", lapse.prices, "/price >"])
    assert wrong.exit_code == 1
    assert "column" in wrong.output
