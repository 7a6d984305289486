"""Entities that end at about the same time are cleaned up together: each clean-up makes the group rebalance (C90)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("faust")

from lapse.runtime.topics import entity_cleanup
from lapse.runtime.topics.entity_cleanup import EntityCleanup

pytestmark = pytest.mark.feature("C90", "C4")


class _LetGo(Exception):
    """A clean-up has come to the point at which the group would rebalance."""


class _Cleanup(EntityCleanup):
    """A clean-up without a group, which notes what it lets go together."""

    def __init__(self, served: Iterable[str]) -> None:
        self.entities = {name: _served(name) for name in served}
        worker: Any = SimpleNamespace(entities=self.entities, consumer=SimpleNamespace(member=""))
        super().__init__(worker, {})
        self.together: list[list[str]] = []

    async def balanced(self) -> None:
        return

    async def _let_go(self, entities: list[Any]) -> None:
        self.together.append([one.name for one in entities])
        raise _LetGo

    def end(self, name: str) -> asyncio.Task[None]:
        """Let an entity end: its shard has written its last record."""
        self.entities[name].runners[0].machine.is_ending = False
        return asyncio.create_task(self.clean_up(self.entities[name]))


def _served(name: str) -> Any:
    machine = SimpleNamespace(is_ending=False)
    return SimpleNamespace(name=name, runners={0: SimpleNamespace(machine=machine)})


def test_an_entity_that_has_ended_waits_for_those_that_are_about_to_end() -> None:
    async def run() -> list[list[str]]:
        cleanup = _Cleanup(["a", "b", "c", "stays"])
        for name in "bc":
            cleanup.entities[name].runners[0].machine.is_ending = True
        first = cleanup.end("a")
        for _ in range(3):
            await asyncio.sleep(0)
        await asyncio.gather(first, cleanup.end("b"), cleanup.end("c"), return_exceptions=True)
        return cleanup.together

    assert asyncio.run(run()) == [["a", "b", "c"]]


def test_it_does_not_wait_for_an_end_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entity_cleanup, "_NEXT_END_S", 0.0)

    async def run() -> list[list[str]]:
        cleanup = _Cleanup(["a", "stuck"])
        cleanup.entities["stuck"].runners[0].machine.is_ending = True
        await asyncio.gather(cleanup.end("a"), return_exceptions=True)
        return cleanup.together

    assert asyncio.run(run()) == [["a"]]
