"""A worker has one Faust agent, and what an entity adds to Faust is small (Q16)."""

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any

import faust
import pytest

from lapse.runtime.journal.store import JournalStore
from lapse.runtime.kafka.agent import WorkerAgent
from lapse.runtime.kafka.lean_service import LeanService
from lapse.runtime.kafka.table import SelfRestoredTable
from lapse.runtime.tp import TP

pytestmark = pytest.mark.feature("Q16")


def app() -> Any:
    return faust.App("agent", autodiscover=False, web_enabled=False, Table=SelfRestoredTable, store="lapse-memory://")


def test_what_comes_in_goes_to_every_entity_that_reads_the_topic_and_changelogs_to_nobody() -> None:
    agent, got = WorkerAgent(app()), []
    agent.add("one", ["both", "first"], lambda tp, records: got.append(("one", tp, *records)), "one-changelog")
    agent.add("two", ["both", "second"], lambda tp, records: got.append(("two", tp, *records)), "two-changelog")
    for topic in ("both", "first", "second", "one-changelog", "nobody's"):
        agent.hand_over(TP(topic, 1), [topic])
    both, first, second = TP("both", 1), TP("first", 1), TP("second", 1)
    assert got == [("one", both, "both"), ("two", both, "both"), ("one", first, "first"), ("two", second, "second")]
    agent.remove("one")
    got.clear()
    for topic in ("both", "first"):
        agent.hand_over(TP(topic, 0), [topic])
    assert got == [("two", TP("both", 0), "both")]


def test_an_entity_may_go_while_a_batch_is_handed_over() -> None:
    agent, got = WorkerAgent(app()), []
    agent.add("one", ["both"], lambda *_: agent.remove("one"), "one-changelog")
    agent.add("two", ["both"], lambda *_: got.append("two"), "two-changelog")
    agent.hand_over(TP("both", 0), [])
    assert got == ["two"]


def test_one_agent_reads_what_entities_read_however_many_come_and_go() -> None:
    async def run() -> None:
        here = app()
        agent = WorkerAgent(here)

        def add(number: int) -> None:
            agent.add(f"q{number}", [f"topic{number}", "shared"], lambda *_: None, f"changelog{number}")

        for number in range(20):
            add(number)
        (one,) = here.agents.values()
        here.topics.add(one.channel_iterator.clone(is_iterator=True))  # as Faust does when the agent starts

        async def read() -> set[str]:
            return set(await agent.to_read())

        everything = {"shared", *(f"{kind}{number}" for kind in ("topic", "changelog") for number in range(20))}
        assert await read() == everything
        add(20)
        assert await read() == everything | {"topic20", "changelog20"}
        for number in range(20):
            agent.remove(f"q{number}")
        assert await read() == {"shared", "topic20", "changelog20"}
        agent.remove("q20")
        assert await read() == set()
        assert (len(here.agents), len(here.topics)) == (1, 1)

    asyncio.run(run())


def deques(service: LeanService) -> list[str]:
    """Where a service, or an object of its own, has a deque."""
    return [
        f"{name}.{inner}"
        for name, part in vars(service).items()
        if type(part).__module__.partition(".")[0] in ("mode", "lapse", "contextlib")
        for inner, held in getattr(part, "__dict__", {}).items()
        if isinstance(held, deque) and name not in ("exit_stack", "async_exit_stack")
    ]


def test_tables_and_stores_have_no_room_for_what_nobody_waits_for() -> None:
    async def run() -> None:
        here = app()
        one, two = (here.Table(name, partitions=1, options={"owner": SimpleNamespace()}) for name in ("one", "two"))
        for table, other in ((one, two), (one.data, two.data)):
            assert isinstance(table, LeanService)
            assert not deques(table)
            assert table.exit_stack is other.exit_stack
            with pytest.raises(TypeError, match="enters no context"):
                table.add_context(None)
            with pytest.raises(TypeError, match="enters no context"):
                await table.add_async_context(None)
        assert isinstance(one.data, JournalStore)

    asyncio.run(run())


def test_who_waits_for_a_lean_service_to_stop_is_informed() -> None:
    class Idle(LeanService):
        """Does nothing."""

    async def run() -> None:
        service = Idle()
        await service.start()
        waiting = [asyncio.create_task(service.wait_until_stopped()) for _ in range(3)]
        asleep = asyncio.create_task(service.sleep(600))
        await asyncio.sleep(0)
        await service.stop()
        await asyncio.gather(*waiting, asleep)
        assert service.should_stop

    asyncio.run(run())
