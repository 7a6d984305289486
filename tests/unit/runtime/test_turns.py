"""Long work leaves others their turns, and a step takes no more in than a turn has time for (C60, C90)."""

from __future__ import annotations

import asyncio
import time

import pytest

from lapse.core.portions import Portions
from lapse.runtime.shard.pace import Pace
from lapse.runtime.turns import in_turns


@pytest.mark.feature("C90")
def test_others_have_their_turn_between_portions() -> None:
    turns: list[str] = []

    def work() -> Portions[str]:
        for _ in range(3):
            time.sleep(0.002)
            turns.append("work")
            yield
        return "done"

    async def other() -> None:
        while len(turns) < 6:
            turns.append("other")
            await asyncio.sleep(0)

    async def both() -> str:
        beside = asyncio.create_task(other())
        done = await in_turns(work())
        await beside
        return done

    assert asyncio.run(both()) == "done"
    assert turns[:6] == ["work", "other"] * 3


@pytest.mark.feature("C60")
def test_the_pace_follows_what_messages_cost() -> None:
    pace = Pace()
    first = pace.at_once
    pace.took(first, 0.001)
    assert pace.at_once == 2 * first, "they are cheap"
    pace.took(10, 0.001)
    assert pace.at_once == 2 * first, "there were not so many"
    pace.took(2 * first, 0.006)
    assert pace.at_once == 2 * first, "just right"
    pace.took(2 * first, 0.04)
    assert pace.at_once == first // 5, "each costs 10 µs"
    pace.took(first // 5, 30.0)
    assert pace.at_once == 100, "not so few that steps cost more than messages"
