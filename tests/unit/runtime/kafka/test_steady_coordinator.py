"""The coordinator of the group's members, without a broker."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("faust")

from aiokafka.cluster import ClusterMetadata
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import KafkaConnectionError

from lapse.runtime.kafka.group.steady_coordinator import SteadyCoordinator
from unit.runtime.kafka.test_metadata import Client


@pytest.mark.feature("C52")
@pytest.mark.parametrize("given_up", [True, False])
def test_a_commit_that_fails_after_it_was_given_up_is_no_unread_error(
    monkeypatch: pytest.MonkeyPatch, given_up: bool
) -> None:
    """Who still waits for it gets its error."""
    unread = list[dict[str, Any]]()

    async def fail(*_: Any) -> None:
        await asyncio.sleep(0.01)
        raise KafkaConnectionError("the broker is silent")

    async def known(_: Any) -> None:
        return

    async def live() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, about: unread.append(about))
        coordinator = object.__new__(SteadyCoordinator)
        coordinator._commit_lock = asyncio.Lock()
        coordinator._closing = asyncio.get_running_loop().create_future()
        coordinator._retry_backoff_ms = 10
        with pytest.raises(TimeoutError if given_up else KafkaConnectionError):
            async with asyncio.timeout(0 if given_up else 20):
                await coordinator.commit_offsets(None, {"a": 1})
        await asyncio.sleep(0.05)
        gc.collect()

    monkeypatch.setattr(KafkaConnectionError, "retriable", False)
    monkeypatch.setattr(GroupCoordinator, "_do_commit_offsets", fail)
    monkeypatch.setattr(GroupCoordinator, "ensure_coordinator_known", known)
    asyncio.run(live())
    assert unread == []


@pytest.mark.feature("Q23")
def test_a_change_of_topics_while_the_member_joins_is_no_unread_error() -> None:
    unread = list[dict[str, Any]]()

    async def live() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, about: unread.append(about))
        coordinator: Any = object.__new__(SteadyCoordinator)
        coordinator._commit_refresh_task = None
        coordinator._retry_backoff_ms = 10
        coordinator._assignors = [SimpleNamespace(name="steady", on_assignment=lambda _: None)]
        subscription = SimpleNamespace(
            subscription=SimpleNamespace(assignment=None),
            assign_from_subscribed=lambda _: None,
            assigned_partitions=lambda: (),
            listener=None,
        )
        coordinator._subscription = subscription
        coordinator.group_id = "lapse"
        given = ConsumerProtocolMemberAssignment(0, [("a", [0])], b"").encode()
        await coordinator._on_join_complete(1, "one", "steady", given)
        await asyncio.sleep(0.05)
        coordinator._commit_refresh_task = None
        gc.collect()

    asyncio.run(live())
    assert unread == []


@pytest.mark.feature("C90", "Q23")
def test_the_leader_does_not_wait_for_metadata_of_topics_that_it_knows() -> None:
    """A refresh of all topics may be under way, and take seconds while the broker creates or deletes topics."""
    counted = list[dict[str, int]]()

    def assign(cluster: ClusterMetadata, members: dict[str, Any]) -> None:
        topics = {topic for member in members.values() for topic in member.subscription}
        counted.append({topic: len(cluster.partitions_for_topic(topic) or ()) for topic in topics})

    async def live() -> None:
        coordinator: Any = object.__new__(SteadyCoordinator)
        client = Client()
        coordinator._client, coordinator._cluster = client, client.cluster
        coordinator._assignors = [SimpleNamespace(name="steady", assign=assign)]
        for *topics, refresh in (("a", "b", None), ("a", "b", "c", KafkaConnectionError("waited"))):
            client._md_update_fut = None if refresh is None else asyncio.get_running_loop().create_future()
            if client._md_update_fut is not None:
                client._md_update_fut.set_exception(refresh)
                client._md_update_fut.exception()
            await client._metadata_update(client.cluster, topics)
            subscription = SimpleNamespace(topics=frozenset(topics))
            coordinator._subscription = SimpleNamespace(subscription=subscription, subscribed_pattern=None)
            metadata = ConsumerProtocolMemberMetadata(0, topics, b"").encode()
            await coordinator._perform_assignment(SimpleNamespace(group_protocol="steady", members=[("one", metadata)]))

    asyncio.run(live())
    assert counted == [{"a": 2, "b": 2}, {"a": 2, "b": 2, "c": 2}]
