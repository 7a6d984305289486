"""The group's leader computes what Faust would, and goes on fetching meanwhile (C90)."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("faust")  # the worker's packages are an extra

from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.protocol import ConsumerProtocol
from aiokafka.protocol.group import JoinGroupResponse_v2
from aiokafka.protocol.metadata import MetadataResponse_v5
from faust.assignor.partition_assignor import PartitionAssignor
from faust.types import TP
from yarl import URL

from lapse.runtime.kafka.group.assignor import SteadyAssignor
from lapse.runtime.kafka.group.steady_coordinator import SteadyCoordinator

pytestmark = pytest.mark.feature("C90")

ENTITIES = {f"q{number}": [f"q{number}", f"lapse.q{number}.commands", f"q{number}-changelog"] for number in range(5)}
TOPICS = [topic for topics in ENTITIES.values() for topic in topics]


def app(url: str) -> Any:
    """What an assignor needs of a worker."""
    nothing = lambda *_: None  # noqa: E731
    return SimpleNamespace(
        tables=SimpleNamespace(data={}, changelog_topics={topics[2] for topics in ENTITIES.values()}),
        tracer=None,
        conf=SimpleNamespace(canonical_url=URL(url)),
        entities={name: SimpleNamespace(topics_read=lambda some=some: set(some)) for name, some in ENTITIES.items()},
        sensors=SimpleNamespace(
            on_assignment_start=nothing, on_assignment_completed=nothing, on_assignment_error=nothing
        ),
    )


def cluster(count: int = 2) -> ClusterMetadata:
    found = ClusterMetadata()
    partitions = [(0, number, 1, [1], [1], []) for number in range(count)]
    topics = [(0, topic, False, partitions) for topic in TOPICS]
    found.update_metadata(MetadataResponse_v5(0, [(1, "broker", 9092, None)], "c", 1, topics))
    return found


def over_the_wire(kind: Any, sent: Any) -> Any:
    return kind.decode(sent.encode())


def test_the_leader_knows_whether_its_worker_is_alone() -> None:
    leader, other = SteadyAssignor(app("http://a:1")), SteadyAssignor(app("http://b:1"))

    def balance(leads: SteadyAssignor, **members: SteadyAssignor) -> None:
        said = {name: one.metadata(set(TOPICS)) for name, one in members.items()}
        given = leads.assign(cluster(), said)
        for name, one in members.items():
            one.on_assignment(given[name])

    assert leader.members == 0
    balance(leader, a=leader)
    assert leader.members == 1
    balance(leader, a=leader, b=other)
    assert (leader.members, other.members) == (2, 0)
    balance(other, a=leader, b=other)
    assert (leader.members, other.members) == (0, 2)


def test_members_learn_what_they_have_those_with_fausts_own_assignor_as_well() -> None:
    leader, other = SteadyAssignor(app("http://a:1")), SteadyAssignor(app("http://b:1"))
    members = {"a": leader, "b": other}
    for _ in range(3):
        said = {
            name: over_the_wire(ConsumerProtocol.METADATA, one.metadata(set(TOPICS))) for name, one in members.items()
        }
        given = leader.assign(cluster(), said)
        for name, one in members.items():
            one.on_assignment(over_the_wire(ConsumerProtocol.ASSIGNMENT, given[name]))
    assert leader.assigned_actives() | other.assigned_actives() == {
        TP(topic, at) for topic in TOPICS for at in range(2)
    }
    assert not leader.assigned_actives() & other.assigned_actives()
    assert len(leader.assigned_actives()) == len(TOPICS)
    faust = PartitionAssignor(app("http://b:1"))
    faust.on_assignment(over_the_wire(ConsumerProtocol.ASSIGNMENT, given["b"]))  # it checks all of it
    assert faust.assigned_actives() == other.assigned_actives()
    assert not faust.assigned_standbys()


@pytest.mark.parametrize("at_last", [2, 3])
def test_the_loop_of_the_leader_goes_on_while_assignments_are_computed(at_last: int) -> None:
    """Partitions that come meanwhile are assigned, too: nobody joins the group again for them."""

    async def run() -> None:
        computing, goes_on = threading.Event(), threading.Event()
        assignor = SteadyAssignor(app("http://a:1"))
        compute = assignor.assign

        def slow(*arguments: Any) -> Any:
            found = compute(*arguments)
            computing.set()
            assert goes_on.wait(20)
            return found

        assignor.assign = slow  # type: ignore[method-assign]
        one: Any = object.__new__(SteadyCoordinator)

        async def known() -> None:
            """All metadata are there."""

        asked: list[set[str]] = []
        one._assignors, one._cluster = (assignor,), cluster()
        one._client = SimpleNamespace(set_topics=asked.append, _maybe_wait_metadata=known)
        one._subscription = SimpleNamespace(subscribed_pattern=None)
        said = assignor.metadata(set(TOPICS)).encode()
        response = JoinGroupResponse_v2(0, 0, 1, assignor.name, "a", "a", [("a", said)])
        task = asyncio.create_task(one._perform_assignment(response))
        assert await asyncio.to_thread(computing.wait, 20)
        assert not task.done()
        one._cluster._partitions = cluster(at_last)._partitions
        goes_on.set()
        given = dict((await task)["a"].assignment)
        assert given == {topic: [*range(at_last)] for topic in TOPICS}
        assert asked == [set(TOPICS)]
        assert one._metadata_snapshot == dict.fromkeys(TOPICS, at_last)

    asyncio.run(run())
