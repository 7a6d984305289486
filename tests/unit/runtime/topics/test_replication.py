"""Warnings of topics that are lost with one broker; the cluster of several brokers is one of metadata only."""

from types import SimpleNamespace

import pytest

pytest.importorskip("faust")

from lapse.config import loads
from lapse.protocol import topic as names
from lapse.runtime.topics import topic_lookup
from lapse.runtime.topics.advice import warnings
from lapse.runtime.topics.replication import Copies
from lapse.runtime.topics.topology import Topology

pytestmark = pytest.mark.feature("X7")


def advice_for(factor: int, brokers: int, copies: Copies) -> list[str]:
    """The warnings where all topics have the same copies."""
    config = loads(f"[lapse]\nreplication_factor = {factor}\n[queue.orders]\n")
    wanted = {one.name: one.partitions for one in Topology(config, {}).wanted()}
    return warnings(Topology(config, wanted, copies=dict.fromkeys(wanted, copies), brokers=brokers))


def test_one_broker_has_no_choice() -> None:
    assert advice_for(1, 1, Copies(1, 1)) == []


def test_one_copy_on_several_brokers_is_reported() -> None:
    factor, alone = advice_for(1, 3, Copies(1, 1))
    assert "replication_factor = 1 on a cluster of 3 brokers" in factor
    for name in (names.changelog("lapse", "orders"), names.commands("orders"), "dlq.orders"):
        assert name in alone
    assert names.events("orders") not in alone


@pytest.mark.parametrize(("brokers", "shown"), [(1, "1 broker:"), (2, "2 brokers:")])
def test_more_copies_than_brokers_are_reported(brokers: int, shown: str) -> None:
    """The topics of an entity that is created next cannot be, also if those of `lapse.toml` are there."""
    (refusal,) = [one for one in advice_for(3, brokers, Copies(brokers, 1)) if "replication_factor" in one]
    assert f"replication_factor = 3 on a cluster of {shown} Kafka creates no topic with more copies" in refusal
    assert refusal.endswith(f"or set it to {brokers}")


def test_copies_that_need_not_be_in_sync_are_reported() -> None:
    (loose,) = advice_for(3, 3, Copies(3, 1))
    assert "min.insync.replicas = 1" in loose
    assert advice_for(3, 3, Copies(3, 2)) == []
    assert advice_for(3, 3, Copies(3)) == []  # without the right to ask


@pytest.mark.parametrize(("brokers", "copies"), [(1, Copies(1, 2)), (3, Copies(2, 3))])
def test_more_copies_asked_for_than_there_are_replicas_is_reported(brokers: int, copies: Copies) -> None:
    (short,) = advice_for(copies.most, brokers, copies)
    replicas = "1 replica" if copies.most == 1 else "2 replicas"
    assert f"min.insync.replicas = {copies.least}, and {replicas}: older brokers refuse every write there" in short


@pytest.mark.feature("C52")
def test_partitions_without_a_leader_are_reported_with_who_waits_for_them() -> None:
    found = advice_for(3, 3, Copies(3, 2, (1, 4)))
    (queue,) = (one for one in found if one.startswith("orders, partitions 1, 4: no broker leads it"))
    assert "Shards of orders wait for it" in queue
    assert any("Shards of this deployment wait for it" in one for one in found)
    partitions = {0: SimpleNamespace(id=0, leader=2, replicas=[2]), 1: SimpleNamespace(id=1, leader=-1, replicas=[3])}
    listed = SimpleNamespace(topics={"orders": SimpleNamespace(partitions=partitions)}, brokers={2: None})
    assert topic_lookup.Found.in_list(listed) == ({"orders": [1, 1]}, 1, {"orders": (1,)})


def test_the_partition_with_the_fewest_copies_counts() -> None:
    assert Copies.of([3, 1, 3], {"min.insync.replicas": SimpleNamespace(value="2")}) == Copies(1, 2)
    assert Copies.of([3], {}) == Copies(3)
