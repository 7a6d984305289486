"""The batch consumer around a rebalance: what a fetch drops is fetched again."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("faust")

from aiokafka.consumer import consumer as aiokafka_consumer
from faust.types import TP
from mode.utils.queues import FlowControlEvent

from lapse.runtime.kafka.fetcher import SwiftFetcher
from lapse.runtime.kafka.group.tenure import Tenures
from lapse.runtime.kafka.group_member import FETCH_MAX_WAIT_MS
from lapse.runtime.kafka.transport import BatchConsumer, Readers

TPS = [TP("orders", 0), TP("orders", 1)]


class Member:
    """The member of the group: it stands behind everything that was taken."""

    taken = 0

    def stands_at(self, tp: TP) -> tuple[int, int]:
        return 6, self.taken


class Consumer(BatchConsumer):
    """A batch consumer without Kafka, whose fetches are given.

    Attributes:
        handed: the partitions whose records were handed over, in order.
        between: called each time that some were.
    """

    should_stop = False

    def __init__(self) -> None:
        self.handed: list[TP] = []
        self.between: Any = lambda: None
        self.flow_control = FlowControlEvent(initially_suspended=False)
        self.app = SimpleNamespace(flow_control=self.flow_control, reading=self)  # type: ignore[assignment]
        self.flow_active = True
        self.seeks = 0
        self._thread = Member()  # type: ignore[assignment]
        self._handed = 0
        self._held, self._resting = {}, {}
        self._to_seek = set()
        self.tenures = Tenures()
        self._steady = set()
        self.during_fetch: Any = lambda: None

    def hand_over(self, tp: TP, records: list[Any]) -> None:
        assert [record.offset for record in records] == [5]
        self.handed.append(tp)
        self.between()

    async def _wait_next_records(self, timeout: float) -> Any:  # noqa: ASYNC109
        self._thread.taken += 1
        self.during_fetch()
        record = SimpleNamespace(offset=5, timestamp=1, timestamp_type=1)
        return {tp: [record] for tp in TPS}, set(TPS)

    async def perform_seek(self) -> None:
        self.seeks += 1

    def _seek_shards(self, tps: Any) -> None:
        self.seeks += 1
        self._to_seek -= set(tps)


async def fetched(consumer: Consumer, between: Any = lambda: None) -> list[TP]:
    consumer.handed, consumer.between = [], between
    await consumer.take_in(1.0)
    return consumer.handed


def test_a_fetch_is_handed_over_whole() -> None:
    consumer = Consumer()
    assert asyncio.run(fetched(consumer)) == TPS
    assert consumer.seeks == 0


@pytest.mark.feature("Q16")
def test_a_fetch_that_outlasts_a_rebalance_is_dropped_and_read_again() -> None:
    """The seek that follows a rebalance may have come before the fetch: nothing else would go back."""
    consumer = Consumer()
    consumer.during_fetch = consumer.tenures.begin_all
    assert asyncio.run(fetched(consumer)) == []
    consumer.during_fetch = lambda: None
    assert asyncio.run(fetched(consumer)) == TPS
    assert consumer.seeks == 1


def test_a_rebalance_between_two_partitions_drops_the_rest_and_reads_it_again() -> None:
    consumer = Consumer()
    assert asyncio.run(fetched(consumer, consumer.tenures.begin_all)) == TPS[:1]
    assert asyncio.run(fetched(consumer)) == TPS
    assert consumer.seeks == 1


@pytest.mark.feature("C90")
def test_a_rebalance_drops_what_came_of_partitions_that_went_only() -> None:
    consumer = Consumer()
    consumer.during_fetch = lambda: consumer.tenures.begin(TPS[1:])
    assert asyncio.run(fetched(consumer)) == TPS[:1]
    assert consumer._to_seek == set(TPS[1:])


@pytest.mark.feature("Q16", "C90")
@pytest.mark.parametrize("goes_on", [True, False], ids=["goes on", "is sought again"])
def test_what_comes_while_the_application_holds_it_up_waits_until_it_goes_on_or_is_read_again(goes_on: bool) -> None:
    async def held_up() -> tuple[list[TP], list[TP]]:
        consumer = Consumer()
        consumer.wait_first = wait_first  # type: ignore[assignment, method-assign]
        consumer.suspend_flow = asyncio.Event()  # type: ignore[assignment]
        consumer.flow_control.suspend()
        taking = asyncio.create_task(consumer.take_in(1.0))
        await asyncio.sleep(0.01)
        before = list(consumer.handed)
        if goes_on:
            consumer.flow_control.resume()
        else:
            consumer.flow_active = False
            consumer.suspend_flow.set()
        async with asyncio.timeout(20.0):
            await taking
        return before, consumer.handed

    async def wait_first(*awaited: Any) -> None:
        _, pending = await asyncio.wait(map(asyncio.ensure_future, awaited), return_when=asyncio.FIRST_COMPLETED)
        for one in pending:
            one.cancel()

    assert asyncio.run(held_up()) == ([], TPS if goes_on else [])


@pytest.mark.feature("C90")
def test_what_is_read_on_while_the_group_rebalances_is_neither_paused_nor_sought(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = Consumer()
    consumer._active_partitions, consumer._paused_partitions = set(TPS), set()
    consumer._steady = {TPS[0]}
    consumer._readers = {tp: Readers() for tp in TPS}
    consumer.pause_partitions(TPS)
    assert (consumer._active_partitions, consumer._paused_partitions) == ({TPS[0]}, {TPS[1]})
    sought: list[Any] = []

    monkeypatch.setattr(Consumer, "_seek_shards", lambda _, tps: sought.extend(tps))
    asyncio.run(BatchConsumer.perform_seek(consumer))
    assert sought == TPS[1:]


@pytest.mark.feature("C4", "C55")
def test_a_position_is_unknown_until_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer stood where an earlier topic with the name had ended: a shard passed its first commands over."""
    consumer, at = Consumer(), {TPS[0]: 6}
    consumer._readers = {TPS[0]: SimpleNamespace(received={"shard": 0})}  # type: ignore[dict-item]
    monkeypatch.setattr(Member, "seek_all", lambda _, offsets: at.update(offsets), raising=False)
    monkeypatch.setattr(Member, "stands_at", lambda self, tp: (at[tp], self.taken))

    async def positions() -> tuple[int, int]:
        consumer._to_seek.add(TPS[0])
        before = await consumer.next_offset(TPS[0])
        BatchConsumer._seek_shards(consumer, consumer._to_seek)
        return before, await consumer.next_offset(TPS[0])

    assert asyncio.run(positions()) == (-1, 0)


@pytest.mark.feature("C52")
def test_a_partition_of_a_shard_that_is_taken_over_later_is_fetched_for_the_others_that_read_it() -> None:
    """Two queues read one topic. What Kafka refuses to one of them must not hold up the other."""
    consumer = Consumer()
    consumer._active_partitions, consumer._readers = set(TPS), {}
    consumer.saturated, consumer.relieved = set(), asyncio.Event()
    refused, other = "refused", "other"
    consumer.received(other, TPS[0], 5)
    consumer.rest(refused, TPS)
    assert consumer._get_active_partitions() == {TPS[0]}
    consumer.hold(refused, TPS)
    assert consumer._get_active_partitions() == set()
    consumer.let_go(refused, TPS)
    assert consumer._get_active_partitions() == consumer._to_seek == set(TPS)
    consumer.rest(refused, TPS)
    consumer.let_go(refused, TPS)
    assert consumer._get_active_partitions() == set(TPS)


def test_a_flow_that_stops_is_left_to_the_seek_of_its_resumption() -> None:
    consumer = Consumer()
    assert asyncio.run(fetched(consumer, lambda: setattr(consumer, "flow_active", False))) == TPS[:1]
    assert consumer.seeks == 0


def test_a_fetch_waits_shortly_where_it_leaves_out_what_is_read() -> None:
    """The next records of a busy topic come after it; a changelog that nobody reads holds nothing up."""
    assert aiokafka_consumer.Fetcher is SwiftFetcher
    fetcher = SwiftFetcher.__new__(SwiftFetcher)
    fetcher._asked_for, fetcher._records = {TPS[0]}, {}
    fetcher._fetch_max_wait_ms = FETCH_MAX_WAIT_MS
    assert fetcher._fetch_max_wait_ms == FETCH_MAX_WAIT_MS
    fetcher._records = {TP("app-orders-changelog", 0): object()}
    assert fetcher._fetch_max_wait_ms == FETCH_MAX_WAIT_MS
    fetcher._records[TPS[0]] = object()
    assert fetcher._fetch_max_wait_ms == 20
    fetcher._fetch_max_wait_ms = 5
    assert fetcher._fetch_max_wait_ms == 5


@pytest.mark.feature("C1", "S9")
def test_what_was_fetched_counts_as_read_once_it_is_handed_over_or_sought_again() -> None:
    """A query waits for the logs' ends: it would be answered without what is on its way to the shard."""
    consumer = Consumer()
    found: list[int] = []

    async def look() -> int:
        return await consumer.next_offset(TPS[0])

    def look_between() -> None:
        """Ask while the next partition's records are not handed over yet; nothing is awaited."""
        with pytest.raises(StopIteration) as ended:
            look().send(None)
        found.append(ended.value.value)

    async def all_of_it(stop_after: int = 9) -> None:
        def between() -> None:
            look_between()
            consumer.flow_active = len(found) < stop_after

        consumer.between = between
        await consumer.take_in(1.0)

    assert asyncio.run(look()) == 6
    asyncio.run(all_of_it())
    assert (found, asyncio.run(look())) == ([-1, -1], 6)

    found.clear()
    asyncio.run(all_of_it(stop_after=1))  # the second partition's are dropped, and nobody has sought them yet
    assert (found, asyncio.run(look())) == ([-1], -1)
    asyncio.run(all_of_it())  # the flow is not active: all is sought again
    assert (consumer.seeks, asyncio.run(look())) == (1, 6)

    consumer.flow_active = True
    consumer.during_fetch = consumer.tenures.begin_all
    asyncio.run(all_of_it())
    assert (consumer.seeks, asyncio.run(look())) == (1, -1)  # they were dropped, and are sought before the next fetch


@pytest.mark.feature("C90")
@pytest.mark.parametrize("flows", [True, False], ids=["flowing", "flow awaited"])
def test_what_is_resumed_is_fetched_at_once(flows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a rebalance the flow begins before the partitions are resumed; Faust would sleep a second."""
    monkeypatch.setattr(BatchConsumer, "sleep", lambda *_: pytest.fail("Faust sleeps"))

    async def rest_and_resume() -> Any:
        consumer = Consumer()
        consumer.flow_active, consumer.can_resume_flow = flows, asyncio.Event()  # type: ignore[assignment]
        monkeypatch.setattr(BatchConsumer, "wait", lambda _, event: event.wait())
        consumer._active_partitions, consumer._paused_partitions = set(), set(TPS)
        consumer.saturated, consumer.relieved = set(), asyncio.Event()
        resting = asyncio.create_task(BatchConsumer._wait_next_records(consumer, 60.0))
        await asyncio.sleep(0)
        assert not resting.done()
        consumer.can_resume_flow.set()
        await asyncio.sleep(0.01)
        assert not resting.done()
        consumer.resume_partitions(TPS)
        async with asyncio.timeout(20.0):
            return await resting

    assert asyncio.run(rest_and_resume()) == ({}, set())
