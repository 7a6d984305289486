"""The fetcher of thousands of partitions: what a turn asks for, counted."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.subscription_state import Assignment
from aiokafka.errors import TopicAuthorizationFailedError
from aiokafka.protocol.fetch import FetchRequest_v11, FetchResponse_v11

from lapse.runtime.kafka.fetcher import SwiftFetcher

MANY = [TopicPartition(f"topic-{number}", 0) for number in range(1_000)]
NODE = 1


def fetcher(leader: int = NODE) -> SwiftFetcher:
    """One that is connected to nobody, and knows where the partitions are."""
    made = SwiftFetcher.__new__(SwiftFetcher)
    topics = {tp.topic: {0: SimpleNamespace(leader=leader)} for tp in MANY}
    known: dict[str, Any] = {
        "_client": SimpleNamespace(cluster=SimpleNamespace(_partitions=topics)),
        "_asked_for": set(MANY),
        "_sessions": {},
        "_leaders": {},
        "_led_by": None,
        "_assigned": None,
        "_nodes": set(),
        "_awaited": {},
        "_first": 0,
        "_records": OrderedDict(),
        "_in_flight": set(),
        "_longest_wait_ms": 500,
        "_fetch_min_bytes": 1,
        "_fetch_max_bytes": 1 << 20,
        "_max_partition_fetch_bytes": 1 << 20,
        "_isolation_level": 1,
        "_fetcher_timeout": 0.2,
        "_wait_consume_future": None,
    }
    made.__dict__.update(known)
    return made


def assigned(tps: list[TopicPartition]) -> Assignment:
    made = Assignment(tps)
    for tp in tps:
        made.state_value(tp).seek(7)
    return made


def turn(one: SwiftFetcher, assignment: Assignment, session_id: int | None = 5) -> Any:
    """What the next request names: wait in ms, partitions, forgotten ones; answered if there is a session."""
    ((node, request),) = one._get_actions_per_node(assignment)[0]
    built = request.build(FetchRequest_v11)
    if session_id is not None:
        built.RESPONSE_TYPE.decode(BytesIO(FetchResponse_v11(0, 0, session_id, []).encode()))
    assert node == NODE
    return built.max_wait_time, len(built.topics), len(built.forgotten_topics_data)


@pytest.mark.feature("Q16")
def test_a_fetch_of_a_thousand_idle_partitions_names_none_of_them() -> None:
    async def turns() -> None:
        one, assignment = fetcher(), assigned(MANY)
        assert turn(one, assignment) == (500, 1_000, 0)
        assert turn(one, assignment) == (1_000, 0, 0)  # nothing happens: the broker is asked less often
        assignment.state_value(MANY[0]).consumed_to(9)
        assert turn(one, assignment) == (500, 1, 0)
        one._records[MANY[1]] = SimpleNamespace(calculate_backoff=lambda: 0)
        assert turn(one, assignment) == (20, 0, 1)  # what was brought is not taken yet, and the rest must not wait
        assert turn(one, assignment) == (20, 0, 0)

    asyncio.run(turns())


def test_what_is_resumed_wakes_the_fetcher_and_is_waited_for_once() -> None:
    async def turns() -> None:
        one, assignment = fetcher(), assigned(MANY)
        state = assignment.state_value(MANY[3])
        state.pause()
        for _ in range(3):
            assert one._get_actions_per_node(assignment)[-1] == []
        assert list(one._awaited) == [MANY[3]]
        woken = one._wait_consume_future = asyncio.get_running_loop().create_future()
        state.resume()
        async with asyncio.timeout(1):
            await woken
        assert not one._awaited
        assert turn(one, assignment)[1:] == (1_000, 0)

    asyncio.run(turns())


def test_while_all_brokers_are_asked_only_what_was_fetched_is_looked_at() -> None:
    async def turns() -> None:
        one, assignment = fetcher(), assigned(MANY)
        one._get_actions_per_node(assignment)
        one._in_flight.add(NODE)
        one._records[MANY[0]] = SimpleNamespace(calculate_backoff=lambda: 0.05)
        one._records[TopicPartition("gone", 0)] = SimpleNamespace(calculate_backoff=lambda: 0.01)
        assert one._get_actions_per_node(assignment) == ([], {}, 0.05, False, [])

    asyncio.run(turns())


def test_partitions_without_a_leader_have_the_brokers_asked_where_it_is() -> None:
    async def turns() -> None:
        one = fetcher(leader=-1)
        requests, _, _, unknown, _ = one._get_actions_per_node(assigned(MANY))
        assert (requests, unknown) == ([], True)
        requests, _, _, unknown, _ = one._get_actions_per_node(assigned([TopicPartition("nowhere", 0)]))
        assert (requests, unknown) == ([], True)

    asyncio.run(turns())


def test_few_partitions_are_fetched_without_a_session() -> None:
    async def turns() -> None:
        one, assignment = fetcher(), assigned(MANY[:3])
        assert turn(one, assignment, None) == (500, 3, 0)
        assert turn(one, assignment, None) == (500, 3, 0)

    asyncio.run(turns())


@pytest.mark.feature("Q2")
def test_each_partition_comes_first_in_its_turn() -> None:
    """A broker fills an answer in the order of the request, up to its limit."""

    async def turns() -> None:
        one, assignment = fetcher(), assigned(MANY[:3])
        requests = [one._get_actions_per_node(assignment)[0][0][1] for _ in MANY[:3]]
        assert {request._topics[0][0] for request in requests} == {tp.topic for tp in MANY[:3]}
        assert all(len(request._topics) == 3 for request in requests)

    asyncio.run(turns())


async def waiting(bring: Callable[[SwiftFetcher], None], timeout_s: float) -> list[bool]:
    """Ask for records while there are none, and call `bring` with each wait. Return which looks found some."""
    one, found = fetcher(), list[bool]()
    loop = asyncio.get_running_loop()
    state: dict[str, Any] = {"_fetch_waiters": set(), "_loop": loop, "_closed": False, "taken": 0}
    one.__dict__.update(state, _bytes=SimpleNamespace(count=0))

    async def look(*_: Any) -> dict[Any, Any]:
        found.append(bool(one._records))
        loop.call_soon(bring, one)
        return one._records

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SwiftFetcher.__mro__[1], "fetched_records", look)
        async with asyncio.timeout(60):
            await one.fetched_records(MANY, timeout_s)
    await asyncio.sleep(0)
    assert not one._fetch_waiters
    return found


def wake(one: SwiftFetcher) -> None:
    for waiter in one._fetch_waiters:
        one._notify(waiter)


def test_a_fetch_waits_for_records_until_some_come() -> None:
    times = iter(range(9))

    def bring(one: SwiftFetcher) -> None:
        if next(times):  # at first it is woken for nothing
            one._records[MANY[0]] = [1]
        wake(one)

    assert asyncio.run(waiting(bring, 60)) == [False, False, True]


def test_a_fetch_ends_without_records_at_its_timeout_or_when_the_consumer_is_closed() -> None:
    assert asyncio.run(waiting(lambda _: None, 0.01)) == [False]
    assert asyncio.run(waiting(lambda one: (setattr(one, "_closed", True), wake(one)), 60)) == [False]


def test_what_ends_the_wait_for_records_with_an_error_is_raised() -> None:
    def refuse(one: SwiftFetcher) -> None:
        for waiter in one._fetch_waiters:
            waiter.set_exception(TopicAuthorizationFailedError())

    with pytest.raises(TopicAuthorizationFailedError):
        asyncio.run(waiting(refuse, 60))
