"""A broker that stands still while deliveries are on their way to it: what lands late is not worked on (L10)."""

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient

from lapse.embedded import EmbeddedKafka
from lapse.protocol import header, topic
from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.kafka.packed_record import packed
from lapse.runtime.kafka.producer import BatchProducer
from lapse.runtime.kafka.record_batch import Leased
from lapse.runtime.queue.unwritten import Row, take
from lapse.topic_creation import NewTopic
from lapse_client import Delivery, LapseError, QueueSubscriber
from support.kafka.created_topic import create
from support.kafka.log import Tail, until
from support.processes.deployment import Deploy, Deployment, broker_now_ms

LEASE_S = 6
STILL_S = 14
SLACK_MS = 2_000
"""How long it may take from the look at the lease to the look at the clock, on a machine with much to do."""

HASTY = 3_000
LASTING = 20_000
SHORT = 2_000


def written(servers: str, name: str, count: int) -> dict[int, list[bytes | None]]:
    """The values of that many records of a topic, by partition, in order."""
    tail = Tail(servers, name)
    records = tail.wait(count)
    tail.close()
    found: dict[int, list[bytes | None]] = {}
    for record in sorted(records, key=lambda one: (one.partition() or 0, one.offset() or 0)):
        found.setdefault(record.partition() or 0, []).append(record.value())
    return found


@pytest.mark.feature("L10")
def test_a_delivery_is_not_sent_when_its_lease_is_nearly_over(module_kafka: EmbeddedKafka) -> None:
    """However short the lease is. What is behind it in its partition, and what it shares a batch with, is sent.

    What the broker may have already is sent again as empty records: it keeps the first of the two.
    """
    servers, lease_s = module_kafka.bootstrap_servers, 1.0
    create(AdminClient({"bootstrap.servers": servers}), NewTopic("deliveries", 5, 1))

    def row(partition: int, value: bytes) -> Output:
        return Output("deliveries", partition, None, value, [(header.KIND, b"delivery")])

    async def run() -> None:
        producer = BatchProducer(servers, {})
        await producer.start()
        for safe in await producer.send([row(at, b"warm") for at in range(4)]):
            await safe
        other = BatchProducer(servers, {})
        await other.start()
        await other.send_one("deliveries", 4, None, b"warm")
        module_kafka.pause()
        for node in list(other.producer.client._conns.values()):
            node.close()  # its next batch waits until the broker answers to a new connection
        until_s = time.monotonic() + lease_s
        maybe: list[Leased] = []
        connecting = await other.send([row(4, b"late"), row(4, b"answer")], {0}, until_s, maybe)
        mixed = [row(0, b"sent"), row(0, b"sent as well"), row(0, b"answer sent")]
        under_way = await producer.send(mixed, {0, 1}, until_s, maybe)
        await asyncio.sleep(0.2)  # it is on its way to the broker that stands still
        for one in (producer, other):
            assert not one.producer._message_accumulator._batches, "nothing is left here"
        packed_one = Packed("deliveries", 2, [packed(None, b"late", 0, b"")])
        late = [row(1, b"late"), row(1, b"answer"), packed_one, row(3, b"at most once")]
        unsent: list[Leased] = []
        under_way += await producer.send(late, {0, 2}, until_s, unsent)
        await asyncio.sleep(lease_s)
        for node in list(producer.producer.client._conns.values()):
            node.close()  # the answer is lost, so the first batch is sent again
        module_kafka.resume()
        results = [await safe for safe in under_way]
        assert [one is None for one in results] == [False, False, True, False]
        for safe in await producer.send([row(at, b"next") for at in range(4)], {0, 1, 2, 3}, time.monotonic() + 60):
            await safe
        assert [one.is_left_out for one in (*maybe, *unsent)] == [True, False, True, True], "what Kafka never got"
        assert [[record.value for record in one.records()] for one in unsent] == [[b"late", b"answer"], [b"late"]]
        for safe in [*connecting, *await other.send([row(4, b"next")], {0}, time.monotonic() + 60)]:
            await safe
        await producer.stop()
        await other.stop()

    asyncio.run(run())
    assert written(servers, "deliveries", 4 + 3 + 2 + 4 + 4) == {
        0: [b"warm", b"sent", b"sent as well", b"answer sent", b"next"],
        1: [b"warm", b"answer", b"next"],
        2: [b"warm", b"next"],
        3: [b"warm", b"at most once", b"next"],
        4: [b"warm", None, b"answer", b"next"],
    }


@pytest.mark.feature("C55", "Q9", "L10", "C24", "X10")
def test_no_message_dies_of_a_delivery_that_was_too_late_to_be_sent(
    module_kafka: EmbeddedKafka, deploy: Deploy
) -> None:
    """What a slow broker keeps from being sent does not count. Each delivery that a message died of is in the topic."""
    queue = {"lease_period": "500ms", "max_deliveries": 1}
    here = deploy({"hasty": queue}, servers=module_kafka.bootstrap_servers).apply()
    here.worker(supervised=True).wait_for_shards(1)
    here.write("hasty", *[b"%d" % at for at in range(HASTY)])
    with here.subscriber("hasty", 50) as subscriber:
        for _ in range(HASTY // 10):
            _settle_next(subscriber)
        module_kafka.pause()
        time.sleep(1.5)
        module_kafka.resume()
        while _settle_next(subscriber):
            pass
        until(lambda: not here.depth("hasty")["depth"], "all have left", 60)
    delivered: set[Row] = set()
    for record in here.tail(topic.deliveries(here.name("hasty"))).drain():
        take(SimpleNamespace(headers=record.headers() or [], value=record.value()), 0, delivered)
    seen = {(offset, count) for _, _, _, offset, count in delivered}
    died = [one for one in here.events("hasty") if "max_deliveries" in one.reasons]
    lost = {offset for one in died for some in one.messages for offset in range(some.first, some.last + 1)}
    assert not {offset for offset in lost if (offset, 1) not in seen}, "nobody could see them"
    replayed = here.lapse("simulate", here.name("hasty"), "--replay", "--json")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


def _settle_next(subscriber: QueueSubscriber) -> bool:
    delivery = subscriber.receive(1)
    if delivery is not None:
        delivery.acknowledge()
    return delivery is not None


class Seen(NamedTuple):
    """When the application got a message, and until when it might."""

    bookmark: str
    at_ms: int
    lease_until_ms: int
    expires_at_ms: int | None


def written_late_ms(here: Deployment) -> list[int]:
    """The timestamps of deliveries that Kafka stored after their leases were over."""
    late_ms = []
    for record in here.tail(topic.deliveries(here.name("orders"))).drain():
        until_ms = dict(record.headers() or ()).get("lapse-lease-until-ms")
        if until_ms is not None and record.timestamp()[1] > int(until_ms):
            late_ms.append(record.timestamp()[1])
    return late_ms


@pytest.mark.feature("L10", "Q5", "Q16", "X3")
def test_what_lands_after_its_lease_or_deadline_reaches_no_application(
    module_kafka: EmbeddedKafka, deploy: Deploy
) -> None:
    queue = {"expiration": "enabled", "lease_period": f"{LEASE_S}s"}
    here = deploy({"orders": queue}, servers=module_kafka.bootstrap_servers).apply()
    worker = here.worker(supervised=True).wait_for_shards(1)
    here.write("orders", *[b"%d" % at for at in range(LASTING)])
    here.write("orders", *[b"short"] * SHORT, headers=[("lapse-ttl-ms", b"9000")])
    seen: list[Seen] = []
    ended = threading.Event()

    def take(delivery: Delivery) -> None:
        assert delivery.lease_until_ms is not None
        times = (broker_now_ms(), delivery.lease_until_ms, delivery.expires_at_ms)
        seen.append(Seen(str(delivery.bookmark), *times))
        delivery.acknowledge()

    def receive() -> None:
        with here.subscriber("orders", 200) as subscriber:
            while not ended.is_set():
                delivery = subscriber.receive(0.5)
                if delivery is not None:
                    take(delivery)

    receiver = threading.Thread(target=receive)
    receiver.start()
    try:
        until(lambda: len(seen) > LASTING // 20, "it is at work", 40)
        module_kafka.pause()
        time.sleep(STILL_S)
        module_kafka.resume()
        resumed_ms = broker_now_ms()

        def is_done() -> bool:
            try:
                depth = here.depth("orders")
            except LapseError:  # the worker is about to come back
                return False
            return not depth["depth"] and not depth["dying"]

        until(is_done, "all have left", 120)
    finally:
        ended.set()
        receiver.join(30)
    late = [one for one in seen if one.at_ms > one.lease_until_ms + SLACK_MS]
    assert not late, "a lease was over when the application got its message"
    late = [one for one in seen if one.expires_at_ms is not None and one.at_ms > one.expires_at_ms + SLACK_MS]
    assert not late, "a message had expired when the application got it"
    acknowledged = {one.bookmark for one in seen}
    assert len(acknowledged) >= LASTING, "none is lost"

    # A plain client sees by the header which delivery is over, and what was given up is not written again and again.
    overdue_ms = [stamp_ms - resumed_ms for stamp_ms in written_late_ms(here)]
    assert all(one < 30_000 for one in overdue_ms), overdue_ms
    assert not overdue_ms or "it is given up" in worker.text, "it was sent although its lease was over"
