"""A deletion keeps the deliveries of other entities waiting for a moment at most (C90, C60)."""

import asyncio
import signal
import statistics
import time

import pytest

from lapse.core.shard.changelog import Changelog
from lapse.protocol import topic as names
from lapse.runtime.journal.changelog_reader import ChangelogReader
from lapse_client import Admin
from support.flow.traffic import Traffic
from support.kafka.log import until
from support.processes.deployment import Deploy, broker_now_ms
from support.processes.noted_turns import NotedTurns, permitted_ms

QUEUES = 20
WATCHED = [f"busy{number}" for number in range(4)]
LONGEST_S = 1.0
"""Generous, for a machine under load: what was measured is printed."""


@pytest.mark.feature("C90", "C60", "C4")
def test_a_deletion_keeps_deliveries_of_other_queues_waiting_for_a_moment_only(deploy: Deploy) -> None:
    idle = [f"idle{number}" for number in range(QUEUES - len(WATCHED))]
    here = deploy({stem: {} for stem in [*WATCHED, *idle]}).apply()
    noted = NotedTurns(here)
    worker = noted.worker.wait_for_shards(QUEUES, 90)
    gaps: list[float] = []
    with Traffic(here, WATCHED) as traffic:
        began_ms, since = broker_now_ms(), time.monotonic()
        time.sleep(1)
        undisturbed = traffic.longest_gap(since, time.monotonic())
        for stem in idle[:3]:
            since = time.monotonic()
            with here.queue(stem) as queue:
                queue.delete()
            until(lambda stem=stem: f"{here.name(stem)} is deleted; removed" in worker.text, "its topics removed", 60)
            time.sleep(1)
            gaps.append(traffic.longest_gap(since, time.monotonic()))
        turn_ms = noted.longest_ms(began_ms, broker_now_ms())
    print(f"longest gaps: {undisturbed:.3f} s undisturbed, {', '.join(f'{gap:.3f} s' for gap in gaps)} at deletions")
    print(f"longest turn: {turn_ms:.1f} ms of CPU")
    assert worker.running
    assert 0 < turn_ms < permitted_ms()
    assert statistics.median(gaps) < LONGEST_S + undisturbed, "a median, for the machine may pause as well"


@pytest.mark.long
@pytest.mark.feature("C90", "Q23")
def test_what_is_created_or_changed_keeps_deliveries_of_other_queues_waiting_for_a_moment_only(deploy: Deploy) -> None:
    idle = [f"idle{number}" for number in range(QUEUES - len(WATCHED))]
    here = deploy({stem: {} for stem in [*WATCHED, *idle]}, definitions="topic").apply()
    noted = [NotedTurns(here), NotedTurns(here)]
    workers = [one.worker for one in noted]
    until(lambda: sum(worker.shards for worker in workers) >= QUEUES, "all shards", 90)
    gaps: list[float] = []
    with Traffic(here, WATCHED) as traffic, Admin(here.app_id, connection=here.connection) as admin:
        began_ms, since = broker_now_ms(), time.monotonic()
        time.sleep(1)
        undisturbed = traffic.longest_gap(since, time.monotonic())
        for number in range(3):
            name = here.name(f"fresh{number}")
            since = time.monotonic()
            admin.create_queue(name)
            line = f"{name}: version 1 is served"
            until(lambda line=line: all(line in worker.text for worker in workers), "both read it", 40)
            assert admin.alter_queue(here.name(idle[number]), lease_period="45s").changed
            time.sleep(1)
            gaps.append(traffic.longest_gap(since, time.monotonic()))
        turns_ms = [one.longest_ms(began_ms, broker_now_ms()) for one in noted]
    print(f"longest gaps: {undisturbed:.3f} s undisturbed, {', '.join(f'{gap:.3f} s' for gap in gaps)} at changes")
    print(f"longest turns: {', '.join(f'{one:.1f} ms' for one in turns_ms)} of CPU")
    assert 0 < max(turns_ms) < permitted_ms()
    assert statistics.median(gaps) < LONGEST_S + undisturbed, "a median, for the machine may pause as well"


@pytest.mark.feature("C90", "Q23")
def test_a_shard_goes_on_while_the_group_waits_for_a_worker_that_stands_still(deploy: Deploy) -> None:
    """The group cannot be balanced before the frozen worker's session is over: whoever waits for that notices."""
    here = deploy({"busy": {"partitions": 2}}, definitions="topic", session_timeout="6s").apply()
    workers = [here.worker().wait_for_shards(2), here.worker().wait_for_shards(1)]
    second_has = f"{here.name('busy')}, partition 0: restored" in workers[1].text
    staying, frozen = reversed(workers) if second_has else workers
    fresh = here.name("fresh")
    with Traffic(here, ["busy"]) as traffic:
        frozen.signal(signal.SIGSTOP)
        here.configure({"busy": {"partitions": 2}, "fresh": {}}, definitions="topic", session_timeout="6s")
        since = time.monotonic()
        here.apply()
        until(lambda: f"{fresh}: version 1 is served" in staying.text, "the group is balanced", 60)
        took = time.monotonic() - since
        gap = traffic.longest_gap(since, time.monotonic())
    frozen.kill()
    print(f"longest gap: {gap:.3f} s in {took:.3f} s")
    assert staying.running
    assert took > 4, "the group waited"
    assert gap < took / 3


@pytest.mark.feature("C90", "C5")
def test_a_rest_between_two_take_overs_does_not_cut_off_the_one_under_way(deploy: Deploy) -> None:
    """Take-overs go on beside the end of a rebalance, which closes what only they need: nothing came back for 40 s."""
    here = deploy({"orders": {}}).apply()
    changelog_topic = names.changelog(here.app_id, here.name("orders"))

    async def read_and_rest() -> Changelog:
        reader, into = ChangelogReader(here.servers, {}), Changelog()
        reading = asyncio.create_task(reader.read(changelog_topic, 0, into))
        while reader._asker is None:  # noqa: ASYNC110  # a moment that nothing tells of
            await asyncio.sleep(0)
        await reader.rest()
        async with asyncio.timeout(30):
            await reading
        await reader.rest()
        return into

    assert asyncio.run(read_and_rest()) == Changelog()
