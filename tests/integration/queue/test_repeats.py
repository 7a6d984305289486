"""Idempotent publishing with a real worker: a repeat is dropped, told, and dropped after a crash, too."""

import pytest

from lapse_client.publisher.publisher import Publisher
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment


def repeated(deployment: Deployment, stem: str) -> set[str]:
    """Bookmarks of the repeats that were told of; a worker that is killed may have told of one twice."""
    emitted = [event for event in deployment.events(stem) if event.event == "repeated"]
    return {str(bookmark) for event in emitted for some in event.messages for bookmark in some}


@pytest.mark.feature("X6", "C43", "C46")
def test_a_sow_topic_drops_repeats_across_a_crash_also_with_homes(deploy: Deploy) -> None:
    """One topic with its key in the record, one with keys from payloads over two partitions."""
    deployment = deploy({})
    deployment.configure({}, {"plain": {}, "homes": {"key": "/k", "partitions": 2}})
    worker = deployment.apply().worker().wait_for_shards(3)
    first = [("lapse-message-id", b"order-7")]
    for stem in ("plain", "homes"):
        deployment.write(stem, b'{"k": 1, "v": 1}', b'{"k": 1, "v": 2}', headers=first, key=b"1", partition=0)
    tails = {stem: deployment.tail(f"lapse.sow.{deployment.name(stem)}") for stem in ("plain", "homes")}
    for stem, tail in tails.items():
        tail.wait(1)
        until(lambda stem=stem: deployment.events(stem), "the repeat")
    worker.kill()
    for stem in ("plain", "homes"):
        deployment.write(stem, b'{"k": 1, "v": 3}', headers=first, key=b"1", partition=0)
    deployment.write("homes", b'{"k": 2, "v": 4}', headers=first, partition=1)
    deployment.write("plain", b'{"k": 2, "v": 4}', headers=[("lapse-message-id", b"order-8")], key=b"2")
    deployment.worker().wait_for_shards(3)
    for stem, tail in tails.items():
        until(lambda stem=stem: len(repeated(deployment, stem)) == 2, stem)
        values = sorted(one.value() or b"" for one in tail.wait(2))
        assert values == [b'{"k": 1, "v": 1}', b'{"k": 2, "v": 4}']


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
    assert repeated(deployment, "once") == {f"{deployment.name('once')}:0:{offset}" for offset in range(1, 5)}
