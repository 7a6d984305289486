"""Recorded work: how long consumers took, by deliveries and events."""

from __future__ import annotations

import pytest

from lapse.protocol import header
from lapse.protocol.bookmark import BookmarkRange
from lapse.protocol.event import Event
from lapse.simulation.recorded_work import recorded_arrivals, recorded_work
from lapse.simulation.recording import Recorded, Recording

pytestmark = pytest.mark.feature("X10")


def delivery(at_ms: int, offset: int, count: int = 1, to: str = "one", epoch: int = 1) -> Recorded:
    headers = {
        header.KIND: b"delivery",
        header.SUBSCRIPTION: to.encode(),
        header.EPOCH: b"%d" % epoch,
        header.BOOKMARK: b"t:0:%d" % offset,
        header.DELIVERY_COUNT: b"%d" % count,
    }
    return Recorded("lapse.q.deliveries", 0, 0, at_ms, 1, None, b"", tuple(headers.items()))


def recorded(at_ms: int, kind: str, *offsets: int, subscription: str = "") -> Event:
    messages = tuple(BookmarkRange("t", 0, offset, offset) for offset in offsets)
    return Event(entity="q", event=kind, at_ms=at_ms, partition=0, messages=messages, subscription=subscription)


def test_a_consumer_works_on_one_message_after_the_other() -> None:
    found = recorded_work(
        [delivery(100, 0), delivery(100, 1), delivery(500, 2)],
        [recorded(150, "acknowledged", 0), recorded(230, "cancelled", 1), recorded(560, "acknowledged", 2)],
    )
    assert found.took_ms == {("t", 0, 0): 50, ("t", 0, 1): 80, ("t", 0, 2): 60}
    assert found.backlog == 2


def test_what_lost_its_lease_or_was_delivered_again_has_the_time_of_who_settled_it() -> None:
    found = recorded_work(
        [delivery(50, 9, epoch=2), delivery(60, 7)],
        [recorded(80, "acknowledged", 9), recorded(90, "acknowledged", 7)],
    )
    assert found.took_ms == {("t", 0, 9): 30}  # a later record of a lower epoch is void to clients
    found = recorded_work(
        [delivery(100, 0), delivery(300, 0, 2, "two")],
        [recorded(290, "lease_returned", 0), recorded(340, "acknowledged", 0)],
    )
    assert found.took_ms == {("t", 0, 0): 40}


def test_consumers_are_counted_once_over_all_partitions() -> None:
    events = [
        recorded(1, "subscribed", subscription="a"),
        recorded(1, "subscribed", subscription="a"),
        recorded(2, "subscribed", subscription="b"),
        recorded(3, "unsubscribed", subscription="a"),
        recorded(4, "subscribed", subscription="c"),
    ]
    assert recorded_work([], events).subscribers == 2


def test_messages_arrive_in_the_order_of_the_log_whatever_their_producers_clocks_say() -> None:
    def record(partition: int, offset: int, at_ms: int) -> Recorded:
        return Recorded("t", partition, offset, at_ms, 0, None, b"", ())

    recording = Recording({"t": 2}, [record(0, 0, 50), record(0, 3, 40), record(0, 4, 60), record(1, 0, 45)])
    found = recorded_arrivals(recording, ["t"], None, None)
    assert [(one.at_ms, one.partition, one.record.offset) for one in found] == [
        (45, 1, 0),
        (50, 0, 0),
        (50, 0, 3),
        (60, 0, 4),
    ]
    assert found.partitions == 2
    assert len(recorded_arrivals(recording, ["t"], 50, 50)) == 2


def test_subscribers_of_a_deleted_queue_of_the_same_name_are_gone() -> None:
    events = [
        recorded(1, "subscribed", subscription="a"),
        recorded(2, "subscribed", subscription="b"),
        recorded(3, "deleted"),
        recorded(4, "subscribed", subscription="c"),
    ]
    assert recorded_work([], events).subscribers == 2
