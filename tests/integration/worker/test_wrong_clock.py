"""Workers whose wall clock is wrong, by minutes: only the broker's clock, as measured, counts."""

import threading
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

import support.workers.skewed
from lapse.topic_creation import NewTopic
from lapse_client import SowClient
from support.kafka.created_topic import create, stamp_by_producers
from support.kafka.log import Headers, texts, until
from support.kafka.skewed import SkewedKafka
from support.processes.deployment import Deploy, Deployment, WorkerProcess, broker_now_ms
from support.suite.at_length import cases

LIFETIME_MS = 8_000
LEASE_MS = 4_000
_UNCERTAIN_MS = 250
"""By how much a measured clock of a broker may be wrong here."""
QUEUE = {"expiration": "enabled", "lease_period": f"{LEASE_MS}ms"}


def ttl(milliseconds: int) -> Headers:
    return [("lapse-ttl-ms", str(milliseconds).encode())]


class Skewed:
    """A worker of a deployment whose wall clock differs from the machine's."""

    def __init__(self, here: Deployment, ahead_s: float) -> None:
        self._clock = here.directory / f"clock-{len(here.workers)}"
        self.step(ahead_s)
        data = here.directory / f"data-{len(here.workers)}"
        command = ["worker", "--config", str(here.config), "--data-dir", str(data), "--no-supervise"]
        self.worker: WorkerProcess = here.run([support.workers.skewed.__file__, str(self._clock), *command], fresh=True)

    def step(self, ahead_s: float) -> None:
        """Set its clock."""
        new = Path(f"{self._clock}.new")
        new.write_text(str(ahead_s))
        new.rename(self._clock)


def assert_right_times(here: Deployment, rounds: int = 1) -> None:
    """A message is delivered under a lease of the right length; one that nobody takes expires at its deadline."""
    with here.subscriber("orders") as subscriber:
        for _ in range(rounds):
            (written,) = here.write("orders", "taken", headers=ttl(LIFETIME_MS))
            delivery = subscriber.receive(6)
            assert delivery is not None
            assert delivery.delivery_count == 1
            assert abs(delivery.lease_ends_ms - written.timestamp_ms - LEASE_MS) < LEASE_MS
            delivery.acknowledge()
    tail = here.tail(f"dlq.{here.name('orders')}")
    before = len(tail.drain())
    (written,) = here.write("orders", "left", headers=ttl(2_000))
    assert here.depth("orders")["depth"] == 1 or broker_now_ms() >= written.timestamp_ms + 2_000
    letters = tail.wait(before + 1)
    letter = texts(letters[before])
    assert [one.value() for one in letters[before:]] == [b"left"]
    assert written.timestamp_ms + 2_000 <= int(letter["lapse-expired-at-ms"]) <= broker_now_ms()


@pytest.mark.feature("L13", "C3", "L10", "Q5", "S4", "C52")
@pytest.mark.parametrize("ahead_s", cases([300], [60], long=[-60]))
def test_a_worker_that_starts_with_a_wrong_clock_gives_messages_their_lifetimes(deploy: Deploy, ahead_s: int) -> None:
    """Messages wait for the worker already; none is dead-lettered before its deadline, and leases have their length."""
    here = deploy({"orders": QUEUE})
    queues = {"orders": QUEUE, "late": {**QUEUE, "topics": ["late-in{}"]}}
    here.configure(queues, {"prices": {"expiration": f"{LIFETIME_MS}ms"}})
    tail = here.apply().tail(f"dlq.{here.name('orders')}")
    admin = AdminClient({"bootstrap.servers": here.servers})
    for removed in admin.delete_topics([here.name("late-in")]).values():
        removed.result(15)
    waiting: list[bytes] = []

    def receive() -> None:
        with here.subscriber("orders", 10, timeout_s=60) as subscriber:
            while len(waiting) < 5 and (delivery := subscriber.receive(60)) is not None:
                assert abs(delivery.lease_ends_ms - broker_now_ms()) <= LEASE_MS + _UNCERTAIN_MS
                waiting.append(delivery.value or b"")
                delivery.acknowledge()

    here.write("orders", *(f"{number}" for number in range(5)), headers=ttl(40_000))
    receiver = threading.Thread(target=receive)
    receiver.start()
    skewed = Skewed(here, ahead_s)
    skewed.worker.wait_for_shards(3, 90)
    receiver.join(60)
    assert waiting == [b"0", b"1", b"2", b"3", b"4"]
    assert not tail.drain()
    (price,) = here.write("prices", "{}", key=b"a")
    deadline_ms = price.timestamp_ms + LIFETIME_MS
    with SowClient(here.name("prices"), connection=here.connection) as prices:
        until(lambda: [one.expires_at_ms for one in prices.query()] == [deadline_ms], "the record")
        assert_right_times(here)
        until(lambda: not list(prices.query()), "its end")
        assert broker_now_ms() >= deadline_ms - _UNCERTAIN_MS
    create(admin, NewTopic(here.name("late-in"), 1, 1))
    with here.subscriber("late", timeout_s=60) as subscriber:
        (written,) = here.write("late-in", "came late", headers=ttl(60_000))
        delivery = subscriber.receive(60)
        assert delivery is not None
        assert delivery.expires_at_ms == written.timestamp_ms + 60_000
        delivery.acknowledge()
    where = "ahead of" if ahead_s > 0 else "behind"
    until(lambda: f"ms {where} the broker's" in skewed.worker.text, "a warning")


@pytest.mark.feature("L13", "C3", "L10", "Q5")
def test_a_wall_clock_that_steps_while_a_worker_runs_changes_nothing(deploy: Deploy) -> None:
    here = deploy({"orders": QUEUE}).apply()
    skewed = Skewed(here, 0)
    skewed.worker.wait_for_shards(1)
    assert_right_times(here)
    for ahead_s in (300, -3_600, 60):
        skewed.step(ahead_s)
        assert_right_times(here)
    assert skewed.worker.running


@pytest.mark.feature("L13", "C3", "Q16", "Q5")
@pytest.mark.parametrize("ahead_s", cases([300], long=[-60]))
def test_a_worker_with_a_wrong_clock_takes_leases_over_as_they_are(deploy: Deploy, ahead_s: int) -> None:
    """The first worker is right and is killed while it has leased a message; the one that stood by is wrong."""
    queue = {**QUEUE, "lease_period": "30s", "max_deliveries": 1}
    here = deploy({"orders": queue}, session_timeout="2s", standby=True).apply()
    right = here.worker().wait_for_shards(1)
    skewed = Skewed(here, ahead_s)
    until(lambda: "standing by" in skewed.worker.text, "the standby", 60)
    here.write("orders", "leased", headers=ttl(120_000))
    with here.subscriber("orders", timeout_s=60) as subscriber:
        delivery = subscriber.receive(10)
        assert delivery is not None
        right.kill()
        skewed.worker.wait_for_shards(1, 60)
        with here.queue("orders") as queue:
            (leased,) = queue.peek()
        assert leased.state == "leased"
        delivery.acknowledge()
        until(lambda: here.depth("orders")["depth"] == 0, "the acknowledgment of the delivery that is still leased")
    assert not here.tail(f"dlq.{here.name('orders')}").drain()


@pytest.mark.feature("L13", "C38")
def test_what_a_worker_with_a_wrong_clock_forwards_arrives_now(deploy: Deploy) -> None:
    """The target has the timestamps of its producers: the worker is one, and its lifetimes begin there."""
    here = deploy({"orders": {"forward_to": "next{}"}, "next": {}}).apply()
    stamp_by_producers(here.servers, here.name("next"))
    Skewed(here, 300).worker.wait_for_shards(2)
    here.write("orders", "on")
    (forwarded,) = here.tail(here.name("next")).wait(1)
    assert abs(forwarded.timestamp()[1] - broker_now_ms()) < 60_000


@pytest.mark.feature("C3", "L10", "Q5", "S4", "S5")
@pytest.mark.slow
def test_a_brokers_clock_that_is_set_back_by_an_hour_makes_nothing_due(deploy: Deploy) -> None:
    """The worker goes on. Nothing expires early, no lease ends early, and nothing waits for an hour."""
    with SkewedKafka(3_600_000) as kafka:
        here = deploy({"orders": QUEUE}, servers=kafka.bootstrap_servers)
        here.configure({"orders": QUEUE}, {"prices": {"expiration": f"{LIFETIME_MS}ms"}})
        worker = here.apply().worker().wait_for_shards(2)
        with here.subscriber("orders", timeout_s=60) as subscriber:
            here.write("orders", "before", headers=ttl(LIFETIME_MS))
            delivery = subscriber.receive(20)
            assert delivery is not None
            delivery.acknowledge()
        here.write("prices", "{}", key=b"before", headers=ttl(1))
        with SowClient(here.name("prices"), connection=here.connection) as prices:
            until(lambda: not list(prices.query()), "the clock is known")
        kafka.step(0)
        with SowClient(here.name("prices"), connection=here.connection, timeout_s=60) as prices:
            (price,) = here.write("prices", "{}", key=b"a")
            deadline_ms = price.timestamp_ms + LIFETIME_MS
            assert abs(price.timestamp_ms - broker_now_ms()) < 60_000
            until(lambda: [one.expires_at_ms for one in prices.query()] == [deadline_ms], "the record")
            assert_right_times(here)
            until(lambda: not list(prices.query()), "its end")
            assert broker_now_ms() >= deadline_ms - _UNCERTAIN_MS
        until(lambda: "the broker's clock was set back by" in worker.text, "a warning")
        assert worker.running
