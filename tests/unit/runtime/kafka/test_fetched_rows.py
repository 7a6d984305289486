"""Records in columns are the records that aiokafka makes, and a queue does the same with both (C6, C29, D4)."""

import asyncio
import shutil
import struct
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from aiokafka.consumer.fetcher import READ_COMMITTED
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.letter import MARKERS
from lapse.core.lifetime import NEVER, Expiration, ExpirationModel
from lapse.core.queue.arrival.arrival import TELLING, classify_records
from lapse.core.queue.step import Messages
from lapse.core.reason import UNCONFIRMED, Reason
from lapse.core.rows import Rows
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.dead_letter import Death
from lapse.protocol.header import OF_LETTERS
from lapse.runtime.kafka import batch_rows, columns
from lapse.runtime.kafka.batch_rows import rows_of
from lapse.runtime.kafka.checksum import CheckedRecords, crc32c
from lapse.runtime.kafka.decompression import plain
from lapse.runtime.kafka.fetched import FetchedRecords, joined_blocks
from lapse.runtime.kafka.fetched_rows import FetchedRows
from lapse.runtime.kafka.packed_record import PiecedRecord
from lapse.runtime.kafka.packed_run import PackedRun
from lapse.runtime.kafka.record_batch import PackedBatch
from lapse.runtime.letters.packed_letter import PackedLetters, with_records
from lapse.runtime.letters.row_letters import RowLetters
from lapse.runtime.queue.packed_delivery import packed_records
from lapse.runtime.shard.payload import PayloadWindow, SourceWindow
from lapse.runtime.shard.row_parts import RowParts
from lapse.runtime.shard.waiting_sizes import WorkerBytes
from support.kafka.record_batches import BASE, batches, both, encoded
from support.suite.compiled import NEEDS_COLUMNS

pytestmark = NEEDS_COLUMNS

_CODECS = [0, 1, 2, 3, 4]
_VALUES = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.integers(-1, 10**19).map(lambda number: str(number).encode()),
    st.sampled_from([b"", b"0", b"00012", b"1" * 18, b"1" * 19, b"12 ", b"+5", "१२".encode(), b"2026-01-31T12:00:00Z"]),
)
_HEADERS = st.lists(
    st.tuples(
        st.one_of(
            st.sampled_from([*TELLING, *sorted(MARKERS), *sorted(OF_LETTERS), "lapse-other", "lapse", "trace"]),
            st.text(max_size=4),
        ),
        _VALUES,
    ),
    max_size=4,
)
_RECORDS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(-1, 1 << 62),
        st.none() | st.binary(max_size=9),
        st.none() | st.binary(max_size=300),
        _HEADERS,
        st.booleans(),
    ),
    min_size=1,
    max_size=30,
)
_EXPIRATIONS = st.builds(
    Expiration, st.booleans(), st.none() | st.sampled_from([1, 60_000, 1 << 62]), st.sampled_from(ExpirationModel)
)


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_rows, "_FEW", 1)
    monkeypatch.setattr("lapse.runtime.queue.packed_delivery._FEW", 1)


def fields(record: Any) -> tuple[Any, ...]:
    return (
        record.offset, record.timestamp, record.timestamp_type, record.key, record.value, tuple(record.headers)
    )  # fmt: skip


@pytest.mark.feature("C41")
@given(_RECORDS, st.sampled_from(_CODECS), st.booleans(), st.integers(0, 30), st.integers(0, 30))
def test_rows_are_the_records(records: list[Any], codec: int, by_broker: bool, first: int, stop: int) -> None:
    objects, rows = both(encoded(records, codec, by_broker))
    assert [fields(rows[at]) for at in range(len(rows))] == [fields(one) for one in objects]
    assert [fields(one) for one in rows[first:stop]] == [fields(one) for one in objects[first:stop]]
    assert rows.offsets.tolist() == [one.offset for one in objects]
    assert rows.timestamps_ms.tolist() == [one.timestamp for one in objects]


@pytest.mark.feature("C41")
@given(_RECORDS, st.sampled_from(_CODECS), st.booleans(), st.integers(1, 30))
def test_some_rows_at_the_end_are_made_without_those_before(
    records: list[Any], codec: int, by_broker: bool, first: int
) -> None:
    objects, rows = both(encoded(records, codec, by_broker))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lapse.runtime.kafka.fetched_rows._FAR", 0)
        assert [fields(one) for one in rows[first:]] == [fields(one) for one in objects[first:]]
    if first < len(objects):
        assert not rows.of._made
    assert [fields(one) for one in rows] == [fields(one) for one in objects]


@pytest.mark.feature("L1", "L2", "L3", "L4", "L5", "L7", "L12", "C29")
@given(_RECORDS, _EXPIRATIONS, st.booleans())
def test_what_becomes_of_rows_becomes_of_the_records(
    records: list[Any], expiration: Expiration, by_broker: bool
) -> None:
    objects, rows = both(encoded(records, by_broker=by_broker))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lapse.core.queue.arrival.arrival._FEW_OF", 0)  # however many have to be looked at
        found = classify_records(rows, "orders", expiration)
    assert found == classify_records(objects, "orders", expiration) == classify_records(rows, "orders", expiration)


def in_one_piece(records: Sequence[bytes | PiecedRecord]) -> list[bytes]:
    return [bytes(one) for one in records]


@pytest.mark.feature("D4")
@given(_RECORDS, st.lists(st.integers(0, 30), max_size=3), st.sampled_from([1, 200, 800_000]), st.booleans())
def test_rows_are_packed_as_the_records_are(records: list[Any], cuts: list[int], most_bytes: int, expire: bool) -> None:
    objects, rows = both(encoded(records))
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    parts = [rows[first:stop] for first, stop in pairwise(edges) if first < stop]
    deadlines_ms = np.arange(len(rows), dtype=np.int64) if expire else None
    messages = Messages("t", 3, rows.offsets, deadlines_ms, np.ones(len(rows), np.uint32), None)
    expected = packed_records(messages, objects, b"", 0, most_bytes)
    assert in_one_piece(packed_records(messages, RowParts(parts), b"", 0, most_bytes)) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lapse.runtime.queue.packed_delivery._FEW", 16)  # some of them are few
        assert in_one_piece(packed_records(messages, RowParts(parts), b"", 0, most_bytes)) == expected


@pytest.mark.feature("D4", "Q25")
@given(_RECORDS, st.randoms(use_true_random=False), st.sampled_from([1, 200, 800_000]), st.sampled_from([0, 1 << 30]))
def test_rows_are_packed_in_another_order(records: list[Any], chance: Random, most_bytes: int, reordered: int) -> None:
    objects, rows = both(encoded(records))
    order = np.array(chance.sample(range(len(rows)), len(rows)), np.intp)
    messages = Messages("t", 3, rows.offsets, None, np.ones(len(rows), np.uint32), None).select(order)
    expected = packed_records(messages, [objects[at] for at in order.tolist()], b"", 0, most_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lapse.runtime.queue.packed_delivery._FEW", 0)
        patch.setattr("lapse.runtime.queue.packed_delivery._MOST_REORDERED", reordered)
        assert in_one_piece(packed_records(messages, RowParts([rows], order), b"", 0, most_bytes)) == expected
    assert [fields(one) for one in RowParts([rows], order)] == [fields(objects[at]) for at in order.tolist()]


@given(st.lists(_RECORDS, min_size=1, max_size=4), st.lists(st.sampled_from(_CODECS), min_size=4, max_size=4))
def test_rows_of_several_batches_are_one(logs: list[list[Any]], codecs: list[int]) -> None:
    data = b"".join(encoded(log, codec, base=1_000 * at) for at, (log, codec) in enumerate(zip(logs, codecs)))  # noqa: B905  # codecs are enough
    parts = [rows_of(*plain(data, at, stop), batch) for batch, (at, stop) in batches(data)]
    whole = joined_blocks([part for part in parts if part is not None])
    assert isinstance(whole, FetchedRows)
    expected = [fields(one) for batch, _ in batches(data) for one in batch]
    assert [fields(whole[at]) for at in range(len(whole))] == expected
    assert [fields(one) for one in whole[1:]] == expected[1:]
    assert [fields(one) for one in whole] == expected


@given(_RECORDS, st.integers(0, 1 << 20), st.binary(min_size=1, max_size=3))
def test_damaged_records_are_left_to_aiokafka(records: list[Any], place: int, damage: bytes) -> None:
    data = bytearray(encoded(records))
    at = 57 + place % (len(data) - 57)  # the number of records, or one of them
    data[at : at + len(damage)] = damage[: len(data) - at]
    ((batch, (first, stop)),) = _unchecked(bytes(data))
    rows = rows_of(bytes(data), first, stop, batch)
    if rows is not None:  # it may be a RecordBatch still: then what stands in it is told
        assert all(0 <= part < 2 * len(data) for number in (0, 2, 4) for part in rows.span(number).tolist())
        assert all(len(row.value or b"") <= len(data) for row in (rows[at] for at in range(len(rows))))


def _unchecked(data: bytes) -> list[Any]:
    whole = bytearray(data)
    struct.pack_into(">I", whole, 17, crc32c(bytes(whole[21:])))
    return list(batches(bytes(whole)))


@pytest.mark.feature("C41")
@given(_RECORDS, st.sampled_from(_CODECS), st.integers(BASE, BASE + 40), st.lists(st.integers(1, 7), max_size=6))
def test_a_fetch_in_columns_brings_the_same(records: list[Any], codec: int, first: int, most: list[int]) -> None:
    data = encoded(records, codec) + encoded(records, codec, base=1_000)
    found = []
    for topic in ("columns", "objects"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FetchedRows, "wanted", {"columns"})
            tp = SimpleNamespace(topic=topic, partition=0)
            fetched = FetchedRecords(tp, CheckedRecords(data), [], first, None, None, False, READ_COMMITTED)
            taken = [fetched.take(limit) for limit in most[:1]]
            while not (taken and taken[-1][1]):
                taken.append(fetched.take(most[len(taken)] if len(taken) < len(most) else None))
        assert all(isinstance(some, Rows) == (topic == "columns") for some, _ in taken if some)
        found.append([([fields(one) for one in some], last) for some, last in taken])
    assert found[0] == found[1]


@pytest.mark.feature("C41")
def test_a_batch_with_few_records_does_not_make_objects_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_rows, "_FEW", 16)
    monkeypatch.setattr(FetchedRows, "wanted", {"t"})
    record = (0, 1_000, b"k", b"v", [("trace", b"1")], False)

    def shapes(*sizes: int, codec: int = 1) -> list[tuple[bool, int]]:
        """Take all of a fetch with batches of these sizes; return each part's shape: whether rows, and how many."""
        data, base = b"", BASE
        for size in sizes:
            data += encoded([record] * size, codec, base=base)
            base += size
        tp = SimpleNamespace(topic="t", partition=0)
        fetched = FetchedRecords(tp, CheckedRecords(data), [], BASE, None, None, False, READ_COMMITTED)
        parts, is_last, offsets = [], False, list[int]()
        while not is_last:
            some, is_last = fetched.take(None)
            parts.append((isinstance(some, FetchedRows), len(some)))
            offsets += [fields(one)[0] for one in some]
            assert fetched.next_fetch_offset == BASE + len(offsets)
        assert offsets == list(range(BASE, base))
        return parts

    assert shapes(64, 3) == [(True, 67)]
    assert shapes(200, 1, 15, 100, 2) == [(True, 318)]
    assert shapes(3, 1) == [(False, 4)], "few records alone are quicker as objects"
    assert shapes(64, 3, 3, 3) == [(False, 73)], "so are many batches with few"
    assert shapes(3, 1_200, 3) == [(False, 3), (True, 1_203)]
    assert shapes(3, 100) == [(False, 103)], "not worth another turn"
    assert shapes(3, 1, codec=0) == [(False, 4)], "batches that are read together count as one"
    assert shapes(*[1] * 16, codec=0) == [(True, 16)]
    assert shapes(64, 3, 3, 3, codec=0) == [(True, 73)]


@pytest.mark.feature("Q16", "D4")
@given(_RECORDS, st.sets(st.integers(BASE, BASE + 130), min_size=1), st.integers(0, 12), st.integers(1, 12))
def test_rows_that_are_handed_out_by_reference_are_counted_and_stay_rows(
    records: list[Any], asked: set[int], gap: int, size: int
) -> None:
    objects, rows = both(encoded(records))
    read, passed = SourceWindow(1 << 20, WorkerBytes()), SourceWindow(1 << 20, WorkerBytes())
    for first in range(gap, len(rows), size + gap):  # with gaps, as when there was no room
        read.keep(objects[first : first + size])
        passed.keep(rows[first : first + size])
    for offset in sorted(asked):
        read.get(offset)
    passed.pass_over(np.array(sorted(asked), np.int64))
    assert [(one.first, one.left) for one in passed._chunks] == [(one.first, one.left) for one in read._chunks]
    assert not rows.of._made


@given(_RECORDS, st.lists(st.booleans(), min_size=30, max_size=30), st.integers(0, 10))
def test_some_of_the_rows_are_those_records(records: list[Any], which: list[bool], first: int) -> None:
    objects, rows = both(encoded(records))
    objects, rows = objects[first:], rows[first:]
    picked = [at for at in range(len(rows)) if which[at]]
    offsets = np.array([objects[at].offset for at in picked], np.int64)
    some = rows.at(offsets)
    if not picked:
        assert some is None
        return
    assert some is not None
    expected = [objects[at] for at in picked]
    assert [fields(one) for one in some] == [fields(one) for one in expected]
    assert [fields(some[at]) for at in range(len(some))] == [fields(one) for one in expected]
    messages = Messages("t", 3, offsets, None, np.ones(len(picked), np.uint32), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lapse.runtime.queue.packed_delivery._FEW", 1)
        in_rows = packed_records(messages, RowParts([some]), b"", 0)
        assert in_one_piece(in_rows) == packed_records(messages, expected, b"", 0)
    assert rows.at(np.append(offsets, offsets[-1] + 1_000)) is None
    assert rows.at(np.array([-1], np.int64)) is None
    if len(picked) > 1:
        assert rows.at(offsets[::-1].copy()) is None


_COUNTS = st.lists(st.sampled_from([0, 0, 0, 1, 2, 15]), min_size=30, max_size=30)


@pytest.mark.feature("D2", "D3", "C54", "C60")
@given(_RECORDS, _COUNTS, _COUNTS, st.sampled_from(["", "why", UNCONFIRMED]), st.integers(1, 20))
def test_letters_of_rows_are_those_of_the_records(
    records: list[Any], deliveries: list[int], cancels: list[int], detail: str, few: int
) -> None:
    objects, rows = both(encoded(records))
    count = len(rows)
    deadlines_ms = np.array([(NEVER, 5, -5, 1 << 44)[number % 4] for number in cancels[:count]], np.int64)
    published = np.array([deliveries[:count], cancels[:count]], np.uint32)
    messages = Messages("t:0", 3, rows.offsets, deadlines_ms, published[0], published[1])
    reasons = (Reason.TIME_LIMIT, Reason.PURGED)
    death = Death(
        entity="orders", bookmark=Bookmark("t:0", 3, 0), reasons=reasons, expired_at_ms=5, detail=detail, epoch=4
    )
    expected = PackedLetters(death).pack(with_records(messages, objects))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lapse.runtime.letters.row_letters._FEW", 1)
        letters = RowLetters(death).pack(messages, rows)
    assert list(letters) == expected
    for most_bytes in (1, 700, 1 << 20):
        batches_of = []
        for some in (letters, expected):
            done, made = 0, []
            while done < count:
                batch = PackedBatch(7)
                middle = batch.add_packed(some, done, min(count, done + few), most_bytes)
                done = batch.add_packed(some, middle, count, most_bytes)
                made.append((batch.size(), batch._build()))
            batches_of.append(made)
        assert batches_of[0] == batches_of[1]
    joined = PackedRun.joined([one for one in (letters, letters) if isinstance(one, PackedRun)] or [RUN])
    assert list(joined) in (expected * 2, list(RUN))


RUN = PackedRun(np.arange(5, dtype=np.uint8), np.array([2, 5], np.int64))


class _Log:
    """A log that has some records, and reads a few more than it is asked for."""

    def __init__(self, records: Any = ()) -> None:
        self._records = records

    async def read(self, topic: str, partition: int, first: int, last: int) -> Any:
        offsets = [one.offset for one in self._records]
        at = bisect_left(offsets, first)
        return self._records[at : max(at + 1, bisect_left(offsets, last + 1) + 3)]


@pytest.mark.feature("D4", "Q16")
@given(st.integers(1, 60), st.integers(0, 40), st.lists(st.booleans(), min_size=70, max_size=70), st.integers(1, 25))
def test_a_window_hands_out_scattered_rows_as_scattered_records(
    count: int, kept: int, due: list[bool], at_once: int
) -> None:
    """Some first, and those between them later; what memory does not hold is read back."""
    objects, rows = both(encoded([(0, 1, None, b"%d" % at, [], True) for at in range(count)]))
    found = []
    for records in (objects, rows):
        window = PayloadWindow(_Log(records), 1 << 20)  # type: ignore[arg-type]
        if records[:kept]:
            window.keep("t", 0, records[:kept])
        handed = []
        for wanted in (True, False):
            offsets = [BASE + at for at in range(count) if due[at] == wanted]
            for first in range(0, len(offsets), at_once):
                some = asyncio.run(window.get("t", 0, offsets[first : first + at_once]))
                assert isinstance(some, RowParts) == (records is rows)
                handed += some
        found.append([None if one is None else fields(one) for one in handed])
        source = window._windows["t", 0]
        assert source._size == sum(chunk.size for chunk in source._chunks)
    assert found[0] == found[1]


@pytest.mark.feature("D4", "Q11")
@pytest.mark.parametrize("every", [15, 16, 100, 200])
def test_messages_all_over_a_fetch_are_handed_out_in_columns(every: int) -> None:
    """With priorities a step takes messages from all over the log. An object was made of each."""
    _, rows = both(encoded([(0, 1, None, b"%d" % at, [], True) for at in range(2_000)]))
    window = PayloadWindow(_Log(), 1 << 20)  # type: ignore[arg-type]
    window.keep("t", 0, rows)
    found = asyncio.run(window.get("t", 0, range(BASE, BASE + 2_000, every)))
    assert isinstance(found, RowParts)
    assert [one.value for one in found] == [b"%d" % at for at in range(0, 2_000, every)]


@pytest.mark.feature("D4")
@given(st.integers(1, 60), st.lists(st.integers(1, 20), max_size=4), st.lists(st.integers(1, 20), max_size=4))
def test_a_window_hands_rows_out_as_it_hands_records_out(count: int, kept: list[int], asked: list[int]) -> None:
    objects, rows = both(encoded([(0, 1, None, b"%d" % at, [], True) for at in range(count)]))
    found = []
    for records in (objects, rows):
        window = PayloadWindow(_Log(), 1 << 20)  # type: ignore[arg-type]
        at = 0
        for size in [*kept, count]:
            if records[at : at + size]:
                window.keep("t", 0, records[at : at + size])
            at += size
        at, handed = BASE, []
        for size in [*asked, count]:
            offsets = list(range(at, min(at + size, BASE + count + 2)))
            if offsets:
                handed += asyncio.run(window.get("t", 0, offsets))
            at += size
        found.append([None if one is None else fields(one) for one in handed])
        left = window._windows["t", 0]
        assert (left._chunks, left._size) == ([], 0)
    assert found[0] == found[1]


def test_a_library_of_another_source_is_not_used(tmp_path: Path) -> None:
    """It would read arguments that it is not given: a worker of a checkout that was not built anew was killed by it."""
    here = Path(columns.__file__).parent
    for name in (columns.NAME, columns.SOURCE):
        shutil.copy(here / name, tmp_path)
    assert columns.load(tmp_path) is not None
    with (tmp_path / columns.SOURCE).open("a") as source:
        source.write("/* newer */")
    assert columns.load(tmp_path) is None
    (tmp_path / columns.SOURCE).unlink()
    assert columns.load(tmp_path) is not None, "a wheel without the source"
