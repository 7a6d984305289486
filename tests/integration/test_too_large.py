"""Messages that no topic of lapse takes, as a producer's compression let them in: others pass, no worker stops."""

import pytest

from support.deployment import Deploy
from support.log import until

HUGE = b" " * 9_000_000
SQUEEZED = {"compression.type": "zstd", "message.max.bytes": 100_000_000}


@pytest.mark.feature("X7", "C27", "Q9", "S1")
def test_a_message_that_is_too_large_to_be_delivered_or_lettered_stops_nobody(deploy: Deploy) -> None:
    deployment = deploy({})
    deployment.configure({"orders": {"max_deliveries": 1, "lease_period": "1s"}}, {"prices": {}})
    worker = deployment.apply().worker().wait_for_shards(2)
    deployment.write("orders", HUGE, **SQUEEZED)
    deployment.write("orders", b"next")
    deployment.write("prices", HUGE, key=b"k", **SQUEEZED)
    deployment.write("prices", b"1", key=b"k")
    with deployment.subscriber("orders", 2) as subscriber:
        delivery = subscriber.receive(20)
        assert delivery is not None
        assert delivery.value == b"next"
        delivery.acknowledge()
        until(lambda: deployment.depth("orders")["dying"] == 1, "the message at its end")
    assert deployment.depth("orders")["depth"] == 0
    (record,) = deployment.tail(f"lapse.sow.{deployment.name('prices')}").wait(1)
    assert record.value() == b"1"
    (told,) = [one for one in deployment.events("prices") if one.event == "dying"]
    assert told.reasons == ("undecodable",)
    assert "9,000,001 bytes" in told.detail
    assert worker.running
