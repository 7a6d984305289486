"""Rewinds with the worker's own machine: one order over partitions, forwarded messages, crashes, asyncio (Q22)."""

from __future__ import annotations

import asyncio

import pytest

from lapse.protocol.event import EventKind
from lapse.runtime.queue import rewind
from lapse.runtime.shard.log import Record
from lapse.testing import CrashPoint, Lapse
from lapse.testing.memory_log import MemoryLog
from lapse_client import CommandFailed, EventReader, aio
from lapse_client.reading.history import history
from support.suite.at_length import alike

pytestmark = pytest.mark.feature("Q22")


def publish(lapse: Lapse, to: str, count: int) -> None:
    with lapse.publisher() as publisher:
        for number in range(count):
            publisher.publish(to, b"%d" % number, key=b"%d" % number)


def consumed(lapse: Lapse, queue: str) -> list[str]:
    """Take and acknowledge what is there, however slowly it comes."""
    found = []
    with lapse.subscriber(queue, 5_000) as subscriber:
        while lapse.depth(queue):
            for delivery in subscriber.messages(1):
                found.append(str(delivery.bookmark))
                delivery.acknowledge()
            subscriber.flush()
    return found


@pytest.mark.feature("C63", "Q17")
@pytest.mark.parametrize("crash", alike(CrashPoint.JOURNAL, CrashPoint.EVENTS, CrashPoint.DELIVERIES, None))
def test_one_order_over_topics_and_partitions_comes_back_as_it_was(lapse: Lapse, crash: CrashPoint | None) -> None:
    for name in ("a", "b"):
        lapse.topic(name, 2)
    lapse.queue("all", topics=["a", "b"], ordering="total")
    for _ in range(3):
        for name, count in (("b", 300), ("a", 600)):
            publish(lapse, name, count)
            lapse.clock.advance(0.01)
    before = consumed(lapse, "all")
    assert len(before) == 2_700
    with lapse.queue_client("all") as client:
        assert client.rewind("beginning", dry_run=True)["rewound"] == 2_700
        if crash is not None:
            lapse.crash(crash)
        assert client.rewind("beginning", command_id="once")["rewound"] == 2_700
        assert client.rewind("beginning", command_id="once")["rewound"] == 2_700
        publish(lapse, "a", 1)
        *back, last = consumed(lapse, "all")
        assert back == [f"{one}~1" for one in before]
        assert "~" not in last
        assert client.rewind(lapse.clock.now_ms, filter="FALSE")["no_match"] == 1
        with pytest.raises(CommandFailed, match="1 ms after the command"):
            client.rewind(lapse.clock.now_ms + 1, dry_run=True)
        assert client.rewind(last)["rewound"] == 1
        assert consumed(lapse, "all") == [f"{last}~2"]


@pytest.mark.feature("X10", "C63")
@pytest.mark.parametrize("returned", [0, 450], ids=["as_asked", "more_than_asked"])
def test_the_parts_of_a_rewind_do_not_depend_on_how_much_a_read_of_the_log_returns(
    lapse: Lapse, monkeypatch: pytest.MonkeyPatch, returned: int
) -> None:
    """A broker sends whole batches, as many as fit: a replay would otherwise come to other parts, and events."""
    read = MemoryLog.read

    async def generous(self: MemoryLog, topic: str, partition: int, first: int, last: int) -> list[Record]:
        return await read(self, topic, partition, first, last + returned)

    monkeypatch.setattr(MemoryLog, "read", generous)
    monkeypatch.setattr(rewind, "_STEP_S", 60)  # a busy machine would have smaller parts
    for name in ("a", "b"):
        lapse.topic(name)
    lapse.queue("all", topics=["a", "b"], ordering="total")
    for name, count in (("a", 700), ("b", 300), ("a", 800)):
        publish(lapse, name, count)
        lapse.clock.advance(0.01)
    assert len(consumed(lapse, "all")) == 1_800
    with lapse.queue_client("all") as client:
        assert client.rewind("beginning")["rewound"] == 1_800
    events = [event for event in EventReader("all") if event.event == EventKind.REWOUND]
    assert [sum(len(list(some)) for some in event.messages) for event in events] == [1_000, 800]


@pytest.mark.feature("X1", "C61", "Q14")
@pytest.mark.parametrize("crashed", [False, True])
def test_the_offset_in_a_filter_is_that_of_the_record_in_every_generation(lapse: Lapse, crashed: bool) -> None:
    """A generation is part of a message's name. Its record is where it always was."""
    lapse.queue("orders")
    publish(lapse, "orders", 6)
    due_ms = lapse.clock.now_ms + 60_000
    with lapse.publisher() as publisher:
        publisher.publish("orders", b"later", enqueue_at_ms=due_ms)
    with lapse.queue_client("orders") as client:
        client.purge()
        assert client.rewind("beginning")["rewound"] == 7
        client.purge()
        assert client.rewind("beginning")["rewound"] == 7
        if crashed:
            lapse.crash()

        def chosen(text: str) -> list[str]:
            return [one.bookmark for one in client.peek(filter=text)]

        assert chosen("OFFSET() BETWEEN 2 AND 3") == ["orders:0:2~2", "orders:0:3~2"]
        assert chosen("OFFSET() >= 6") == ["orders:0:6~2"], "also while it is scheduled"
        assert client.depth(filter="OFFSET() < 4")["available"] == 4
        (settled,) = client.acknowledge(filter="OFFSET() = 3")
        assert str(settled.messages) == "orders:0:3~2"
        assert client.purge(filter="OFFSET() = 2 OR OFFSET() = 6")["removed"] == 2
        with lapse.subscriber("orders", 10, filter="OFFSET() % 2 = 0") as subscriber:
            assert [str(one.bookmark) for one in subscriber.messages(1)] == ["orders:0:0~2", "orders:0:4~2"]


@pytest.mark.feature("C62", "C78")
def test_what_was_forwarded_comes_back_on_request_and_is_forwarded_as_another_message(lapse: Lapse) -> None:
    lapse.topic("target")
    lapse.queue("from", forward_to="target")
    lapse.queue("target")
    publish(lapse, "from", 3)
    assert lapse.depth("target") == 3
    lapse.crash()
    with lapse.queue_client("from") as client:
        counts = client.rewind("beginning")
        assert {why: count for why, count in counts.items() if count} == {"elsewhere": 3}
        assert client.rewind("beginning", handed_over=True)["rewound"] == 3
    assert lapse.depth("target") == 6


def test_the_asynchronous_client_rewinds_as_well_and_bad_points_are_refused(lapse: Lapse) -> None:
    lapse.queue("orders")
    publish(lapse, "orders", 2)
    consumed(lapse, "orders")

    async def rewind() -> dict[str, int]:
        async with aio.Queue("orders", connection=lapse.connection) as client:
            return await client.rewind("orders:0:1", lifetimes="kept")

    assert asyncio.run(rewind())["rewound"] == 1
    with lapse.queue_client("orders") as client, pytest.raises(CommandFailed, match="expected beginning"):
        client.rewind("yesterday")


@pytest.mark.feature("C59", "C61", "D6")
def test_all_generations_of_a_message_are_reported_however_late_they_came_back(lapse: Lapse) -> None:
    lapse.queue("orders")
    publish(lapse, "orders", 1)
    (first,) = consumed(lapse, "orders")
    with lapse.queue_client("orders") as client:
        for again in (1, 2):
            lapse.clock.advance(3_600)
            assert client.rewind("beginning")["rewound"] == 1
            assert consumed(lapse, "orders") == [f"{first}~{again}"]
        lapse.clock.advance(3_600)
        assert client.rewind("beginning")["rewound"] == 1
        with lapse.subscriber("orders") as subscriber:
            assert subscriber.receive(1)
            lapse.settle()
            moments = history(first).moments
    life = {"rewound", "delivered", "acknowledged"}
    assert {one.message.generation for one in moments} == {0, 1, 2, 3}
    for generation, kinds in enumerate([{"arrived", *life} - {"rewound"}, life, life, life - {"acknowledged"}]):
        assert {one.what for one in moments if one.message.generation == generation} == kinds
    assert {one.what for one in history(f"{first}~1").moments} == {"arrived", *life}
