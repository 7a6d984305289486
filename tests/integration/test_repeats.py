"""Idempotent publishing with a real worker: a repeat is dropped, told, and dropped after a crash, too."""

import pytest

from lapse_client.publisher import Publisher
from support.deployment import Deploy
from support.log import until


@pytest.mark.feature("X6", "C43", "Q16")
def test_a_repeat_is_dropped_across_a_crash(deploy: Deploy) -> None:
    deployment = deploy({"once": {"expiration": "enabled"}, "thrice": {"dedup_window": "0s"}}).apply()
    worker = deployment.worker().wait_for_shards(2)
    for stem in ("once", "thrice"):
        with Publisher(deployment.connection) as publisher:
            for number in range(3):
                publisher.publish(deployment.name(stem), f"{number}", message_id="order-7")
    until(lambda: deployment.depth("once")["depth"] == 1, "the first")
    until(lambda: deployment.depth("thrice")["depth"] == 3, "all three")
    worker.kill()
    deployment.write("once", "again", "other", headers=[("lapse-message-id", b"order-7")])
    deployment.write("once", "another", headers=[("lapse-message-id", b"order-8")])
    deployment.worker().wait_for_shards(2)
    until(lambda: deployment.depth("once")["depth"] == 2, "the other one")
    with deployment.subscriber("once", 2) as subscriber:
        found = [subscriber.receive(10) for _ in range(2)]
        assert [one.value for one in found if one is not None] == [b"0", b"another"]
    repeated = {
        str(bookmark)
        for event in deployment.events("once")
        if event.event == "repeated"
        for some in event.messages
        for bookmark in some
    }
    assert repeated == {f"{deployment.name('once')}:0:{offset}" for offset in range(1, 5)}
