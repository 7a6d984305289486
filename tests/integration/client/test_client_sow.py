"""The SOW client against a scripted SOW topic on a real broker."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest
from confluent_kafka import Producer

from lapse.protocol import topic
from lapse_client import (
    CommandFailed,
    Connection,
    EntityDeleted,
    InvalidPublication,
    Publisher,
    Queue,
    SowClient,
    UnknownEntity,
    aio,
)
from support.clients.scripted_sow import ScriptedSow
from support.kafka.log import until


@pytest.fixture
def prices(kafka: str, unique: Callable[[str], str]) -> Iterator[ScriptedSow]:
    scripted = ScriptedSow(kafka, unique("prices"), 3)
    with Publisher(Connection(kafka)) as publisher:
        for number in range(30):
            publisher.publish(scripted.name, orjson.dumps({"n": number, "even": number % 2 == 0}), key=str(number))
    while scripted.size() < 30:
        time.sleep(0.01)
    yield scripted
    scripted.stop()


def client(prices: ScriptedSow) -> SowClient:
    return SowClient(prices.name, connection=Connection(prices.servers))


def numbers(records: object) -> list[int]:
    return [orjson.loads(record.value)["n"] for record in records]


@pytest.mark.feature("S5", "X3")
def test_results_of_all_shards_are_one_result(prices: ScriptedSow) -> None:
    with client(prices) as sow:
        records = list(sow.query())
        assert sorted(numbers(records)) == list(range(30))
        assert all(record.expires_at_ms == record.bookmark.offset + 10_000 for record in records)
        assert all(record.timestamp_ms == 5 for record in records)
        assert sorted(numbers(sow.query("/n < 5"))) == [0, 1, 2, 3, 4]
        assert numbers(sow.query(keys=["7"])) == [7]
        assert numbers(sow.query(order_by="/n")) == list(range(30))
        assert numbers(sow.query("/even", order_by="/n DESC", top_n=4, skip=2)) == [24, 22, 20, 18]
        assert len(list(sow.query(top_n=7, skip=25))) == 5
        assert list(sow.query(top_n=0)) == []
        assert list(sow.query(keys=[])) == []
        with pytest.raises(ValueError, match="field top_n: expected 0 or more, not '-1'"):
            list(sow.query(top_n=-1))


@pytest.mark.feature("S5", "X3")
def test_an_ordered_result_that_a_take_over_cuts_short_begins_again_whole(prices: ScriptedSow) -> None:
    """What came before the take-over was another snapshot. Both together would have neither's order."""
    prices.most_sent = 2
    with client(prices) as sow, Publisher(Connection(prices.servers)) as publisher, ThreadPoolExecutor(1) as thread:
        found = thread.submit(lambda: numbers(sow.query(order_by="/n", top_n=5)))
        until(lambda: prices.groups == 3, "each shard has sent a part")
        for number in (-1, -2):
            publisher.publish(prices.name, b'{"n": %d}' % number, key=str(number))
        until(lambda: prices.size() == 32, "records that come before all others")
        prices.take_over()
        assert found.result(30) == [-2, -1, 0, 1, 2]


@pytest.mark.feature("S5", "X7")
def test_a_wrong_filter_shows_the_spot(prices: ScriptedSow) -> None:
    with client(prices) as sow, pytest.raises(CommandFailed, match="filter"):
        list(sow.query("/n <"))


@pytest.mark.feature("X7")
def test_texts_that_utf_8_cannot_hold_are_refused_and_end_nothing(prices: ScriptedSow) -> None:
    """A command line has such texts for bytes that are no UTF-8; Kafka's client ended the process over some."""
    connection = Connection(prices.servers)
    with client(prices) as sow:
        for ask in (
            lambda: list(sow.query("/n = '\udcff'")),
            lambda: list(sow.query(select=["/\udcff"])),
            lambda: sow.delete(filter="/n = '\udcff'"),
            lambda: sow.subscribe("/n = '\udcff'").start(),
        ):
            with pytest.raises(CommandFailed, match="is no text that UTF-8 can hold") as refused:
                ask()
            assert refused.value.code == "invalid_argument"
        assert len(list(sow.query())) == 30
    with Publisher(connection) as publisher:
        for options in ({"value": "\udcff"}, {"value": None, "key": "\udcff"}):
            with pytest.raises(InvalidPublication, match="no text that UTF-8 can hold"):
                publisher.publish(prices.name, **options)
        with pytest.raises(UnknownEntity):
            publisher.publish("\udcff", b"{}")


@pytest.mark.feature("S3", "X3")
def test_delete_counts_what_it_removed(prices: ScriptedSow) -> None:
    with client(prices) as sow:
        assert sow.delete(keys=["1", "2", "nobody"]) == 2
        assert sow.delete(filter="/n >= 20") == 10
        with pytest.raises(ValueError, match="field filter: is empty; leave it out, or send TRUE"):
            sow.delete(filter="")
        with pytest.raises(ValueError, match="only one"):
            sow.delete()
        assert len(list(sow.query())) == 18


@pytest.mark.feature("S6", "S7", "X3")
def test_the_state_comes_first_then_what_changes(prices: ScriptedSow) -> None:
    connection = Connection(prices.servers)
    foreigner = Producer({"bootstrap.servers": prices.servers})
    with client(prices) as sow, sow.sow_and_subscribe("/n < 3", heartbeat_timeout_ms=600) as updates:
        first = []
        for update in updates:
            if update.kind == "group-end":
                break
            first.append(update)
        assert sorted(numbers(first)) == [0, 1, 2]
        with Publisher(connection) as publisher:
            publisher.publish(prices.name, b'{"n": 1, "again": true}', key="1")
            publisher.publish(prices.name, None, key="1")
            for name, value in (("lapse-timestamp-ms", "soon"), ("lapse-shards", "x"), ("lapse-bookmark", "a:b")):
                kind = "epoch" if name == "lapse-shards" else "publish"
                headers = {"lapse-kind": kind, "lapse-subscription": updates.name, name: value}
                foreigner.produce(topic.deliveries(prices.name), b"{}", partition=1, headers=headers)
            foreigner.flush()
        stream = updates.updates(timeout=10)
        assert [next(stream).kind, next(stream).kind] == ["publish", "oof"], "what no worker wrote is passed over"
        prices.refusals = 3
        prices.forget()
        kinds = [update.kind for update in updates.updates(timeout=3)]
        assert kinds.count("resubscribed") == 3, "once for each shard, however many heartbeats it refused"
        assert kinds.count("sow") == 2
    assert not any(prices.subscriptions)


@pytest.mark.feature("C20", "S6", "X3")
def test_a_subscription_that_is_lost_twice_before_its_query_is_finished_begins_again_at_once(
    prices: ScriptedSow,
) -> None:
    prices.queries_lost[1] = 3
    with client(prices) as sow, sow.sow_and_subscribe() as updates:
        kinds = []
        for update in updates.updates(timeout=8):
            kinds.append((update.kind, update.partition if update.kind == "resubscribed" else None))
            if update.kind == "group-end":
                break
    assert kinds.count(("resubscribed", 1)) == 3
    assert kinds[-1][0] == "group-end"
    assert [kind for kind, _ in kinds].count("sow") == prices.size()


@pytest.mark.feature("S7", "C4", "X3")
def test_a_deleted_topic_ends_a_subscription_once_all_shards_have_sent_their_records_out_of_focus(
    prices: ScriptedSow,
) -> None:
    with client(prices) as sow, sow.sow_and_subscribe() as updates:
        stream = updates.updates(timeout=10)
        keys, gone = set(), set()
        for update in stream:
            if update.kind == "group-end":
                break
            keys.add(update.key)
        for partition in range(3):
            prices.end(partition)
            until(lambda one=partition: prices.ended[one], "it refuses a heartbeat")
        for _ in range(30):
            update = next(stream)
            assert update.kind == "oof"
            gone.add(update.key)
        assert gone == keys
        with pytest.raises(EntityDeleted):
            next(stream)


@pytest.mark.feature("S6", "S7", "X3")
def test_a_query_that_begins_again_is_announced_since_records_may_have_left_unseen(prices: ScriptedSow) -> None:
    """A shard that took over in the middle of a query does not know which records its former owner had sent."""
    with client(prices) as sow, sow.sow_and_subscribe() as updates:
        view: dict[bytes, int] = {}
        stream = updates.updates(timeout=10)
        for update in stream:
            if update.kind == "group-end":
                break
            view[update.key] = update.partition
        gone = next(key for key, partition in view.items() if partition == 1)
        prices.begin_again(1, gone)
        announced = next(stream)
        assert (announced.kind, announced.partition) == ("resubscribed", 1)
        again = {next(stream).key for _ in prices.records[1]}
        assert again == {key for key, partition in view.items() if partition == 1} - {gone}


@pytest.mark.feature("S5", "S6", "X3")
def test_the_asynchronous_flavour_does_the_same(prices: ScriptedSow) -> None:
    async def main() -> None:
        async with aio.SowClient(prices.name, connection=Connection(prices.servers)) as sow:
            records = [record async for record in sow.query(order_by="/n")]
            assert numbers(records) == list(range(30))
            async with sow.subscribe() as updates:
                async with aio.Publisher(Connection(prices.servers)) as publisher:
                    await publisher.publish(prices.name, b'{"n": 99}', key="99")
                async for update in updates:
                    assert (update.kind, update.key) == ("publish", b"99")
                    break
            assert await sow.delete(keys=["99"]) == 1

    asyncio.run(main())


@pytest.mark.feature("X7")
def test_an_unknown_topic_is_named_with_those_that_exist(prices: ScriptedSow) -> None:
    with pytest.raises(UnknownEntity) as caught:
        SowClient("nowhere", connection=Connection(prices.servers)).start()
    assert prices.name in caught.value.known
    with pytest.raises(UnknownEntity, match="it is a SOW topic"):
        Queue(prices.name, connection=Connection(prices.servers)).start()
