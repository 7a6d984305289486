"""What stands in a deliveries topic, and from where on it has to be read (C55)."""

import asyncio
from typing import Any, NamedTuple

import numpy as np
import pytest

from lapse.core.queue.step import Messages
from lapse.protocol import header, reference
from lapse.runtime.queue.unwritten import Row, Written, take
from lapse.runtime.shard.sent_log import PROGRESS_KEY, SentLog


class Delivered(NamedTuple):
    headers: list[tuple[str, bytes]]
    value: bytes | None = None


def delivered(epoch: int, offset: int, count: int = 1, **more: bytes) -> Delivered:
    headers = [
        (header.KIND, b"delivery"),
        (header.SUBSCRIPTION, b"inky"),
        (header.EPOCH, b"%d" % epoch),
        (header.BOOKMARK, b"orders:0:%d" % offset),
        (header.DELIVERY_COUNT, b"%d" % count),
        *more.items(),
    ]
    return Delivered(headers)


def released(epoch: int, offset: int) -> Delivered:
    headers = [*delivered(epoch, offset, count=0).headers[1:], (header.KIND, b"barrier")]
    return Delivered(headers)


def begins(epoch: int) -> Delivered:
    return Delivered([(header.KIND, b"epoch"), (header.EPOCH, b"%d" % epoch)])


def missing(*records: Delivered, counts: list[int] | None = None) -> list[int]:
    written, epoch, rows = Written(), 0, set[Row]()
    for record in records:
        epoch = take(record, epoch, rows)
    written.rows["deliveries"] = rows
    offsets = np.arange(4, dtype=np.int64)
    deliveries = np.array(counts or [1] * 4, np.uint32)
    return written.missing("deliveries", "inky", Messages("orders", 0, offsets, None, deliveries, None))


@pytest.mark.feature("C55", "D4")
def test_what_a_reader_may_take_is_written_and_all_else_is_not() -> None:
    referred = reference.encode("orders", 0, [(2, 3, 1)], b"")
    by_reference = Delivered([(header.KIND, reference.KIND), (header.SUBSCRIPTION, b"inky")], referred)
    stray = Delivered([(header.KIND, b"delivery"), (header.SUBSCRIPTION, b"inky"), (header.BOOKMARK, b"a")])
    assert missing() == [0, 1, 2, 3]
    assert missing(delivered(3, 1), stray, by_reference) == [0, 2, 3]
    assert missing(by_reference, delivered(3, 0)) == [1]
    assert missing(delivered(3, 0), delivered(3, 1, count=2), counts=[2, 2, 1, 1]) == [0, 2, 3]
    assert missing(released(3, 2), counts=[0] * 4) == [0, 1, 3]
    # A message's own header of the same name stands behind the shard's.
    assert missing(delivered(3, 0, **{header.BOOKMARK: b"orders:0:1"})) == [1, 2, 3]


@pytest.mark.feature("C55", "X7")
@pytest.mark.parametrize(
    "header_of",
    [
        *((header.EPOCH, epoch) for epoch in (None, b"", b"x", b"-1", b"9" * 19, b"9" * 5_000)),
        *((name, None) for name in (header.KIND, header.SUBSCRIPTION, header.BOOKMARK, header.DELIVERY_COUNT)),
        (header.DELIVERY_COUNT, b"9" * 5_000),
        (header.BOOKMARK, b"\xff"),
    ],
)
def test_what_anybody_may_write_to_a_deliveries_topic_stops_no_take_over(header_of: tuple[str, Any]) -> None:
    others = [one for one in delivered(3, 0).headers if one[0] != header_of[0]]
    assert missing(Delivered([*others, header_of]), delivered(3, 1)) in ([2, 3], [0, 2, 3])
    assert 0 <= header.epoch_of(dict([header_of])) < 1 << 63


@pytest.mark.feature("C55", "X7")
def test_a_reference_that_no_shard_can_have_written_hands_out_nothing() -> None:
    headers = [(header.KIND, reference.KIND), (header.SUBSCRIPTION, b"inky")]
    for first, last in ((0, (1 << 63) - 1), (-(1 << 63), (1 << 63) - 1)):
        assert missing(Delivered(headers, reference.encode("orders", 0, [(first, last, 1)], b""))) == [0, 1, 2, 3]
    assert missing(Delivered(headers, reference.encode("orders", 0, [(3, 0, 1), (1, 1, 1)], b""))) == [0, 1, 2, 3]


@pytest.mark.feature("C55", "C13")
def test_what_an_owner_wrote_behind_its_successor_is_void_and_what_a_torn_take_over_wrote_counts() -> None:
    assert missing(delivered(3, 0), begins(4), delivered(3, 1), delivered(4, 2), begins(5)) == [1, 3]


@pytest.mark.feature("C55", "Q6")
def test_where_nothing_is_known_nothing_is_missing() -> None:
    one = Messages("orders", 0, np.arange(4, dtype=np.int64), None, np.ones(4, np.uint32), None)
    assert Written().missing("deliveries", "inky", one) == []


@pytest.mark.feature("C55")
def test_the_place_to_read_from_moves_on_when_a_whole_step_is_safe() -> None:
    class Metadata(NamedTuple):
        topic: str
        offset: int

    async def sent(log: SentLog) -> list[Any]:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(3)]
        log.add(7, futures[:2])
        log.add(9, futures[2:])
        logged = [log.progress(10)]
        for at, future in enumerate(futures):
            future.set_result(Metadata("deliveries", 100 + at))
            await log.first()
            logged.append(log.progress(10))
        return [one[PROGRESS_KEY] for one in logged]

    assert asyncio.run(sent(SentLog({"deliveries": 5}))) == [
        {"step": 7, "from": {"deliveries": 5}},
        {"step": 7, "from": {"deliveries": 5}},
        {"step": 9, "from": {"deliveries": 101}},
        {"step": 10, "from": {"deliveries": 102}},
    ]
    assert SentLog({}).progress(10) == {}
