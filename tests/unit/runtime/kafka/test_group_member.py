"""The member of the group runs in the worker's event loop, without Faust's thread."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("faust")

from mode.utils.trees import Node

from lapse.runtime.kafka.group_member import GroupMember


class Member(GroupMember):
    """A member without Kafka, which notes in which thread it does what."""

    def __post_init__(self) -> None:
        self.noted: list[tuple[str, int]] = []
        self.fails_at = ""

    def _note(self, what: str) -> None:
        self.noted.append((what, threading.get_ident()))
        if self.fails_at == what:
            raise OSError(f"Kafka is not there at the {what}")

    async def on_start(self) -> None:
        self._note("start")

    async def on_thread_stop(self) -> None:
        self._note("stop")

    async def crash(self, exc: BaseException) -> None:
        self.noted.append((f"crash: {exc}", threading.get_ident()))
        await super().crash(exc)


def member(fails_at: str = "") -> Member:
    """Return a member in the running loop."""
    beacon: Any = Node("worker")
    consumer: Any = SimpleNamespace(transport=SimpleNamespace(app=None))
    one = Member(consumer, loop=asyncio.get_running_loop(), beacon=beacon)
    one.fails_at = fails_at
    return one


@pytest.mark.feature("Q16")
def test_it_starts_and_stops_in_the_loop_and_leaves_other_tasks_alone() -> None:
    async def live() -> tuple[list[tuple[str, int]], bool]:
        other = asyncio.create_task(asyncio.sleep(60))
        one = member()
        await one.start()
        async with asyncio.timeout(20):
            await one.stop()
        await asyncio.sleep(0)
        runs = not other.done()
        other.cancel()
        return one.noted, runs

    here = threading.get_ident()
    assert asyncio.run(live()) == ([("start", here), ("stop", here)], True)


@pytest.mark.parametrize("where", ["start", "stop"])
def test_nobody_waits_for_ever_for_one_that_fails(where: str) -> None:
    async def live() -> list[str]:
        one = member(where)
        try:
            async with asyncio.timeout(20):
                await one.start()
        except OSError as error:
            one.noted.append((f"raised: {error}", 0))
        async with asyncio.timeout(20):
            await one.stop()
        return [what for what, _ in one.noted]

    noted = asyncio.run(live())
    assert noted[0] == "start"
    assert ("raised: Kafka is not there at the start" in noted) == (where == "start")
    assert "stop" in noted
