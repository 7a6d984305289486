"""Rows become RecordBatches: in order, none left out, none larger than it may be unless one record is."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import MessageSizeTooLargeError
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.runtime.kafka.output import MAX_BATCH_BYTES
from lapse.runtime.kafka.packed_record import packed
from lapse.runtime.kafka.producer import MAX_FOREIGN_BATCH_BYTES, BatchProducer, filled
from lapse.runtime.kafka.record_batch import Leased, PackedBatch, Row
from lapse.runtime.kafka.timely_accumulator import without_leased


def batches(rows: list[Row]) -> list[tuple[int, int]]:
    """Records and bytes of each batch."""
    found, done = [], 0
    while done < len(rows):
        batch, stop = filled(rows, done, len(rows))
        assert stop > done
        assert batch.record_count() == stop - done
        found.append((stop - done, batch.size()))
        done = stop
    return found


def row(size: int, header: int = 0) -> Row:
    return b"k", b"v" * size, [("h", b"h" * header)]


def test_small_records_fill_batches() -> None:
    counts = [count for count, _ in batches([row(200)] * 10_000)]
    assert sum(counts) == 10_000
    assert counts[0] * 200 > MAX_FOREIGN_BATCH_BYTES * 0.8


def test_a_large_record_does_not_spoil_the_batch_before_it() -> None:
    assert [count for count, _ in batches([row(10), row(10), row(MAX_FOREIGN_BATCH_BYTES), row(10)])] == [2, 1, 1]


def test_a_record_beyond_every_limit_is_left_to_the_broker() -> None:
    ((count, size),) = batches([row(MAX_BATCH_BYTES + 1)])
    assert count == 1
    assert size > MAX_BATCH_BYTES


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 10, 5_000, 70_000, 450_000, 899_000, 5_000_000]), st.sampled_from([0, 5, 300_000])
        ),
        max_size=12,
    )
)
def test_no_batch_of_several_records_is_too_large(sizes: list[tuple[int, int]]) -> None:
    found = batches([row(*size) for size in sizes])
    assert sum(count for count, _ in found) == len(sizes)
    assert all(size <= MAX_FOREIGN_BATCH_BYTES for count, size in found if count > 1)


@pytest.mark.feature("C52", "C55", "D3")
def test_nothing_is_written_behind_a_refused_part_of_a_journal() -> None:
    """An epoch begins with the state under new keys, and then removes the old ones: they were gone, and all of it."""
    sent: list[int] = []

    async def send_batch(batch: Any, topic: str, *, partition: int) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        sent.append(batch.record_count())
        if len(sent) == 2:
            future.set_exception(MessageSizeTooLargeError())
        else:
            future.set_result(None)
        return future

    async def run() -> None:
        producer: Any = BatchProducer("nowhere:1", {})
        cluster = SimpleNamespace(partitions_for_topic=lambda _: {0})
        producer._producer = SimpleNamespace(send_batch=send_batch, client=SimpleNamespace(cluster=cluster))
        state = [(b"new-%d" % number, b"v" * 500_000) for number in range(3)]
        with pytest.raises(MessageSizeTooLargeError):
            await producer.write_in_batches("journal", 0, [*state, (b"old", None)], [])

    asyncio.run(run())
    assert sent == [1, 1]


@pytest.mark.feature("L10")
@pytest.mark.parametrize("is_packed", [False, True])
def test_what_is_sent_again_without_its_deliveries_has_the_same_numbers(is_packed: bool) -> None:
    """Kafka knows a batch by them. So it keeps one of the two, and the next batch is in sequence."""
    rows = [(None, b"%d" % number, [("lapse-kind", b"delivery")]) for number in range(3)]
    if is_packed:
        batch: Any = PackedBatch()
        batch.add_packed([packed(None, b"late", 0, b"")] * 3, 0, 3, 1_000)
        leased = Leased(0, None)
    else:
        batch, _ = filled(rows, 0, 3)
        leased = Leased(0, [None, rows[1], None])
    batch._set_producer_state(7, 3, 11)
    left = without_leased(batch, leased, is_numbered=True)
    read = DefaultRecordBatch(bytes(left._build()))
    assert (read.producer_id, read.producer_epoch, read.base_sequence) == (7, 3, 11)
    found = [(record.value, record.headers) for record in read]
    void = (None, [("lapse-kind", b"void")])
    assert found == [void, void if is_packed else (b"1", rows[1][2]), void]
    assert without_leased(batch, leased, is_numbered=False).record_count() == (0 if is_packed else 1)
