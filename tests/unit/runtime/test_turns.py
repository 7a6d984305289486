"""Long work leaves others their turns, and a step takes no more in than a turn has time for (C60, C90)."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest

from lapse.core.portions import Portions
from lapse.runtime.shard.pace import Pace
from lapse.runtime.turns import OneByOne, in_turns


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


@pytest.mark.feature("C90")
def test_what_comes_in_one_turn_goes_on_one_by_one() -> None:
    """Shards that are taken over together have heard from Kafka in the same turn."""
    done: list[str] = []

    async def take_over(heard: asyncio.Event, one_by_one: OneByOne, number: int) -> None:
        await heard.wait()
        await one_by_one.turn()
        done.append(f"shard {number}")

    async def other() -> None:
        while len(done) < 10:
            await asyncio.sleep(0)
            if done[-1:] != ["other"]:
                done.append("other")

    async def all_of() -> None:
        heard, one_by_one = asyncio.Event(), OneByOne()
        shards = [asyncio.create_task(take_over(heard, one_by_one, number)) for number in range(5)]
        await asyncio.sleep(0)
        heard.set()
        await asyncio.gather(*shards, other())

    asyncio.run(all_of())
    assert [one for one in done if one != "other"] == [f"shard {number}" for number in range(5)]
    assert not any("shard" in first and "shard" in second for first, second in pairwise(done))


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
