"""A step's letters come in parts, and no write goes on behind a step that fails (D3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.shard import QueueShard
from lapse.runtime.letters.refusal import Refusal
from lapse.runtime.letters.shard_letters import PART, ShardLetters
from lapse.runtime.shard.figures import ShardFigures


class Source:
    """Makes one part, and cannot make the next one."""

    async def letters_of(self, _: object) -> AsyncIterator[tuple[list[Any], list[int]]]:
        yield [object()], list(range(PART))
        raise TimeoutError("no payloads")

    async def pending_letter(self, _: int) -> None:
        return None


@pytest.mark.feature("D3")
def test_a_write_ends_with_the_step_whose_next_letters_cannot_be_made() -> None:
    ends: list[str] = []

    async def sends() -> dict[int, Refusal]:
        try:
            await asyncio.sleep(60)
        finally:
            ends.append("cancelled")
        return {}

    def write(_: object) -> asyncio.Task[dict[int, Refusal]]:
        return asyncio.create_task(sends())

    async def step() -> None:
        source: Any = Source()
        shard = QueueShard(QueueSettings(name="orders"))
        letters: Any = ShardLetters(shard, source, [], ShardFigures())
        with pytest.raises(TimeoutError, match="no payloads"):
            await letters.write(object(), write)
        await asyncio.sleep(0)
        assert ends == ["cancelled"]

    asyncio.run(step())
