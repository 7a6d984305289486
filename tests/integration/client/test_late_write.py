"""A broker that stands still while deliveries are on their way to it: what lands late is not worked on (L10)."""

import threading
import time
from typing import NamedTuple

import pytest

from lapse.embedded import EmbeddedKafka
from lapse.protocol import topic
from lapse_client import Delivery, LapseError
from support.kafka.log import until
from support.processes.deployment import Deploy, broker_now_ms

LEASE_S = 6
STILL_S = 14
SLACK_MS = 2_000
"""How long it may take from the look at the lease to the look at the clock, on a machine with much to do."""

LASTING = 20_000
SHORT = 2_000


class Seen(NamedTuple):
    """When the application got a message, and until when it might."""

    bookmark: str
    at_ms: int
    lease_until_ms: int
    expires_at_ms: int | None


@pytest.mark.feature("L10", "Q5", "Q16", "X3")
def test_what_lands_after_its_lease_or_deadline_reaches_no_application(
    own_kafka: EmbeddedKafka, deploy: Deploy
) -> None:
    queue = {"expiration": "enabled", "lease_period": f"{LEASE_S}s"}
    here = deploy({"orders": queue}, servers=own_kafka.bootstrap_servers).apply()
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
        own_kafka.pause()
        time.sleep(STILL_S)
        own_kafka.resume()
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
    overdue_ms = []
    for record in here.tail(topic.deliveries(here.name("orders"))).drain():
        headers = dict(record.headers() or ())
        if "lapse-lease-until-ms" in headers:
            stamp_ms = record.timestamp()[1]
            if stamp_ms > int(headers["lapse-lease-until-ms"]):
                overdue_ms.append(stamp_ms - resumed_ms)
    assert all(one < 30_000 for one in overdue_ms), overdue_ms
    assert not overdue_ms or "it is given up" in worker.text, "it was sent although its lease was over"
