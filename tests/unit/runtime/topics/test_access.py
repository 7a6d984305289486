"""Which rights users and workers need on topics, and which of them a cluster has (X4)."""

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from lapse.config import loads
from lapse.runtime.topics.access import Access, Authorizer, Grant
from lapse.runtime.topics.advice import warnings
from lapse.runtime.topics.topology import Topology

pytestmark = pytest.mark.feature("X4")

CONFIG = loads(
    """
[security]
principal = "User:workers"
[queue.orders]
topics = ["orders", "returns"]
[queue.internal]
[users.alice]
key_env = "A"
principal = "User:alice"
[users.alice.entitlements.orders]
read = true
publish = true
[users.bob]
key_env = "B"
principal = "User:bob"
[users.bob.entitlements.orders]
read = true
"""
)


def binding(topic: str, principal: str, operation: str, kind: str = "LITERAL", host: str = "*") -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType[kind],
        principal,
        host,
        AclOperation[operation],
        AclPermissionType.ALLOW,
    )


def topology(access: Access) -> Topology:
    existing = {wanted.name: wanted.partitions for wanted in Topology(CONFIG, {}).wanted()}
    return Topology(CONFIG, existing, access=access)


def test_users_get_what_they_need_and_workers_keep_what_they_have() -> None:
    grants = topology(Access(Authorizer.ON)).grants()
    of_users = {str(one): one.topic for one in grants if one.principal != "User:workers"}
    assert [(one.topic, str(one)) for one in grants if one.principal == "User:alice"] == [
        ("lapse.orders.commands", "Write for User:alice"),
        ("lapse.orders.deliveries.alice", "Read for User:alice"),
        ("orders", "Write for User:alice"),
        ("returns", "Write for User:alice"),
    ]
    assert [one.topic for one in grants if one.principal == "User:bob"] == [
        "lapse.orders.commands",
        "lapse.orders.deliveries.bob",
    ]
    assert not any("internal" in topic for topic in of_users.values())
    shared = {one.topic for one in grants if one.principal != "User:workers"}
    assert {one.topic for one in grants if one.principal == "User:workers"} == shared


@pytest.mark.parametrize(
    ("some", "covers"),
    [
        (binding("lapse.orders.commands", "User:alice", "WRITE"), True),
        (binding("lapse.orders.commands", "User:alice", "ALL"), True),
        (binding("lapse.", "User:alice", "WRITE", "PREFIXED"), True),
        (binding("*", "User:*", "WRITE"), True),
        (binding("lapse.orders.commands", "User:alice", "READ"), False),
        (binding("lapse.orders.commands", "User:bob", "WRITE"), False),
        (binding("lapse.orders.commands2", "User:alice", "WRITE"), False),
        (binding("lapse.orders.commands", "User:alice", "WRITE", host="10.0.0.1"), False),
    ],
)
def test_a_right_may_be_there_in_several_ways(some: AclBinding, covers: bool) -> None:
    grant = Grant("lapse.orders.commands", "User:alice", "WRITE")
    assert Access(Authorizer.ON, (some,)).has(grant) is covers
    assert Access(Authorizer.ON, (some,)).lacks([grant]) == ([] if covers else [grant])


def test_missing_rights_are_shown_and_stop_no_worker() -> None:
    found = topology(Access(Authorizer.ON))
    (one,) = [one for one in found.differences() if one.topic == "returns"]
    assert one.what == "no right to Write for User:alice, Read for User:workers"
    assert one.mended == "granting it"
    found.servable()
    for authorizer in (Authorizer.OFF, Authorizer.UNKNOWN):
        assert topology(Access(authorizer)).differences() == []
    assert "the cluster has no authorizer" in warnings(topology(Access(Authorizer.OFF)))[0]
    assert "does not let lapse see its ACLs" in warnings(topology(Access(Authorizer.UNKNOWN)))[0]
    assert warnings(found) == []


def test_a_worker_needs_the_topics_of_its_users() -> None:
    found = topology(Access(Authorizer.OFF))
    del found.existing["lapse.orders.deliveries.bob"]
    (why,) = found.barred()["orders"]
    assert why == "lapse.orders.deliveries.bob: missing; deliveries of orders, 1 partition"
    assert "orders" not in found.servable().entities()


@pytest.mark.feature("C87")
def test_groups_and_filters_of_users_are_warned_of() -> None:
    """Only where a user reads a grouped queue through a filter."""
    config = loads(
        """
[queue.orders]
group_by = "/account"
[queue.plain]
[users.alice]
key_env = "A"
principal = "User:alice"
[users.alice.entitlements."orders|plain"]
read = true
filter = "/region = 'north'"
[users.bob]
key_env = "B"
principal = "User:bob"
[users.bob.entitlements.orders]
read = true
"""
    )
    existing = {wanted.name: wanted.partitions for wanted in Topology(config, {}).wanted()}
    (warning,) = [one for one in warnings(Topology(config, existing)) if "(C87)" in one]
    assert warning.startswith("queue orders: group_by, and alice sees only")
