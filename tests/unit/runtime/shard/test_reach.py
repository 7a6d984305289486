"""A shard is taken over again as soon as the logs are there that this needs, whoever else is away (C52)."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lapse.config import QueueConfig
from lapse.runtime.journal.store import JournalStore
from lapse.runtime.queue.queue_entity import QueueEntity
from lapse.runtime.topics.topic_id import Shape
from lapse.runtime.tp import TP


@pytest.mark.feature("C52")
def test_the_leaders_of_dead_letters_and_of_a_forwarding_target_are_not_waited_for() -> None:
    asked: list[TP] = []

    async def shapes(topics: list[str]) -> dict[str, Shape]:
        return {topic: Shape(topic, 4) for topic in topics}

    async def existing_ends(tps: list[TP]) -> None:
        asked.extend(tps)

    services: Any = SimpleNamespace(
        topic_ids=SimpleNamespace(shapes=shapes), aside_reader=SimpleNamespace(existing_ends=existing_ends)
    )
    entity = QueueEntity("q", QueueConfig(topics=("t",), dead_letter="letters"), 2, services, "target")
    store = object.__new__(JournalStore)
    journal = SimpleNamespace(get_topic_name=lambda: "journal")
    store.table = cast("Any", SimpleNamespace(changelog_topic=journal))
    entity.table = SimpleNamespace(data=store)
    asyncio.run(entity.reach(1))
    assert {"letters", "target"} <= entity.targets.keys()
    own = [TP(topic, 1) for topic in ("lapse.q.commands", "journal", "lapse.q.deliveries")]
    assert asked == [*own, TP("t", 1), TP("t", 3)]
