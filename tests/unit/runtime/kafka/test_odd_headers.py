"""Where a header's name is no UTF-8, records are read as aiokafka would read them (X7)."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from lapse.runtime.kafka.decompression import plain
from lapse.runtime.kafka.odd_headers import readable

TEXTS = st.text("aé€", max_size=3)
RECORDS = st.lists(
    st.tuples(
        st.integers(0, 1 << 40),
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=200),
        st.lists(st.tuples(TEXTS, st.none() | st.binary(max_size=9)), max_size=3),
    ),
    min_size=1,
    max_size=30,
)


class Unreadable:
    """A batch that aiokafka gives up at one of its records."""

    def __init__(self, records: list, stops_at: int) -> None:
        self._records = records
        self._stops_at = stops_at

    def __iter__(self):
        yield from self._records[: self._stops_at]
        if self._stops_at < len(self._records):
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


def parts(record) -> tuple:
    return (
        record.offset,
        record.timestamp,
        record.timestamp_type,
        record.key,
        record.value,
        [tuple(one) for one in record.headers],
    )


@pytest.mark.feature("X7")
@given(RECORDS, st.sampled_from([0, 1, 2, 3, 4]), st.integers(0, 30))
def test_what_aiokafka_gives_up_is_read_as_it_would_be(records, codec, stops_at) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    for offset, (timestamp, key, value, headers) in enumerate(records):
        assert builder.append(offset, timestamp=timestamp, key=key, value=value, headers=headers)
    data = b"before" + bytes(builder.build())
    by_aiokafka = list(MemoryRecords(data[6:]).next_batch())
    found = list(readable(Unreadable(by_aiokafka, stops_at), *plain(data, 6, len(data))))
    assert [parts(one) for one in found] == [parts(one) for one in by_aiokafka]


@pytest.mark.feature("X7")
def test_bytes_that_are_no_text_are_replaced() -> None:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    builder.append(0, timestamp=5, key=b"k", value=b"v", headers=[("name", b"1"), ("b", None)])
    data = bytes(builder.build()).replace(b"name", b"n\xffme")
    (found,) = readable(MemoryRecords(data).next_batch(), data, 0, len(data))
    assert parts(found) == (0, 5, 0, b"k", b"v", [("n\ufffdme", b"1"), ("b", None)])
