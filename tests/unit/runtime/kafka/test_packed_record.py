"""Packed records stand in RecordBatches that any client reads, and fill them as others do."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lapse.runtime.kafka.packed_record import PiecedRecord, packed, packed_header, packed_headers
from lapse.runtime.kafka.record_batch import PackedBatch, RecordBatch, Row
from support.kafka.packed import read, rows_of

values = st.none() | st.binary(max_size=40) | st.integers(0, 70_000).map(bytes)
headers = st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=80), values), max_size=5)


def pack(row: Row) -> bytes:
    key, value, some = row
    return packed(key, value, len(some), packed_headers(some))


@given(st.lists(st.tuples(values, values, headers), min_size=1, max_size=80))
@example([(None, None, [])])
def test_what_is_packed_is_what_is_read(rows: list[Row]) -> None:
    assert rows_of([pack(row) for row in rows]) == rows


@pytest.mark.slow
def test_a_batch_of_many_records_is_the_same_as_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)
    rows: list[Row] = [(b"k%d" % n, b"v" * (n % 100), [("n", b"%d" % n)]) for n in range(40_000)]
    batch, other = PackedBatch(), RecordBatch()
    for first in (0, 15_000):
        stop = first + 15_000
        assert batch.add_packed([pack(row) for row in rows], first, stop, 1 << 30) == stop
        assert other.add_rows(rows, first, stop, 1 << 30) == stop
    batch._set_producer_state(7, 3, 11)
    other._set_producer_state(7, 3, 11)
    ours, theirs = bytes(batch._build()), bytes(other._build())
    assert batch.size() == len(ours) == len(theirs)
    assert batch.record_count() == 30_000
    assert ours == theirs
    assert read(batch) == rows[:30_000]


@given(st.lists(st.tuples(st.lists(st.binary(max_size=200), max_size=4), headers), min_size=1, max_size=30))
def test_a_record_in_pieces_is_the_same_as_in_one(
    records: list[tuple[list[bytes], list[tuple[str, bytes | None]]]],
) -> None:
    in_pieces = [
        PiecedRecord([memoryview(one) for one in some], len(own), packed_headers(own)) for some, own in records
    ]
    whole = [packed(None, b"".join(some), len(own), packed_headers(own)) for some, own in records]
    assert [bytes(one) for one in in_pieces] == whole
    assert [len(one) for one in in_pieces] == [len(one) for one in whole]
    batch, other = PackedBatch(7), PackedBatch(7)
    for most in (1_000, 1 << 30):
        stop = batch.add_packed(in_pieces, batch.record_count(), len(whole), most)
        assert other.add_packed(whole, other.record_count(), len(whole), most) == stop
    assert batch.size() == other.size() == len(batch._build())
    assert batch._build() == other._build()


@given(st.lists(st.sampled_from([0, 10, 5_000, 90_000, 100_000]), min_size=1, max_size=30))
def test_a_batch_ends_before_what_would_make_it_too_large(sizes: list[int]) -> None:
    records = [packed(b"k", bytes(size), 0, b"") for size in sizes]
    done, counts = 0, []
    while done < len(records):
        batch = PackedBatch()
        stop = batch.add_packed(records, done, len(records), 100_000)
        assert stop > done
        assert len(batch._build()) == batch.size()
        assert batch.size() <= 100_000 or stop == done + 1
        # The next one would have been too much.
        assert stop == len(records) or batch.size() + len(records[stop]) > 100_000 - 20
        counts.append(stop - done)
        done = stop
    assert sum(counts) == len(sizes)


def test_a_name_that_is_no_utf_8_is_passed_on_as_it_came() -> None:
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    assert packed_header(name, None) == b"\x04\xff\xfe\x01"
