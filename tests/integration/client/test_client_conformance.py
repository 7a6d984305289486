"""What every client promises, whatever it speaks to: the same cases for both clients, over fakes and over real workers.

So a fake that other tests rely on cannot drift from what workers do. What only one backend can show stands elsewhere.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import orjson
import pytest

from lapse.core.error_code import ErrorCode
from lapse.protocol.bookmark import Bookmark
from lapse_client import (
    AlreadySettled,
    Closed,
    CommandFailed,
    InvalidPayload,
    InvalidPublication,
    JsonSerde,
    SettlementResult,
    UnknownEntity,
    aio,
)
from support.clients import synchronous
from support.clients.backend import BACKENDS, Backend
from support.processes.deployment import Deploy

pytestmark = pytest.mark.feature("X3")


@pytest.fixture(scope="module", params=sorted(BACKENDS))
def serving(request: pytest.FixtureRequest, kafka: str, deploy: Deploy) -> Backend:
    return BACKENDS[request.param](kafka, deploy)


@pytest.fixture
def backend(serving: Backend) -> Iterator[Backend]:
    yield serving
    serving.tidy()


@pytest.fixture(params=["sync", "async"])
def api(request: pytest.FixtureRequest) -> Any:
    """The client, in the shape of the asynchronous one."""
    return synchronous if request.param == "sync" else aio


async def until(condition: Callable[[], Awaitable[object]], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline, "not within the time limit"
        await asyncio.sleep(0.05)


class Case:
    """One queue of a backend, with messages in it."""

    def __init__(self, api: Any, backend: Backend) -> None:
        self.api, self.connection, self.name = api, backend.connection, backend.queue()

    def subscriber(self, max_backlog: int = 1, **options: Any) -> Any:
        return self.api.QueueSubscriber(self.name, max_backlog, connection=self.connection, **options)

    def queue(self) -> Any:
        return self.api.Queue(self.name, connection=self.connection)

    async def publish(self, count: int) -> list[Any]:
        """Publish `0`, `1` and so on, and wait until the queue has them."""
        async with self.api.Publisher(self.connection) as publisher:
            sent = [
                await publisher.publish(self.name, str(number), key=str(number), headers={"own": "yes"})
                for number in range(count)
            ]
        async with self.queue() as queue:

            async def arrived() -> bool:
                return bool((await queue.depth())["available"] == count)

            await until(arrived)
        return sent

    async def depth(self) -> int:
        async with self.queue() as queue:
            return int((await queue.depth())["depth"])

    async def gone(self, left: int = 0) -> None:
        """Wait until no more than so many are left."""

        async def is_so() -> bool:
            return await self.depth() == left

        await until(is_so)


@pytest.fixture
def case(api: Any, backend: Backend) -> Case:
    return Case(api, backend)


@pytest.mark.feature("Q3", "Q8")
def test_each_message_comes_once_untouched_and_leaves_when_it_is_acknowledged(case: Case) -> None:
    async def main() -> None:
        bookmarks = await case.publish(20)
        seen = {}
        async with case.subscriber(10) as subscriber:
            async for delivery in subscriber.messages(30):
                async with delivery:
                    assert (delivery.key, delivery.headers) == (delivery.value, [("own", b"yes")])
                    assert (delivery.queue, delivery.delivery_count, delivery.is_barrier) == (case.name, 1, False)
                    assert delivery.lease_until_ms > delivery.timestamp_ms
                    assert delivery.bookmark not in seen
                    seen[delivery.bookmark] = int(delivery.value)
                if len(seen) == 20:
                    break
            assert await subscriber.receive(0.2) is None
        assert seen == {bookmark: number for number, bookmark in enumerate(bookmarks)}
        await case.gone()

    asyncio.run(main())


@pytest.mark.feature("X3")
def test_payloads_have_types_and_a_misfit_is_not_handed_out(case: Case) -> None:
    serde = JsonSerde(dict[str, int])

    async def main() -> None:
        async with case.api.Publisher(case.connection, serializer=serde) as publisher:
            await publisher.publish(case.name, {"a": 1}, key="k")
            with pytest.raises(InvalidPublication, match="a: Input should be a valid integer"):
                await publisher.publish(case.name, {"a": "x"}, key="k")
        async with case.api.Publisher(case.connection) as publisher:
            await publisher.publish(case.name, '{"a": "x"}', key="k")
            await publisher.publish(case.name, '{"a": 2}', key="k")
        seen = []
        async with case.subscriber(4, deserializer=serde) as subscriber:
            async for delivery in subscriber.messages(30):
                async with delivery:
                    seen.append(delivery.payload)
                if len(seen) == 2:
                    break
        assert seen == [{"a": 1}, {"a": 2}]
        await case.gone()

    asyncio.run(main())


@pytest.mark.feature("Q3")
def test_no_more_is_unsettled_than_the_backlog(case: Case) -> None:
    async def main() -> None:
        await case.publish(12)
        async with case.subscriber(4) as subscriber:
            held = [await subscriber.receive(30) for _ in range(4)]
            assert await subscriber.receive(0.5) is None
            subscriber.acknowledge(held)
            await subscriber.flush()
            more = [await subscriber.receive(30) for _ in range(4)]
            assert len({delivery.bookmark for delivery in held + more}) == 8
            assert await subscriber.receive(0.5) is None

    asyncio.run(main())


@pytest.mark.feature("Q8")
def test_batches_are_acknowledged_together(case: Case) -> None:
    async def main() -> None:
        await case.publish(200)
        seen: list[int] = []
        async with case.subscriber(50) as subscriber:
            async for batch in subscriber.batches(20, 30):
                assert 0 < len(batch) <= 20
                subscriber.acknowledge(batch)
                seen += [int(delivery.value) for delivery in batch]
                if len(seen) == 200:
                    break
        assert sorted(seen) == list(range(200))
        await case.gone()

    asyncio.run(main())


@pytest.mark.feature("Q8")
def test_what_raises_is_cancelled_and_comes_again_with_a_higher_count(case: Case) -> None:
    async def main() -> None:
        place, later = await case.publish(2)
        async with case.subscriber() as subscriber:
            with pytest.raises(ZeroDivisionError):
                async with await subscriber.receive(30):
                    raise ZeroDivisionError
            again = await subscriber.receive(30)
            assert (again.bookmark, again.delivery_count) == (place, 2)
            again.acknowledge()
            with pytest.raises(AlreadySettled):
                again.cancel()
            other = await subscriber.receive(30)
            assert other.bookmark == later
            for several in ([other, again], [other, other]):
                with pytest.raises(AlreadySettled):
                    await subscriber.settle("cancel", several)
                assert not other.settled_as, "all or none"
            other.acknowledge()
        await case.gone()

    asyncio.run(main())


@pytest.mark.feature("Q8")
def test_a_callback_gets_everything_and_its_failures_come_again(case: Case) -> None:
    async def main() -> None:
        await case.publish(10)
        seen: Counter[int] = Counter()

        async def handle(delivery: Any) -> None:
            seen[int(delivery.value)] += 1
            if int(delivery.value) == 3 and delivery.delivery_count == 1:
                raise ZeroDivisionError

        async with case.subscriber(4) as subscriber:
            running = asyncio.create_task(subscriber.run(handle, 2))
            await case.gone()
            await subscriber.close()
            async with asyncio.timeout(30):
                await running
        assert seen == {number: 1 + (number == 3) for number in range(10)}

    asyncio.run(main())


@pytest.mark.feature("Q8")
def test_a_settlement_that_is_waited_for_tells_its_result(case: Case, backend: Backend) -> None:
    async def main() -> None:
        await case.publish(3)
        async with case.subscriber(3) as subscriber, case.queue() as queue:
            held = [await subscriber.receive(30) for _ in range(3)]
            done, out, longer = held
            until_ms = longer.lease_until_ms
            results = await subscriber.settle("acknowledge", [done], wait=True)
            assert results == [SettlementResult(results[0].messages, "settled")]
            assert [*results[0].messages] == [done.bookmark]
            assert [one.settled for one in await subscriber.settle("expire", [out], wait=True)] == [True]
            for again in (done, out):
                (outcome,) = await queue.settle("acknowledge", [again.bookmark])
                assert outcome.result == "already_settled"
            with pytest.raises(CommandFailed) as refused:
                await subscriber.settle("renew", [longer], wait=True, lease_ms=3_600_000)
            assert refused.value.code == ErrorCode.INVALID_ARGUMENT
            await asyncio.to_thread(backend.let_time_pass)
            assert await subscriber.settle("renew", [longer], wait=True, lease_ms=30_000)
            assert longer.lease_until_ms > until_ms
            assert [one.state for one in await queue.peek()] == ["leased"]
            assert [len(await queue.peek(state=state)) for state in ("leased", "available")] == [1, 0]
            (stale,) = await queue.settle("cancel", [f"{longer.bookmark}#7"])
            assert stale.result == "stale"
            assert await subscriber.settle("cancel", [longer], wait=True)
            assert (await subscriber.receive(30)).delivery_count == 2

    asyncio.run(main())


@pytest.mark.feature("Q5")
def test_the_end_gives_everything_back_at_once(case: Case) -> None:
    async def main() -> None:
        await case.publish(6)
        async with case.subscriber(6) as first:
            one = await first.receive(30)
            one.acknowledge()
        refused: list[SettlementResult] = []
        async with case.subscriber(6, on_refused=refused.append) as second:
            held = [await second.receive(30) for _ in range(5)]
            assert one.bookmark not in {delivery.bookmark for delivery in held}
        await second.close()
        held[0].acknowledge()
        assert [refusal.result for refusal in refused] == ["not_sent"]
        with pytest.raises(Closed):
            await second.settle("acknowledge", held, wait=True)
        with pytest.raises(Closed):
            await second.start()
        await case.gone(5)
        async with case.subscriber(6) as third:
            assert {(await third.receive(30)).bookmark for _ in range(5)} == {one.bookmark for one in held}

    asyncio.run(main())


@pytest.mark.feature("X7")
def test_what_is_wrong_is_reported_by_its_kind(case: Case) -> None:
    async def main() -> None:
        with pytest.raises(CommandFailed) as refused:
            await case.subscriber(filter="bad").start()
        assert refused.value.code == ErrorCode.INVALID_EXPRESSION
        with pytest.raises(UnknownEntity, match=case.name) as unknown:
            await case.api.QueueSubscriber(case.name + "x", connection=case.connection).start()
        assert case.name in unknown.value.known
        with pytest.raises(Closed):
            await case.subscriber().receive(0.1)
        with pytest.raises(UnknownEntity):
            async with case.api.Publisher(case.connection) as publisher:
                await publisher.publish(case.name + "x", "nothing")

    asyncio.run(main())


@pytest.mark.feature("Q5", "C55")
def test_a_subscription_goes_on_over_a_take_over(case: Case, backend: Backend) -> None:
    async def main() -> None:
        await case.publish(5)
        async with case.subscriber(2) as subscriber:
            held = [await subscriber.receive(30) for _ in range(2)]
            async with case.queue() as queue:
                (before,) = await queue.subscriptions()
                assert (before.outstanding, before.max_backlog) == (2, 2)
                assert 0 < before.since_ms <= held[0].lease_until_ms
                await asyncio.to_thread(backend.crash)
                (after,) = await queue.subscriptions()
                assert (after.subscription, after.since_ms) == (before.subscription, before.since_ms)
            for delivery in held:
                delivery.acknowledge()
            seen = {delivery.bookmark for delivery in held}
            async for delivery in subscriber.messages(60):
                delivery.acknowledge()
                seen.add(delivery.bookmark)
                if len(seen) == 5:
                    break
            await subscriber.flush()
            await case.gone()

    asyncio.run(main())


# SOW topics


async def fill(api: Any, backend: Backend) -> str:
    """A SOW topic with the records `{"n": 0}` to `{"n": 9}`."""
    name = backend.sow()
    async with api.Publisher(backend.connection) as publisher:
        for number in range(10):
            await publisher.publish(name, orjson.dumps({"n": number}), key=str(number))
    async with api.SowClient(name, connection=backend.connection) as sow:

        async def full() -> bool:
            return len([record async for record in sow.query()]) == 10

        await until(full)
    return name


def numbers(records: list[Any]) -> list[int]:
    return [orjson.loads(record.value)["n"] for record in records]


@pytest.mark.feature("S5")
def test_a_query_is_one_result_of_all_shards(api: Any, backend: Backend) -> None:
    async def main() -> None:
        name = await fill(api, backend)
        async with api.SowClient(name, connection=backend.connection) as sow:

            async def found(*arguments: Any, **options: Any) -> list[int]:
                return numbers([record async for record in sow.query(*arguments, **options)])

            everything = [record async for record in sow.query()]
            assert all(record.kind == "sow" and record.bookmark.topic == name for record in everything)
            assert {record.key: record.value for record in everything} == {
                b"%d" % number: orjson.dumps({"n": number}) for number in range(10)
            }
            assert sorted(await found("/n < 3")) == [0, 1, 2]
            assert await found(keys=["7"]) == [7]
            assert await found(order_by="/n DESC", top_n=3, skip=1) == [8, 7, 6]
            with pytest.raises(CommandFailed) as refused:
                await found("/n <")
            assert refused.value.code == ErrorCode.INVALID_EXPRESSION
        with pytest.raises(UnknownEntity, match=name):
            await api.SowClient(name + "x", connection=backend.connection).start()
        with pytest.raises(Closed):
            await found()

    asyncio.run(main())


@pytest.mark.feature("S3", "S6", "S7")
def test_the_state_comes_first_then_what_changes(api: Any, backend: Backend) -> None:
    async def main() -> None:
        name = await fill(api, backend)
        async with (
            api.SowClient(name, connection=backend.connection) as sow,
            sow.sow_and_subscribe("/n >= 8") as updates,
            sow.subscribe() as later,
            api.Publisher(backend.connection) as publisher,
        ):

            async def updates_of(subscription: Any, count: int) -> list[tuple[str, bytes | None, str]]:
                some: list[tuple[str, bytes | None, str]] = []
                async for update in subscription.updates(30):
                    some.append((update.kind, update.key, update.operation))
                    if len(some) == count:
                        break
                return some

            assert sorted(await updates_of(updates, 3)) == [
                ("group-end", None, ""),
                ("sow", b"8", ""),
                ("sow", b"9", ""),
            ]
            open_ones = await sow.subscriptions()
            assert len(open_ones) == 2
            assert all(one.since_ms > 0 for one in open_ones)
            await publisher.publish(name, b'{"n": 10}', key="10")
            assert await updates_of(updates, 1) == [("publish", b"10", "")]
            assert await updates_of(later, 1) == [("publish", b"10", "")]
            assert await sow.delete(keys=["9", "nobody"]) == 1
            assert await updates_of(updates, 1) == [("oof", b"9", "deleted")]
            await publisher.publish(name, b'{"n": 1}', key="8")
            assert await updates_of(updates, 1) == [("oof", b"8", "no_longer_matches")]
            assert await updates_of(later, 1) == [("publish", b"8", "")], "of 9 it has seen nothing"
            assert await sow.delete(filter="/n < 3") == 4
            assert await updates_of(later, 1) == [("oof", b"8", "deleted")]
            assert sorted(numbers([record async for record in sow.query("/n > 6")])) == [7, 10]

    asyncio.run(main())


@pytest.mark.feature("L5", "C47")
def test_updates_that_wait_are_listed_and_withdrawn_and_records_stay(api: Any, backend: Backend) -> None:
    """Five updates wait for an hour that does not come: they are in order of their instants, over all shards."""
    hour_ms = (int(time.time()) + 3_600) * 1_000

    async def main() -> None:
        name = await fill(api, backend)
        async with (
            api.SowClient(name, connection=backend.connection) as sow,
            api.Publisher(backend.connection) as publisher,
        ):
            for number in (4, 2, 0, 1, 3):
                value = orjson.dumps({"n": 100 + number})
                await publisher.publish(name, value, key=str(number), enqueue_at_ms=hour_ms + number)

            async def all_wait() -> bool:
                return bool((await sow.depth())["scheduled"] == 5)

            await until(all_wait)
            waiting = await sow.scheduled()
            assert [(one.key, one.change, one.enqueue_at_ms - hour_ms) for one in waiting] == [
                (str(number), "publish", number) for number in range(5)
            ]
            assert await sow.scheduled(top_n=2, skip=1) == waiting[1:3]
            assert await sow.scheduled(filter="/n > 102") == waiting[3:]
            with pytest.raises(CommandFailed) as refused:
                await sow.scheduled(filter="/n >")
            assert refused.value.code == ErrorCode.INVALID_EXPRESSION
            assert await sow.withdraw(bookmarks=[Bookmark.parse(waiting[1].bookmark)]) == 1
            assert await sow.withdraw(bookmarks=[waiting[1].bookmark]) == 0
            assert await sow.withdraw(filter="/n >= 103") == 2
            assert await sow.scheduled() == [waiting[0], waiting[2]]
            assert await sow.withdraw(filter="TRUE") == 2
            assert (await sow.depth())["scheduled"] == 0
            assert sorted(numbers([record async for record in sow.query()])) == list(range(10))

    asyncio.run(main())


@pytest.mark.feature("X3")
def test_records_have_types_and_a_misfit_says_where_it_stands(api: Any, backend: Backend) -> None:
    async def main() -> None:
        name, serde = await fill(api, backend), JsonSerde(dict[str, int])
        async with (
            api.SowClient(name, connection=backend.connection, deserializer=serde) as sow,
            sow.subscribe() as updates,
            api.Publisher(backend.connection) as publisher,
        ):
            assert [record.payload async for record in sow.query("/n = 3")] == [{"n": 3}]
            for value in (b'{"n": "ten"}', b'{"n": 11}'):
                await publisher.publish(name, value, key="10")
            coming = updates.updates(30)
            misfit, fitting = [await anext(coming) for _ in range(2)]
            with pytest.raises(InvalidPayload, match=rf"{misfit.bookmark}: the payload is no .*n: Input should be"):
                _ = misfit.payload
            assert (misfit.value, fitting.payload) == (b'{"n": "ten"}', {"n": 11})

    asyncio.run(main())
