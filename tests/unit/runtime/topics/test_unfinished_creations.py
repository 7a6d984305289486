"""Creations that were begun by a worker that was killed are brought to their end, however late (C65, Q23)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from lapse.config import Config
from lapse.runtime.authorization.command_authorizer import Admitted
from lapse.runtime.topics import unfinished_creations
from lapse.runtime.topics.definer import _LATEST_MS, Definer, _answer
from lapse.runtime.topics.unfinished_creations import UnfinishedCreations

pytestmark = pytest.mark.feature("C65", "Q23")

TP = TopicPartition("lapse.definitions.lapse.commands", 0)


class Group:
    """A consumer group's offset, as its member and an admin client see it."""

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}

    async def commit(self, offsets: dict[TopicPartition, Any]) -> None:
        self.committed.update(
            {
                tp: one if isinstance(one, OffsetAndMetadata) else OffsetAndMetadata(one, "")
                for tp, one in offsets.items()
            }
        )

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def list_consumer_group_offsets(self, group: str, partitions: Any) -> dict[TopicPartition, OffsetAndMetadata]:
        return self.committed


@pytest.mark.parametrize("topics", [[], ["fresh"]])
def test_the_next_worker_learns_that_a_creation_was_begun(monkeypatch: pytest.MonkeyPatch, topics: list[str]) -> None:
    group: Any = Group()
    monkeypatch.setattr(unfinished_creations, "AIOKafkaAdminClient", lambda: group)

    async def begun_at(offset: int) -> tuple[bool, list[str]]:
        next_worker = UnfinishedCreations({}, "definitions")
        await next_worker.begin(group, TP, offset)
        return next_worker.begun, sorted(next_worker.topics)

    async def run() -> None:
        assert await begun_at(7) == (False, [])
        creations = UnfinishedCreations({}, "definitions")
        await creations.begin(group, TP, 7)
        await creations.note(topics)
        assert await begun_at(7) == (True, topics)
        await group.commit({TP: 8})
        assert await begun_at(8) == (False, [])
        creations.forget()
        await creations.begin(group, TP, 8)
        assert not creations.begun, "another worker has finished it"

    asyncio.run(run())


def test_a_command_that_comes_too_late_is_carried_out_only_if_it_was_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client has given up. But its topics may exist, and nobody else would remove them."""
    services: Any = SimpleNamespace(connection={}, clock=SimpleNamespace(now_ms=lambda: _LATEST_MS + 1))
    definer = Definer(Config(), Path(), services, None, SimpleNamespace())  # type: ignore[arg-type]
    defined: list[str] = []

    async def define(admitted: Admitted) -> Any:
        defined.append(admitted.command.entity)
        return _answer(admitted, None)

    monkeypatch.setattr(definer, "_define", define)

    def carry_out(entity: str) -> None:
        value = orjson.dumps({"command": "create_queue", "entity": entity, "id": "1"})
        record = SimpleNamespace(key=None, value=value, headers=(), timestamp=0, offset=0, partition=0)
        asyncio.run(definer._command(record))

    carry_out("late")
    definer._creations.begun = True
    carry_out("begun")
    assert defined == ["begun"]
