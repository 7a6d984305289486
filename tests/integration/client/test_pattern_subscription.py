"""A subscription that names queues by a regular expression, while its queues are deleted and made anew (Q3, X3, C4)."""

import asyncio
import re
from collections.abc import Iterator

import pytest

from lapse.protocol import topic
from lapse_client import aio
from lapse_client.delivery.delivery import Delivery
from lapse_client.error import EntityDeleted
from lapse_client.subscriber.settlement import SettlementResult
from lapse_client.subscriber.subscriber import QueueSubscriber
from support.kafka.log import header, until
from support.processes.deployment import Deploy, Deployment

QUEUES = {
    "p-stays": {"partitions": 2},
    "p-goes": {"partitions": 2},
    "r-stays": {"partitions": 1},
    "r-goes": {"partitions": 1},
    "s-first": {"partitions": 1},
    "s-second": {"partitions": 1},
    "t-narrow": {"partitions": 1, "max_per_subscription_backlog": 3},
    "t-wide": {"partitions": 2, "max_per_subscription_backlog": 50},
}

pytestmark = pytest.mark.feature("Q3", "X3", "C4")


@pytest.fixture(scope="module")
def lot(deploy: Deploy) -> Iterator[Deployment]:
    deployment = deploy(QUEUES).apply()
    deployment.worker().wait_for_shards(sum(settings["partitions"] for settings in QUEUES.values()), 120)
    yield deployment
    assert deployment.workers[0].running, deployment.logs()


def pattern(deployment: Deployment, stem: str) -> re.Pattern[str]:
    return re.compile(f"{stem}-[a-z]+-{deployment.token}")


def receive(subscriber: QueueSubscriber, count: int) -> list[Delivery]:
    """So many deliveries."""
    found: list[Delivery] = []
    while len(found) < count:
        delivery = subscriber.receive(30)
        assert delivery is not None, f"{len(found)} of {count}"
        found.append(delivery)
    return found


def wait_until_removed(deployment: Deployment, stem: str) -> None:
    """The topics of a deleted queue are gone."""
    commands = topic.commands(deployment.name(stem))
    until(lambda: commands not in deployment.connection.partitions(), f"{commands} is removed", 40)


def test_the_smallest_cap_of_its_queues_counts_over_all_of_them_from_the_first_delivery_on(lot: Deployment) -> None:
    for stem, partitions in (("t-narrow", 1), ("t-wide", 2)):
        for partition in range(partitions):
            lot.write(stem, *[f"{stem} {number}" for number in range(10)], partition=partition)

    def leased() -> int:
        return sum(lot.depth(stem)["leased"] for stem in ("t-narrow", "t-wide"))

    tails = [lot.tail(topic.deliveries(lot.name(stem))) for stem in ("t-narrow", "t-wide")]
    with QueueSubscriber(pattern(lot, "t"), 40, connection=lot.connection, payload="inline") as subscriber:
        held = receive(subscriber, 3)
        assert subscriber.receive(1) is None, "more than the smallest cap"
        assert leased() == 3
        published = [record for tail in tails for record in tail.poll(1) if header(record, "lapse-kind") == b"delivery"]
        assert len(published) == 3, "nor was more handed out at the beginning, before all queues had answered"
        for delivery in held:
            delivery.acknowledge()
        for _ in range(27):
            receive(subscriber, 1)[0].acknowledge()
    until(lambda: not any(lot.depth(stem)["depth"] for stem in ("t-narrow", "t-wide")), "all are settled")


def test_it_goes_on_with_the_others_with_its_whole_backlog_and_joins_a_queue_of_the_same_name_again(
    lot: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lapse_client.subscriber.subscriber.LOOK_EVERY_S", 0.2)
    monkeypatch.setattr("lapse_client.subscriber.joined_queues.CLEANUP_MS", 3_000.0)
    refused: list[SettlementResult] = []
    options = {"connection": lot.connection, "on_refused": refused.append}
    with QueueSubscriber(pattern(lot, "p"), 10, **options) as subscriber:
        for stem in ("p-stays", "p-goes"):
            for partition in range(2):
                lot.write(stem, *[f"{stem} {number}" for number in range(10)], partition=partition)
        held = receive(subscriber, 8)
        assert {delivery.queue for delivery in held} == {lot.name("p-stays"), lot.name("p-goes")}
        late = [delivery for delivery in held if delivery.queue == lot.name("p-goes")]
        with lot.queue("p-goes") as queue:
            queue.delete(force=True)
        wait_until_removed(lot, "p-goes")
        # What it held of the deleted queue is settled in vain, and it is told so.
        with pytest.raises(EntityDeleted, match="p-goes"):
            subscriber.settle("renew", late[:1], wait=True)
        subscriber.acknowledge(late[1:3])
        subscriber.settle("cancel", late[3:])
        until(lambda: sum(len(result.messages) for result in refused) == len(late) - 1, "a report of each")
        assert {result.result for result in refused} == {"already_settled"}
        # The rest of the backlog is for the queues that are left.
        held = [delivery for delivery in held if delivery not in late]
        held += receive(subscriber, 10 - len(held))
        assert {delivery.queue for delivery in held} == {lot.name("p-stays")}
        assert subscriber.receive(0.5) is None, "more than the backlog"
        subscriber.acknowledge(held)
        subscriber.acknowledge(receive(subscriber, 10))
        until(lambda: lot.depth("p-stays")["depth"] == 0, "an empty queue", 60)
        # It comes again, with another worker, and begins with its topic.
        lot.apply()
        lot.worker().wait_for_shards(2)
        lot.write("p-goes", "anew")
        values = set()
        for _ in range(20 + 1):
            (delivery,) = receive(subscriber, 1)
            values.add(delivery.value)
            delivery.acknowledge()
        assert b"anew" in values
        until(lambda: lot.depth("p-goes")["depth"] == 0, "an empty queue", 60)
    lot.workers[1].stop()  # not before its shards have answered that the subscriber leaves


def test_the_asynchronous_one_goes_on_as_well(lot: Deployment) -> None:
    async def consume() -> list[bytes | None]:
        got: list[bytes | None] = []
        async with aio.QueueSubscriber(pattern(lot, "r"), 1, connection=lot.connection) as subscriber:
            for stem in ("r-goes", "r-stays"):
                await asyncio.to_thread(lot.write, stem, stem)
            for _ in range(2):
                delivery = await subscriber.receive(20)
                assert delivery is not None
                async with delivery:
                    got.append(delivery.value)
            with lot.queue("r-goes") as queue:
                await asyncio.to_thread(queue.delete, force=True)
            await asyncio.to_thread(wait_until_removed, lot, "r-goes")
            await asyncio.to_thread(lot.write, "r-stays", "more", "and more")
            async for delivery in subscriber.messages(20):
                async with delivery:
                    got.append(delivery.value)
                if len(got) == 4:
                    break
        return got

    got = asyncio.run(consume())
    assert sorted(map(str, got[:2])) == ["b'r-goes'", "b'r-stays'"]
    assert got[2:] == [b"more", b"and more"]


def test_it_waits_for_others_when_the_last_one_is_deleted(lot: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lapse_client.subscriber.subscriber.LOOK_EVERY_S", 0.2)
    only = re.compile(f"s-first-{lot.token}|s-second-{lot.token}")
    with lot.queue("s-second") as queue:
        queue.delete(force=True)
    wait_until_removed(lot, "s-second")
    with QueueSubscriber(only, 3, connection=lot.connection) as subscriber:
        with lot.queue("s-first") as queue:
            queue.delete(force=True)
        wait_until_removed(lot, "s-first")
        assert subscriber.receive(0.5) is None
        lot.configure({"s-second": QUEUES["s-second"]})
        lot.apply()
        lot.worker().wait_for_shards(1)
        lot.write("s-second", "at last")
        (delivery,) = receive(subscriber, 1)
        assert delivery.value == b"at last"
        delivery.acknowledge()
