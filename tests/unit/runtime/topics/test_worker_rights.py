"""Which rights a worker needs on a topic, for all that it does with it (C52)."""

import pytest

from lapse.config.document import loads
from lapse.runtime.topics.access import Grant
from lapse.runtime.topics.topology import Topology

CONFIG = """
[queue.orders]
forward_to = "archive"
dead_letter = "failed"
[queue.archive]
[queue.failed]
[sow.prices]
"""


def lacking(**lacks: tuple[str, ...]) -> dict[str, tuple[tuple[str, ...], str]]:
    """What differs if rights are lacking: by topic, whom that bars, and what is said."""
    topics = {name.replace("_", "."): some for name, some in lacks.items()}
    config = loads(CONFIG)
    existing = {one.name: one.partitions for one in Topology(config, {}).wanted()}
    return {one.topic: (one.bars, one.what) for one in Topology(config, existing, lacks=topics).differences()}


@pytest.mark.feature("C52", "C38", "C55")
def test_a_topic_with_several_purposes_takes_the_rights_for_all_of_them() -> None:
    needed = Topology(loads(CONFIG), {}).operations()
    assert needed["orders"] == ("Read",)
    assert needed["archive"] == ("Read", "Write"), "a queue reads what another one forwards to it"
    assert needed["failed"] == ("Read", "Write"), "a queue reads the dead letters of another one"
    assert needed["lapse.orders.deliveries"] == ("Read", "Write"), "after a crash it looks for what was written"
    assert needed["lapse.prices.deliveries"] == ("Write",)
    assert needed["lapse.sow.prices"] == ("Write",)
    assert needed["lapse.orders.commands"] == needed["lapse-orders-changelog"] == ("Read", "Write")
    alone = Topology(loads('[queue.q]\nforward_to = "elsewhere"'), {}).operations()
    assert alone["elsewhere"] == ("Read", "Write"), "after a crash it looks for what was forwarded"


@pytest.mark.feature("C52", "C38")
def test_only_an_entity_that_cannot_do_without_a_right_is_not_served() -> None:
    assert lacking(archive=("Write",)) == {
        "archive": (("orders",), "we lack the right Write on it: have it granted; forwarded messages of orders")
    }
    ((barred, what),) = lacking(archive=("Read",)).values()
    assert barred == ("archive",)
    assert "underlying of archive; forwarded messages of orders: after a crash" in what
    ((barred, what),) = lacking(lapse_orders_deliveries=("Read",)).values()
    assert barred == ()
    assert "we lack the right Read on it: have it granted; deliveries of orders: after a crash" in what
    ((barred, _),) = lacking(archive=("Describe",)).values()
    assert set(barred) == {"archive", "orders"}
    ((barred, _),) = lacking(failed=("Read", "Write")).values()
    assert set(barred) == {"failed", "orders"}


@pytest.mark.feature("X4", "C38")
def test_workers_are_given_what_they_need_on_topics_of_publishers() -> None:
    """A right for one principal on a topic denies it to all others."""
    users = """
[security]
principal = "User:workers"
worker_key_file = "worker.key"
[users.alice]
key_file = "alice.key"
principal = "User:alice"
entitlements = { ".*" = { publish = true } }
"""
    config = loads(CONFIG + users)
    existing = {one.name: one.partitions for one in Topology(config, {}).wanted()}
    grants = Topology(config, existing).grants()
    for topic, operations in (("orders", {"READ"}), ("archive", {"READ", "WRITE"}), ("failed", {"READ", "WRITE"})):
        own = {one.operation for one in grants if one.topic == topic and one.principal == "User:workers"}
        assert own == operations, topic
    assert Grant("archive", "User:alice", "WRITE") in grants
