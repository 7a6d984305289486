"""Checksums of RecordBatches are those of aiokafka, and a damaged batch is not read."""

import inspect
import re

import pytest
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from hypothesis import given
from hypothesis import strategies as st

from lapse.runtime.kafka import checksum
from lapse.runtime.kafka.checksum import CheckedRecords, crc32c
from lapse.runtime.kafka.record_batch import RecordBatch


def batch(*values: bytes) -> bytes:
    built = RecordBatch()
    built.add_rows([(b"key", value, []) for value in values], 0, len(values), 1 << 30)
    return bytes(built._build())


def values(data: bytes) -> list[bytes]:
    found: list[bytes] = []
    records = CheckedRecords(data)
    while records.has_next():
        found += [record.value for record in records.next_batch()]
    return found


def test_everything_is_there_that_the_fetcher_asks_for() -> None:
    """Also of less than a batch, which is how a record larger than a fetch shows."""
    module = inspect.getsource(fetcher)  # the class itself may be lapse's by now
    reader = module[module.index("class PartitionRecords") : module.index("class Fetcher")]
    asked = set(re.findall(r"\b(?:records|self\._records)\.(\w+)\(", reader))
    asked |= set(re.findall(r"\brecords\.(\w+)\(", inspect.getsource(fetcher.Fetcher._proc_fetch_request)))
    assert {"has_next", "next_batch", "size_in_bytes"} == asked
    part = CheckedRecords(batch(b"cut")[:-1])
    assert not part.has_next()
    assert part.size_in_bytes() == len(batch(b"cut")) - 1
    assert all(hasattr(part, name) for name in asked)


@given(st.binary(max_size=300))
def test_the_checksum_is_the_one_that_aiokafka_computes(data: bytes) -> None:
    assert crc32c(data) == calc_crc32c(data)


def test_the_fast_checksum_is_there() -> None:
    """It comes with the extra `worker`; without it everything works, at a tenth of the speed."""
    assert checksum._IS_FAST
    assert crc32c is not calc_crc32c


def test_batches_of_all_sizes_are_read_one_after_the_other() -> None:
    found = values(batch(b"small") + batch(b"x" * 10_000, b"y") + batch(b"z" * 5_000) + batch(b"end"))
    assert [(one[:1], len(one)) for one in found] == [(b"s", 5), (b"x", 10_000), (b"y", 1), (b"z", 5_000), (b"e", 3)]
    assert DefaultRecordBatch(batch(b"x" * 10_000)).validate_crc()


def test_records_of_an_old_format_are_checked_by_aiokafka() -> None:
    legacy = LegacyRecordBatchBuilder(magic=1, compression_type=0, batch_size=1 << 20)
    legacy.append(0, timestamp=1, key=None, value=b"o" * 5_000)
    data = bytes(legacy.build())
    assert values(data) == [b"o" * 5_000]
    with pytest.raises(CorruptRecordException):
        values(data[:-1] + b"x")


@pytest.mark.parametrize("size", [10, 10_000])
@pytest.mark.parametrize("place", [22, 60, -2])
def test_a_damaged_batch_is_refused_and_what_stands_before_it_is_read(size: int, place: int) -> None:
    damaged = bytearray(batch(b"x" * size))
    damaged[place] ^= 1
    records = CheckedRecords(batch(b"good") + bytes(damaged))
    assert [record.value for record in records.next_batch()] == [b"good"]
    with pytest.raises(CorruptRecordException, match="checksum is wrong"):
        records.next_batch()
