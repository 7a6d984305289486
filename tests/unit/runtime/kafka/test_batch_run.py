"""Plain RecordBatches in a row are read together, and are those that aiokafka reads one by one."""

import struct
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.consumer.fetcher import READ_COMMITTED
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from lapse.runtime.kafka import batch_rows, columns, fetched
from lapse.runtime.kafka.batch_rows import records_of_run, rows_of_run
from lapse.runtime.kafka.checksum import CheckedRecords, crc32c
from lapse.runtime.kafka.columns import BatchRun, batches_at
from lapse.runtime.kafka.fetched import FetchedRecords
from lapse.runtime.kafka.fetched_rows import FetchedRows
from support.suite.compiled import NEEDS_COLUMNS

pytestmark = NEEDS_COLUMNS

_LARGE, _MANY = 1 << 15, 1_000  # bytes of a batch, records
_ATTRIBUTES_AT, _CRC_AT, _LAST_DELTA_AT, _COUNT_AT = 21, 17, 23, 57


def batch(base: int, count: int = 1, *, attributes: int = 0, behind: int = 0, size: int = 20, codec: int = 0) -> bytes:
    """Build a RecordBatch with records at `base` and behind."""
    builder = DefaultRecordBatchBuilder(2, codec, 0, 7, 0, 0, 1 << 24)
    for at in range(count):
        headers = [("lapse-ttl-ms", b"60000")] * ((base + at) % 3)
        builder.append(at, 1_000 + base + at, None if at % 4 == 3 else b"key", b"v" * size, headers)
    data = bytearray(builder.build())
    struct.pack_into(">q", data, 0, base)
    (own,) = struct.unpack_from(">h", data, _ATTRIBUTES_AT)
    struct.pack_into(">hi", data, _ATTRIBUTES_AT, own | attributes, count - 1 + behind)
    return whole(data)


def whole(data: bytearray) -> bytes:
    """Give a batch the length and the checksum of what it holds."""
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">I", data, _CRC_AT, crc32c(bytes(data[_ATTRIBUTES_AT:])))
    return bytes(data)


def fields(record: Any) -> tuple[Any, ...]:
    return (record.offset, record.timestamp, record.timestamp_type, record.key, record.value, tuple(record.headers))


def by_aiokafka(data: bytes) -> list[tuple[Any, ...]]:
    records, found = MemoryRecords(data), []
    while records.has_next():
        found += [fields(record) for record in records.next_batch()]
    return found


def taken(data: bytes) -> list[tuple[Any, ...]]:
    """Return the records that a consumer takes of a fetch, in as many turns as that takes."""
    tp = SimpleNamespace(topic="t", partition=0)
    records = FetchedRecords(tp, CheckedRecords(data), [], 0, None, None, False, READ_COMMITTED)
    found: list[tuple[Any, ...]] = []
    is_last = False
    while not is_last:
        some, is_last = records.take(None)
        found += [fields(one) for one in some]
    return found


@pytest.mark.feature("C41")
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=30), st.booleans())
def test_what_is_read_together_is_what_aiokafka_reads(shapes: list[tuple[int, int]], by_broker: bool) -> None:
    data, base = b"", 0
    for count, behind in shapes:
        data += batch(base, count, behind=behind, attributes=8 * by_broker)
        base += count + behind
    run = batches_at(data, 0, _LARGE, _MANY)
    assert run == BatchRun(len(data), sum(count for count, _ in shapes), base, int(by_broker))
    rows = rows_of_run(data, 0, run, few=True)
    assert rows is not None
    expected = by_aiokafka(data)
    assert [fields(rows[at]) for at in range(len(rows))] == expected
    assert [fields(one) for one in rows] == expected
    assert [fields(one) for one in records_of_run(data, 0, run)] == expected
    assert taken(data) == expected


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(batch(1, codec=1), id="compressed"),
        pytest.param(batch(1, attributes=0x10), id="in a transaction"),
        pytest.param(batch(1, attributes=0x20), id="a control batch"),
        pytest.param(batch(1, attributes=0x08), id="with the broker's timestamps"),
        pytest.param(batch(1, size=_LARGE), id="large"),
        pytest.param(batch(1, count=_MANY), id="too many records"),
        pytest.param(batch(1)[:-1], id="incomplete"),
        pytest.param(batch(1)[:60], id="less than a head"),
        pytest.param(batch(1)[:-1] + b"x", id="damaged"),
        pytest.param(batch(1)[:16] + b"\x01" + batch(1)[17:], id="of an old format"),
        pytest.param(whole(bytearray(batch(1)[:_COUNT_AT] + bytes(4) + batch(1)[61:])), id="without records"),
        pytest.param(whole(bytearray(batch(1)[:_COUNT_AT] + b"\x7f" * 4 + batch(1)[61:])), id="with a wrong count"),
    ],
)
def test_a_batch_that_is_not_plain_ends_what_is_read_together(other: bytes) -> None:
    plain, behind = batch(0), batch(5_000)
    assert batches_at(plain + other + behind, 0, _LARGE, _MANY) == BatchRun(len(plain), 1, 1, 0)


def test_a_length_that_is_none_is_refused() -> None:
    data = bytearray(batch(0))
    for length in (-1, -(1 << 31), 0, 13, (1 << 31) - 1):
        struct.pack_into(">i", data, 8, length)
        assert batches_at(bytes(data), 0, _LARGE, _MANY) is None
    for length in (-12, 0, 13):
        struct.pack_into(">i", data, 8, length)
        with pytest.raises(CorruptRecordException, match="fewer than any can have"):
            CheckedRecords(bytes(data)).next_batch()


@pytest.mark.feature("X7")
@pytest.mark.parametrize("in_columns", [False, True])
def test_batches_with_a_damaged_record_among_them_are_read_alone(
    in_columns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands before the damaged record is read, and so is what stands behind its batch."""
    monkeypatch.setattr(FetchedRows, "wanted", {"t"} if in_columns else set())
    monkeypatch.setattr(batch_rows, "_FEW", 1)
    damaged = bytearray(batch(2, count=2))
    damaged[61] += 4  # the first record's length
    alone = list[int]()
    passed = fetched._Batch.__init__

    def noted(self: Any, one: Any, of: Any, at: int, stop: int) -> None:
        alone.append(at)
        passed(self, one, of, at, stop)

    monkeypatch.setattr(fetched._Batch, "__init__", noted)
    before, behind = batch(0) + batch(1), batch(4) + batch(5)
    found = taken(before + whole(damaged) + behind)
    assert [(offset, value) for offset, _, _, _, value, _ in found] == [
        (0, b"v" * 20), (1, b"v" * 20), (2, None), (3, None), (4, b"v" * 20), (5, b"v" * 20)
    ]  # fmt: skip
    assert alone == [0, len(batch(0)), *(len(before) + at for at in (0, len(damaged), len(damaged) + len(batch(4))))]


@pytest.mark.feature("X7")
def test_names_of_headers_that_are_no_text_are_replaced() -> None:
    data = batch(0) + whole(bytearray(batch(1).replace(b"lapse-ttl-ms", b"lapse-\xff\xfe\xfd-ms"))) + batch(2)
    assert [record[5] for record in taken(data)] == [
        (), (("lapse-\ufffd\ufffd\ufffd-ms", b"60000"),), (("lapse-ttl-ms", b"60000"),) * 2
    ]  # fmt: skip


@given(st.binary(max_size=300))
def test_both_ways_to_a_checksum_are_right(data: bytes) -> None:
    library = columns.LIBRARY
    assert library is not None
    assert library.lapse_crc32c(data, len(data)) == crc32c(data)
    assert library.lapse_crc32c_by_tables(data, len(data)) == crc32c(data)
