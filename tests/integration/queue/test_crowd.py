"""A crowd of messages that fall due together, and those who would have to wait for it (C60)."""

import threading
from contextlib import ExitStack
from typing import Self

import pytest
from confluent_kafka import Producer

from lapse.protocol import topic
from lapse_client import Queue
from support.kafka.log import until, write
from support.processes.deployment import Deploy, Deployment, broker_now_ms
from support.processes.noted_turns import NotedTurns, permitted_ms
from support.suite.at_length import AT_LENGTH, cases

CROWD = 100_000 if AT_LENGTH else 40_000
"""So many messages leave with a letter each, for a second at least, while others want their turn."""
SCHEDULED = 100_000


class Trickle:
    """Publishes to a queue a hundred times a second, and consumes from it, within a `with`."""

    def __init__(self, one: Deployment, stem: str) -> None:
        self._one, self._stem = one, stem
        self._over = threading.Event()
        self._threads = [threading.Thread(target=part, daemon=True) for part in (self._publish, self._consume)]
        self.delivered_ms: list[int] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _publish(self) -> None:
        producer = Producer({"bootstrap.servers": self._one.servers, "linger.ms": 0})
        while not self._over.wait(0.01):
            producer.produce(self._one.name(self._stem), b"small talk")
            producer.poll(0)
        producer.flush(20)

    def _consume(self) -> None:
        with self._one.subscriber(self._stem, 50, timeout_s=60) as subscriber:
            while not self._over.is_set():
                delivery = subscriber.receive(1)
                if delivery is not None:
                    self.delivered_ms.append(broker_now_ms())
                    delivery.acknowledge()


@pytest.mark.feature("C60", "L11", "D3")
@pytest.mark.timeout(180)
def test_deliveries_and_settlements_go_on_while_a_crowd_leaves(deploy: Deploy) -> None:
    one = deploy({"same": {"expiration": "enabled"}, "other": {}}).apply()
    noted = NotedTurns(one)
    noted.worker.wait_for_shards(2)
    with ExitStack() as trickling, one.queue("same") as queue:
        queue.pause()
        due_ms = broker_now_ms() + 30_000
        headers = [("lapse-expires-at-ms", b"%d" % due_ms)]
        one.write("same", *[b"x" * 100] * CROWD, headers=headers, **{"linger.ms": 20, "batch.size": 500_000})
        until(lambda: queue.depth()["depth"] == CROWD, "the crowd is there", 60)
        assert broker_now_ms() < due_ms, "the machine is too slow for this test"
        tail = one.tail(topic.dead_letters(one.name("same")), from_end=True)
        until(lambda: broker_now_ms() >= due_ms - 8_000, "it is nearly due", 60)  # what trickles before shows nothing
        trickles = [trickling.enter_context(Trickle(one, stem)) for stem in ("same", "other")]
        until(lambda: queue.depth()["subscriptions"] == 1, "it has a consumer", 60)
        until(lambda: trickles[1].delivered_ms, "the other consumes", 60)
        until(lambda: broker_now_ms() >= due_ms, "it is due", 60)
        queue.resume()  # not before, so that nobody takes any of the crowd
        # What anybody may send meanwhile; it had the whole crowd leave at once, and all others wait for that.
        settlement = b'{"command": "acknowledge", "filter": "/none = 1", "answer": "none"}'
        write(one.servers, topic.commands(one.name("same")), [b'{"command": "nonsense"}', settlement])
        letters = tail.wait(CROWD, 120)
    offsets = {dict(letter.headers() or ())["__dlq.errors.offset"] for letter in letters}
    assert len(letters) == len(offsets) == CROWD, "each has one letter"
    first_ms, last_ms = letters[0].timestamp()[1], letters[-1].timestamp()[1]
    for trickle in trickles:
        turns = {at_ms // 20 for at_ms in trickle.delivered_ms if first_ms < at_ms < last_ms}
        assert len(turns) >= 4, f"{len(turns)} in {last_ms - first_ms} ms: the crowd went first"
    assert 0 < noted.longest_ms(due_ms, last_ms) < permitted_ms()


@pytest.mark.feature("L11", "C60", "Q15")
@pytest.mark.timeout(180)
def test_depth_and_peek_do_not_tell_of_a_crowd_that_has_expired_and_is_still_leaving(deploy: Deploy) -> None:
    one = deploy({"same": {"expiration": "enabled"}}).apply()
    one.worker().wait_for_shards(1)
    due_ms = broker_now_ms() + 20_000
    headers = [("lapse-expires-at-ms", b"%d" % due_ms)]
    one.write("same", *[b"x" * 100] * CROWD, headers=headers, **{"linger.ms": 20, "batch.size": 500_000})
    one.write("same", b"stays")
    with one.queue("same") as queue:
        until(lambda: queue.depth()["depth"] == CROWD + 1, "the crowd is there", 60)
        assert broker_now_ms() < due_ms, "the machine is too slow for this test"
        tail = one.tail(topic.dead_letters(one.name("same")), from_end=True)
        until(lambda: broker_now_ms() >= due_ms, "it is due", 60)
        asked, letters = 0, 0
        while letters < CROWD:
            depth, peeked = queue.depth(), queue.peek(top_n=2)
            assert (depth["available"], depth["depth"], len(peeked)) == (1, 1, 1), f"{letters} have left"
            letters = len(tail.poll())
            asked += 1
    assert asked >= 3, "the crowd was gone before anybody looked"


@pytest.mark.feature("C60", "C37", "C76", "C83")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("comes_due", cases([False], [True]), ids=lambda due: "due" if due else "purged")
def test_another_queue_goes_on_while_a_crowd_leaves_its_schedule(deploy: Deploy, comes_due: bool) -> None:
    """It is purged, or comes due."""
    one = deploy({"same": {}, "other": {}}).apply()
    noted = NotedTurns(one)
    noted.worker.wait_for_shards(2)
    due_ms = broker_now_ms() + (30_000 if comes_due else 3_600_000)
    headers = [("lapse-enqueue-at-ms", b"%d" % due_ms)]
    one.write("same", *[b"x"] * SCHEDULED, headers=headers, **{"linger.ms": 20, "batch.size": 500_000})
    with Queue(one.name("same"), connection=one.connection, timeout_s=90) as queue:
        until(lambda: queue.depth()["scheduled"] == SCHEDULED, "the crowd is there", 60)
        with Trickle(one, "other") as trickle:
            until(lambda: trickle.delivered_ms, "the other consumes", 60)
            if comes_due:
                assert broker_now_ms() < due_ms, "the machine is too slow for this test"
                until(lambda: broker_now_ms() >= due_ms, "it is due", 60)
            first_ms = broker_now_ms()
            if comes_due:
                until(lambda: queue.depth()["available"] == SCHEDULED, "each has its place", 60)
            else:
                counts = queue.purge()
                assert (counts["removed"], counts["scheduled"]) == (SCHEDULED, SCHEDULED)
            last_ms = broker_now_ms()
            one.write("same", b"stays")
        left = SCHEDULED + 1 if comes_due else 1
        until(lambda: queue.depth()["available"] == left, "what came behind it")
        assert queue.depth()["scheduled"] == 0
    turns = {at_ms // 20 for at_ms in trickle.delivered_ms if first_ms < at_ms < last_ms}
    assert len(turns) >= 10, f"{len(turns)} in {last_ms - first_ms} ms: the crowd went first"
    assert 0 < noted.longest_ms(first_ms, last_ms) < permitted_ms()
