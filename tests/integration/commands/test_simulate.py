"""`lapse simulate` on what a real cluster recorded: the same events come again, over a worker that was killed (X10)."""

from __future__ import annotations

import time
from collections.abc import Callable

import orjson
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from lapse.core.shard.changelog import PROGRESS
from lapse.protocol import topic
from lapse.protocol.event import Event
from lapse.runtime.shard.sent_log import INSTANTS, PROGRESS_KEY
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment, broker_now_ms
from support.processes.entitled import Entitled
from support.suite import command
from support.suite.at_length import cases

QUEUES = {
    "orders": {
        "partitions": 2,
        "expiration": "enabled",
        "lease_period": "700ms",
        "max_cancels": 2,
        "max_deliveries": 4,
        "retry": {"delay": "50ms", "jitter": 0.5},
    },
    "ranked": {
        "topics": ["orders{}"],
        "partitions": 2,
        "ordering": "total",
        "priority": "/rank",
        "rate": "40/1s",
        "expiration": "2s",
        "dead_letter": False,
    },
    "asked": {"lease_period": "5s"},
    "again": {"lease_period": "5s"},
}
SLOW = " OR ".join(f"/text LIKE '.*a.*b.*{number}x'" for number in range(40)) + " OR /number % 2 = 0"
"""A filter that takes so long that a rewind goes over few records in a step."""

pytestmark = pytest.mark.feature("X10")


def publish(deployment: Deployment) -> None:
    for partition in (0, 1):
        deployment.write("orders", *(b'{"rank": %d}' % (at % 5) for at in range(40)), partition=partition)
        short = [("lapse-ttl-ms", b"900")]
        deployment.write("orders", *[b'{"rank": 1}'] * 1_500, headers=short, partition=partition)
        later = [("lapse-enqueue-at-ms", b"%d" % (broker_now_ms() + 1_000))]
        deployment.write("orders", *[b"{}"] * 3, headers=later, partition=partition)
        deployment.write("orders", "bad", headers=[("lapse-ttl-ms", b"soon")], partition=partition)


def work(deployment: Deployment, stem: str, for_s: float, publish: Callable[[Deployment], None] | None = None) -> None:
    """Acknowledge, cancel, expire, and leave some to their leases' ends.

    What is published with a short life is so when there is a consumer, however slow the machine.
    """
    with deployment.subscriber(stem, 5) as subscriber, deployment.queue(stem) as queue:
        until(lambda: queue.depth()["subscriptions"] == 1, "it has a consumer", 30)
        if publish is not None:
            publish(deployment)
        end, count = time.monotonic() + for_s, 0
        while time.monotonic() < end:
            delivery = subscriber.receive(0.2)
            if delivery is None:
                continue
            count += 1
            if count % 9:
                how = {0: "cancel", 1: "expire"}.get(count % 7, "acknowledge")
                subscriber.settle(how, [delivery])


def outlast(deployment: Deployment, stem: str) -> None:
    """Keep messages until the lease of one ends and it comes again: on a slow machine no other lease may have ended."""
    deployment.write(stem, '{"rank": 1}', headers=[("lapse-ttl-ms", b"10000")])
    kept = set[object]()
    with deployment.subscriber(stem, 5) as subscriber:

        def again() -> bool:
            one = subscriber.receive(1)
            if one is None or one.bookmark in kept:
                return one is not None
            kept.add(one.bookmark)
            return False

        until(again, "a message that was kept comes again")


def ask(deployment: Deployment) -> None:
    """Ask for the depth, and at once have something to deliver: a question changes nothing, and is in no journal."""
    with deployment.queue("asked") as queue, deployment.subscriber("asked", 2) as subscriber:
        for number in range(12):
            assert queue.depth()["depth"] == 0
            deployment.write("asked", f'{{"number": {number}}}')
            delivery = subscriber.receive(10.0)
            assert delivery is not None
            subscriber.settle("acknowledge", [delivery])
            until(lambda: queue.depth()["depth"] == 0, "it is acknowledged")


def abort(deployment: Deployment, stem: str) -> None:
    """Begin a topic with a transaction that is aborted: nobody ever sees its record."""
    producer = Producer({"bootstrap.servers": deployment.servers, "transactional.id": deployment.name(stem)})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(deployment.name(stem), b"{}")
    producer.flush(15)
    producer.abort_transaction(30)


def rewind(deployment: Deployment) -> None:
    """Bring back what has left, in parts that are the smaller the longer the filter takes."""
    text = "ab" * 40
    abort(deployment, "again")
    deployment.write("again", *(f'{{"number": {number}, "text": "{text}"}}' for number in range(1_200)))
    with deployment.queue("again") as queue:
        until(lambda: queue.depth()["depth"] == 1_200, "all have arrived")
        assert queue.purge()["removed"] == 1_200
        assert queue.rewind("beginning", filter=SLOW)["rewound"] == 600
        assert queue.purge()["removed"] == 600


def fate(event: Event) -> tuple[object, ...]:
    named = [f"{one.topic}:{one.partition}:{one.first}" for one in event.messages]
    return event.partition, event.event, event.at_ms, event.epoch, tuple(event.reasons), event.subscription, named[:1]


@pytest.fixture(scope="module")
def lived(deploy: Deploy) -> Deployment:
    """Queues with a life behind them: everything that ends a message, and a worker that was killed."""
    deployment = deploy(QUEUES).apply()
    first = deployment.worker()
    assert deployment.depth("ranked")["depth"] == 0  # it serves
    ask(deployment)
    work(deployment, "ranked", 0.8, publish)
    work(deployment, "orders", 1.0)
    first.kill()
    deployment.worker()
    work(deployment, "orders", 3.0)
    outlast(deployment, "orders")
    rewind(deployment)
    with deployment.queue("orders") as queue:
        queue.pause()
        queue.purge()
        queue.resume()
    until(lambda: not deployment.depth("orders")["depth"] and not deployment.depth("ranked")["depth"], "all has left")
    return deployment


@pytest.mark.feature("Q22")
def test_a_rewind_in_parts_of_other_sizes_comes_again(lived: Deployment) -> None:
    journal = lived.tail(topic.changelog(lived.app_id, lived.name("again"))).drain()
    journaled = [orjson.loads(one.value() or b"{}") for one in journal if (one.key() or b"").startswith(PROGRESS)]
    parts = [one[PROGRESS_KEY][INSTANTS]["part"] for one in journaled if "part" in one[PROGRESS_KEY].get(INSTANTS, {})]
    assert parts
    assert max(parts) < 1_000
    done = lived.lapse("simulate", lived.name("again"), "--replay", "--json")
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
    (total,) = [one for one in map(orjson.loads, done.stdout.splitlines()) if "same" in one]
    assert total["same"]
    assert sum(event.event == "rewound" for event in lived.events("again")) > 1


@pytest.mark.parametrize("stem", [stem for stem in QUEUES if stem != "again"])
def test_a_recorded_stretch_comes_to_the_same_events_again(lived: Deployment, stem: str) -> None:
    done = lived.lapse("simulate", lived.name(stem), "--replay", "--json")
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
    printed = [orjson.loads(line) for line in done.stdout.splitlines()]
    sums = [one for one in printed if "same" in one]
    assert all(one["same"] and one["epochs"] >= 2 and one["in_order"] for one in sums), sums
    events = lived.events(stem)
    again = [one for one in printed if "event" in one]
    assert len(again) + sum(one["unjournaled"] for one in sums) == len(events)
    expected = {"acknowledged", "subscribed", "unsubscribed"} | ({"scheduled"} if stem != "asked" else set())
    assert expected <= {one["event"] for one in again}
    if not any(one["unjournaled"] for one in sums):
        came = sorted(
            (one["partition"], one["event"], one["at_ms"], one["epoch"], tuple(one["reasons"]), one["subscription"])
            for one in again
        )
        assert came == sorted(fate(event)[:6] for event in events)


@pytest.mark.parametrize("quarter", cases([2], long=[1, 3]))
def test_a_later_part_of_a_recording_comes_again_by_itself(lived: Deployment, quarter: int) -> None:
    instants_ms = sorted(event.at_ms for event in lived.events("orders"))  # they are read partition by partition
    begin_ms = instants_ms[len(instants_ms) * quarter // 4]
    done = lived.lapse("simulate", lived.name("orders"), "--replay", "--since", str(begin_ms), "--json")
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
    sums = [one for one in map(orjson.loads, done.stdout.splitlines()) if "same" in one]
    assert 0 < sum(one["replayed"] for one in sums) < len(instants_ms)


def test_users_and_changes_of_a_definition_come_again(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    office = Entitled(kafka, tmp_path_factory.mktemp("lapse"), {})
    office.users = {
        "alice": {"entitlements": {"desks{}": {"read": True, "filter": "/desk = 'A'"}}},
        "bob": {"entitlements": {"desks{}": {"read": True}}},
        "ops": {"entitlements": {".*": {"admin": True}}},
    }
    settings = {"lease_period": "400ms", "expiration": "enabled", "max_deliveries": 3}
    office.configure({"desks": settings}, definitions="topic", session_timeout="3s")
    office.apply()
    worker = office.worker().wait_for_shards(1)
    try:
        publish_to_desks(office)
        consume_as_users(office)
        office.configure({"desks": {**settings, "lease_period": "250ms"}}, definitions="topic", session_timeout="3s")
        office.apply()
        until(lambda: "version 2 is served" in worker.text, "the running worker has taken it up")
        publish_to_desks(office)
        consume_as_users(office)
        worker.kill()
        worker = office.worker().wait_for_shards(1)
        publish_to_desks(office)
        consume_as_users(office)
        office.configure(
            {"others": {}}, definitions="topic", session_timeout="3s"
        )  # the topic says what the queue is, not the file
        done = office.lapse("simulate", office.name("desks"), "--replay", "--json")
        recorded = office.lapse("simulate", office.name("desks"), "--recorded", "--json")
    finally:
        worker.kill()
        office.close()
    assert done.returncode == 0, done.stdout[-1_500:] + done.stderr[-1_500:]
    (whole,) = [one for one in map(orjson.loads, done.stdout.splitlines()) if "same" in one]
    assert whole["same"], whole
    assert whole["epochs"] == 3
    assert whole["replayed"] > 20
    printed = [orjson.loads(line) for line in done.stdout.splitlines()]
    assert {one["subscription"].partition("/")[0] for one in printed if one.get("event") == "subscribed"} == {
        "alice",
        "bob",
    }
    assert recorded.returncode == 0, recorded.stderr
    assert str(orjson.loads(recorded.stdout)["service"]).startswith("recorded (")


def publish_to_desks(office: Entitled) -> None:
    office.write("desks", *(b'{"desk": "%c"}' % "ABC"[at % 3].encode() for at in range(15)))


def consume_as_users(office: Entitled) -> None:
    """Acknowledge as users, and leave some to their leases' ends."""
    for user in ("alice", "bob"):
        with office.subscriber_of(user, "desks") as subscriber:
            end, count = time.monotonic() + 0.7, 0
            while time.monotonic() < end:
                delivery = subscriber.receive(0.1)
                count += delivery is not None
                if delivery is not None and count % 4:
                    subscriber.settle("acknowledge", [delivery])


def test_another_configuration_comes_to_other_events(lived: Deployment) -> None:
    """The comparison can fail: with another lease the same commands meet other leases."""
    text = lived.config.read_text("utf-8")
    other = lived.directory / "other.toml"
    other.write_text(text.replace('lease_period = "700ms"', 'lease_period = "250ms"'), "utf-8")
    assert other.read_text("utf-8") != text
    done = command.run(
        "simulate", lived.name("orders"), "--replay", "--config", str(other), environment=lived.environment()
    )
    assert done.returncode == 1
    assert "recorded, and did not come again" in done.stderr


def test_recorded_messages_meet_other_settings_and_consumers(lived: Deployment) -> None:
    def figures(*options: str) -> list[dict[str, object]]:
        done = lived.lapse("simulate", lived.name("orders"), "--recorded", "--json", *options)
        assert done.returncode == 0, done.stderr
        return [orjson.loads(line) for line in done.stdout.splitlines()]

    (as_it_was,) = figures()
    assert as_it_was["messages"] == 2 * (40 + 1_500 + 3 + 1) + 1
    assert (as_it_was["subscribers"], as_it_was["backlog"]) == (1, 5)
    assert str(as_it_was["service"]).startswith("recorded (")
    assert as_it_was["fates"]["invalid_lifetime"] == 2  # type: ignore[index]  # JSON
    few, many = figures("--subscribers", "1,50", "--service", "20ms", "--backlog", "1")
    assert few["served"] < many["served"]  # type: ignore[operator]  # JSON
    assert few["fates"]["time_limit"] > 1_000  # type: ignore[index]  # JSON
    (longer,) = figures("--subscribers", "1", "--service", "2ms", "--backlog", "1", "--set", "expiration=disabled")
    assert longer["served"] == longer["messages"] - 2  # type: ignore[operator]  # JSON
    none = lived.lapse("simulate", lived.name("orders"), "--recorded", "--until", "1")
    assert none.returncode == 1
    assert "hold no message of that stretch" in none.stderr


@pytest.mark.feature("C81", "C21", "Q13", "Q22", "X6")
def test_a_queue_that_got_shards_comes_again_with_what_a_new_one_took_over(deploy: Deploy) -> None:
    """Acknowledgments in advance, message ids and a pause; and the old shard has read both partitions, by time."""
    here = deploy({"deep": {"target_queue_depth": 3}, "paused": {}}).apply()
    worker = here.worker().wait_for_shards(2)
    admin = AdminClient({"bootstrap.servers": here.servers})
    for stem in ("deep", "paused"):
        admin.create_partitions([NewPartitions(here.name(stem), 2)])[here.name(stem)].result(15)
        until(lambda stem=stem: f"topic {here.name(stem)} has 2 partitions" in worker.text, "it is told", 40)
        for partition in (0, 1, 0, 1):
            here.write(stem, *"abc", partition=partition)
        here.write(stem, "told", partition=1, headers=[("lapse-message-id", b"a")])
    with here.queue("deep") as deep, here.queue("paused") as paused:
        until(lambda: (deep.depth()["depth"], paused.depth()["depth"]) == (3, 13), "it reads both partitions")
        (settled,) = deep.acknowledge([f"{here.name('deep')}:1:4"])
        assert settled.settled
        while deep.depth()["depth"]:
            work(here, "deep", 0.2)
        paused.pause()
        paused.purge()
        for stem in ("deep", "paused"):
            assert here.lapse("queue", "partitions", here.name(stem)).returncode == 0
            until(lambda stem=stem: f"{here.name(stem)}: has 2 shards" in worker.text, "it has two shards", 60)
            here.write(stem, "told again", partition=1, headers=[("lapse-message-id", b"a")])
            here.write(stem, "new", partition=1)
        until(lambda: (deep.depth()["depth"], paused.depth()["depth"]) == (1, 1), "the new shards read", 60)
        worker.kill()
        worker.start().wait_for_shards(4)
        paused.resume()
        work(here, "paused", 0.5)
        assert paused.rewind("beginning")["rewound"] > 10
        paused.purge()
        deep.purge()
    for stem in ("deep", "paused"):
        done = here.lapse("simulate", here.name(stem), "--replay", "--json")
        assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
