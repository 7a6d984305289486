"""Long work leaves others their turns, and a step takes no more in than a turn has time for (C60, C90)."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest

from lapse.core.portions import Portions
from lapse.runtime.event_loop_turns import OneByOne, in_turns
from lapse.runtime.shard.step_turns import StepTurns
from lapse.runtime.shard.turn_limit import TurnLimit


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
    limit = TurnLimit()
    first = limit.at_once
    limit.note_time(first, 0.001)
    assert limit.at_once == 2 * first, "they are cheap"
    limit.note_time(10, 0.001)
    assert limit.at_once == 2 * first, "there were not so many"
    limit.note_time(2 * first, 0.006)
    assert limit.at_once == 2 * first, "just right"
    limit.note_time(2 * first, 0.04)
    assert limit.at_once == first // 5, "each costs 10 µs"
    limit.note_time(first // 5, 30.0)
    assert limit.at_once == 100, "not so few that steps cost more than messages"


def _work(cpu_s: float) -> None:
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass


@pytest.mark.feature("C60")
@pytest.mark.parametrize("step_s", [0.0002, pytest.param(0.002, marks=pytest.mark.slow)])
def test_shards_that_are_ready_at_once_step_in_many_turns_and_in_their_order(step_s: float) -> None:
    """Three hundred of them worked in one turn of 217 ms; heartbeats and answers waited for its end."""
    done: list[int] = []
    turns: list[float] = []

    async def shard(news: asyncio.Event, together: StepTurns, number: int) -> None:
        for _ in range(2):
            await news.wait()
            await together.turn()
            _work(step_s)
            done.append(number)

    async def other() -> None:
        while len(done) < 600:
            began = time.thread_time()
            await asyncio.sleep(0)
            turns.append(time.thread_time() - began)

    async def all_of() -> None:
        news, together = asyncio.Event(), StepTurns()
        shards = [asyncio.create_task(shard(news, together, number)) for number in range(300)]
        await asyncio.sleep(0)
        news.set()
        await asyncio.gather(*shards, other())

    asyncio.run(all_of())
    assert max(turns) < 0.05, "of CPU"
    assert len(turns) < 610, "a turn of its own for each step would cost more than the step"
    first = [done.index(number) for number in range(300)]
    assert first == sorted(first), "nobody is overtaken"


@pytest.mark.feature("C60", "Q16")
def test_a_shard_that_is_given_up_while_it_waits_for_its_turn_takes_none_from_others() -> None:
    done: list[int] = []

    async def shard(together: StepTurns, number: int) -> None:
        await together.turn()
        done.append(number)

    async def all_of() -> None:
        together = StepTurns()
        together.most = 1
        shards = [asyncio.create_task(shard(together, number)) for number in range(4)]
        await asyncio.sleep(0)
        shards[1].cancel()
        await asyncio.gather(*shards, return_exceptions=True)

    asyncio.run(all_of())
    assert done == [0, 2, 3]
