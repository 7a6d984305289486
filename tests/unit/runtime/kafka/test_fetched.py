"""Records that are taken batch by batch are those that aiokafka takes one by one, and so is where it stands then."""

import asyncio
import gzip
import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED, READ_UNCOMMITTED
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import example, given
from hypothesis import strategies as st

from lapse.runtime.kafka.batch_rows import rows_of
from lapse.runtime.kafka.checksum import CheckedRecords, crc32c
from lapse.runtime.kafka.decompression import plain
from lapse.runtime.kafka.fetched import FetchedPartition, FetchedRecords, TakenBytes
from lapse.runtime.kafka.fetched_rows import FetchedRows
from lapse.runtime.kafka.fetcher import SwiftFetcher
from lapse.runtime.kafka.read_record import UnreadRecord
from support.suite.compiled import NEEDS_COLUMNS

PartitionRecords, FetchResult = FetchedRecords.__mro__[1], FetchedPartition.__mro__[1]
"""aiokafka's own."""

CODECS = {"none": 0, "gzip": 1, "lz4": 3, "zstd": 4}
_CONTROL, _ABORT, _COMMIT = 0x20, b"\x00\x00\x00\x00", b"\x00\x00\x00\x01"


class Batch(NamedTuple):
    """A RecordBatch of a log: what it holds, who wrote it, and how far offsets go on behind its last record."""

    gaps: list[int]
    codec: str = "none"
    producer: int = -1
    transactional: bool = False
    marker: bytes = b""
    behind: int = 0
    headers: int = 0
    by_the_broker: bool = False


def encoded(batch: Batch, base: int) -> tuple[bytes, int]:
    """The bytes of a batch, and the offset behind it."""
    codec = CODECS["none" if batch.marker else batch.codec]  # as brokers write markers
    builder = DefaultRecordBatchBuilder(2, codec, int(batch.transactional), batch.producer, 0, 0, 1 << 20)
    at = 0
    for gap in [0] if batch.marker else batch.gaps:
        at += gap
        headers = [(f"h{number}", None if number % 2 else b"x" * number) for number in range(batch.headers)]
        key = batch.marker or (None if at % 3 else b"%d" % at)
        builder.append(at, 1_000 + at, key, None if at % 5 == 4 else b"v" * (at % 100), headers)
        at += 1
    data = bytearray(builder.build())
    last = max(at - 1, 0) + batch.behind
    struct.pack_into(">q", data, 0, base)
    (attributes,) = struct.unpack_from(">h", data, 21)
    attributes |= (_CONTROL if batch.marker else 0) | (8 if batch.by_the_broker else 0)
    struct.pack_into(">hi", data, 21, attributes, last)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data), base + last + 1


written = st.builds(
    Batch,
    st.lists(st.integers(0, 3), min_size=1, max_size=6),
    st.sampled_from(sorted(CODECS)),
    st.just(-1),
    st.just(False),
    st.just(b""),
    st.integers(0, 3),
    st.integers(0, 4),
    st.booleans(),
)
in_transaction = st.builds(
    Batch,
    st.lists(st.integers(0, 2), min_size=1, max_size=4),
    st.sampled_from(["none", "lz4"]),
    st.integers(1, 2),
    st.just(True),
    st.sampled_from([b"", b"", _ABORT, _COMMIT]),
    st.integers(0, 3),
    st.just(0),
    st.just(False),
)
logs = st.lists(written | in_transaction, min_size=1, max_size=6)


class Position:
    """Where a consumer stands."""

    paused = False

    def __init__(self, position: int) -> None:
        self.position = position

    def consumed_to(self, position: int) -> None:
        self.position = position


def fields(record: Any) -> tuple[Any, ...]:
    return (
        record.offset, record.timestamp, record.timestamp_type, record.key, record.value, tuple(record.headers)
    )  # fmt: skip


def offset_and_value(record: Any) -> tuple[Any, ...]:
    return record.offset, record.value


def taken(
    kinds: tuple[type, type],
    data: bytes,
    aborted: list[tuple[int, int]],
    first: int,
    isolation: int,
    most: list[Any],
    of: Callable[[Any], tuple[Any, ...]] = fields,
) -> list[Any]:
    """What each call takes, and where the consumer stands behind it."""
    of_records, of_result = kinds
    tp, stands = SimpleNamespace(topic="t", partition=0), Position(first)
    assignment = SimpleNamespace(active=True, state_value=lambda _: stands)
    records = of_records(tp, CheckedRecords(data), list(aborted), first, None, None, False, isolation)
    result = of_result(tp, assignment=assignment, partition_records=records, backoff=0)
    found: list[Any] = []
    for limit in [*most, None, None]:
        if not result.has_more():
            break
        some = result.getall(limit)
        read = [of(one) for one in some]
        assert [of(some[at]) for at in range(len(some))] == read  # of records in columns, from these
        found.append((read, stands.position))
    return [*found, result.has_more()]


@pytest.mark.feature("C41")
@pytest.mark.parametrize(
    "few",
    [
        pytest.param(0, id="as objects"),
        *(pytest.param(few, marks=NEEDS_COLUMNS, id=name) for few, name in ((1, "in columns"), (3, "both in turn"))),
    ],
)
@given(
    logs,
    st.lists(st.tuples(st.integers(1, 2), st.integers(0, 30)), max_size=3),
    st.integers(0, 20),
    st.sampled_from([READ_COMMITTED, READ_UNCOMMITTED]),
    st.lists(st.integers(1, 7), max_size=6),
    st.sampled_from([1, 2, 3, 1_000]),
)
@example([Batch([0]), Batch([0])], [], 2, READ_COMMITTED, [], 1)  # batches before the offset that was asked for
def test_what_is_taken_is_what_aiokafka_takes(
    few: int,
    log: list[Batch],
    aborted: list[tuple[int, int]],
    first: int,
    isolation: int,
    most: list[int],
    block: int,
) -> None:
    """`few` is the size from which on batches are read into columns; 0 = none is."""
    data, base = b"", 0
    for batch in log:
        part, base = encoded(batch, base)
        data += part
    arguments = (data, aborted, first, isolation, most)
    with pytest.MonkeyPatch.context() as patch:
        if few:
            patch.setattr(FetchedRows, "wanted", {"t"})
            patch.setattr("lapse.runtime.kafka.batch_rows._FEW", few)
            patch.setattr("lapse.runtime.kafka.fetched._ROWS_PER_FEW", 4)
        else:  # a large batch in columns may wait for the next turn
            patch.setattr("lapse.runtime.kafka.fetched._BLOCK_RECORDS", block)
        if few == 1:
            patch.setattr("lapse.runtime.kafka.fetched.rows_of", rows_surely)
        found = taken((FetchedRecords, FetchedPartition), *arguments)
    assert found == taken((PartitionRecords, FetchResult), *arguments)


def rows_surely(*batch: Any, **options: Any) -> FetchedRows:
    """Read a batch into columns. It never becomes objects instead, with which the test would compare nothing new."""
    rows = rows_of(*batch, **options)
    assert rows is not None
    return rows


@pytest.mark.feature("C60")
def test_a_large_batch_is_taken_in_parts() -> None:
    data, _ = encoded(Batch([0] * 2_500), 0)
    tp = SimpleNamespace(topic="t", partition=0)
    records = FetchedRecords(tp, CheckedRecords(data), [], 0, None, None, False, READ_COMMITTED)
    assert [len(block.records) for block in records._records.next_batch()] == [1_000, 1_000, 500]


def test_a_batch_of_which_no_record_is_left_is_passed_over() -> None:
    empty = bytearray(encoded(Batch([0], behind=4), 0)[0])
    struct.pack_into(">i", empty, 57, 0)  # compacted: no record is left
    data = _whole(empty[:61]) + encoded(Batch([0, 0]), 5)[0]
    arguments: tuple[Any, ...] = (data, [], 0, READ_COMMITTED, [1])
    found = taken((FetchedRecords, FetchedPartition), *arguments)
    assert found == taken((PartitionRecords, FetchResult), *arguments)
    assert [[record[0] for record in records] for records, _ in found[:2]] == [[5], [6]]


@pytest.mark.parametrize("wanted", [set(), {"t"}], ids=["as objects", "where columns are wanted"])
@pytest.mark.parametrize("magic", [0, 1])
def test_records_of_an_old_format_are_read(magic: int, wanted: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one may be shorter than the head of a RecordBatch."""
    monkeypatch.setattr(FetchedRows, "wanted", wanted)
    legacy = LegacyRecordBatchBuilder(magic=magic, compression_type=0, batch_size=1 << 20)
    for offset in range(3):
        legacy.append(offset, timestamp=1, key=None, value=b"old")
    arguments: tuple[Any, ...] = (bytes(legacy.build()), [], 1, READ_COMMITTED, [1])
    found = taken((FetchedRecords, FetchedPartition), *arguments, of=offset_and_value)
    assert found == taken((PartitionRecords, FetchResult), *arguments, of=offset_and_value)
    assert found[0] == ([(1, b"old")], 2)


def _compressed(codec: str, base: int, *values: bytes) -> bytes:
    builder = DefaultRecordBatchBuilder(2, (CODECS | {"snappy": 2})[codec], 0, -1, -1, -1, 1 << 30)
    for at, value in enumerate(values):
        builder.append(at, 1_000 + at, None, value, [])
    batch = bytearray(builder.build())
    struct.pack_into(">q", batch, 0, base)
    return _whole(batch)


@pytest.mark.slow
@pytest.mark.feature("X7", "C60")
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_batch_of_a_few_bytes_is_not_decompressed_beyond_a_limit(codec: str) -> None:
    far_too_large = bytes(150 << 20) if codec == "snappy" else bytes(40 << 20)  # snappy makes little of it
    data = b"".join(
        (_compressed(codec, 0, b"a"), _compressed(codec, 1, far_too_large, b"b"), _compressed(codec, 3, b"c", b"d"))
    )
    found = FetchedRecords(TopicPartition("t", 0), CheckedRecords(data), [], 0, None, None, True, READ_COMMITTED)
    before, unread, behind = (found.take(None)[0] for _ in range(3))
    assert [(one.offset, one.value) for one in before] == [(0, b"a")]
    assert [(type(one), one.offset, one.timestamp, one.value) for one in unread] == [
        (UnreadRecord, offset, 1_000, None) for offset in (1, 2)
    ]
    assert "uncompressed" in unread[0].why
    assert [(one.offset, one.value) for one in behind] == [(3, b"c"), (4, b"d")]
    assert found.next_fetch_offset == 5


@pytest.mark.feature("X7", "C60")
def test_a_batch_that_cannot_be_decompressed_is_not_read() -> None:
    damaged = bytearray(_compressed("zstd", 0, b"a" * 100))
    damaged[-20:] = b"x" * 20
    data = _whole(damaged) + _compressed("zstd", 1, b"b")
    found = FetchedRecords(TopicPartition("t", 0), CheckedRecords(data), [], 0, None, None, True, READ_COMMITTED)
    assert [type(one) for one in found.take(None)[0]] == [UnreadRecord]
    assert [one.value for one in found.take(None)[0]] == [b"b"]


@pytest.mark.feature("X7", "C60")
def test_of_many_batches_that_become_large_only_some_are_taken_in_a_turn() -> None:
    """A fetch of a megabyte has thousands of such batches: together they took all memory of the machine."""
    data = b"".join(_compressed("zstd", offset, bytes(6 << 20)) for offset in range(7))
    found = FetchedRecords(TopicPartition("t", 0), CheckedRecords(data), [], 0, None, None, True, READ_COMMITTED)
    turns = [found.take(None) for _ in range(3)]
    assert [[one.offset for one in some] for some, _ in turns] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [are_last for _, are_last in turns] == [False, False, True]


@pytest.mark.feature("X7", "C60")
def test_of_partitions_whose_batches_become_large_each_is_taken_in_its_turn() -> None:
    """A batch of two kilobytes in each of a hundred partitions took gigabytes at once."""
    large = b"".join(_compressed("zstd", offset, bytes(6 << 20)) for offset in range(6))
    small = encoded(Batch([0]), 0)[0]
    fetcher = SwiftFetcher.__new__(SwiftFetcher)
    fetcher._asked_for, fetcher.taken, fetcher._bytes = set(), 0, TakenBytes()
    fetcher._subscriptions = SimpleNamespace(reassignment_in_progress=False)
    fetcher._wait_consume_future, fetcher._fetch_waiters, fetcher._records = None, set(), OrderedDict()

    async def fetch(*_: Any) -> bool:
        for name, data in (("a", large), ("b", large), ("commands", small)):
            tp, stands = TopicPartition(name, 0), Position(0)
            assignment = SimpleNamespace(active=True, state_value=lambda _, stands=stands: stands)
            records = FetchedRecords(tp, CheckedRecords(data), [], 0, None, None, True, READ_COMMITTED)
            fetcher._records[tp] = FetchedPartition(tp, assignment=assignment, partition_records=records, backoff=0)
        return True

    async def turns() -> list[dict[str, list[int]]]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SwiftFetcher.__mro__[1], "_proc_fetch_request", lambda _, *args: fetch(*args))
            await fetcher._proc_fetch_request()
        found = [await fetcher.fetched_records([]) for _ in range(5)]
        return [{tp.topic: [one.offset for one in some] for tp, some in turn.items()} for turn in found]

    first, second = [0, 1, 2], [3, 4, 5]
    assert asyncio.run(turns()) == [{"a": first, "commands": [0]}, {"b": first}, {"a": second}, {"b": second}, {}]


@pytest.mark.parametrize("split", [False, True])
def test_gzip_in_members_is_one_text(split: bool) -> None:
    """Kafka's own reader takes them one behind the other."""
    batch = _compressed("gzip", 0, b"a" * 50)
    text = gzip.decompress(batch[61:])
    members = [text[:20], text[20:]] if split else [text]
    data = batch[:61] + b"".join(map(gzip.compress, members)) + bytes(9)
    found, at, stop = plain(data, 0, len(data))
    assert [one.value for one in MemoryRecords(found[at:stop]).next_batch()] == [b"a" * 50]


@pytest.mark.feature("X7", "C60")
def test_gzip_in_very_many_members_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte can have fifty thousand: zlib copied all that stands behind each, which took seconds."""
    batch, given = _compressed("gzip", 0, b"a" * 5_000), [0]
    made = zlib.decompressobj

    class Member:
        def __init__(self, wbits: int) -> None:
            self._member = made(wbits=wbits)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._member, name)

        def decompress(self, some: bytes, most: int) -> bytes:
            given[0] += len(some)
            return self._member.decompress(some, most)

    monkeypatch.setattr(zlib, "decompressobj", Member)
    data = batch[:61] + 2_000 * (gzip.compress(b"") + bytes(2)) + batch[61:]
    found, at, stop = plain(data, 0, len(data))
    assert [one.value for one in MemoryRecords(found[at:stop]).next_batch()] == [b"a" * 5_000]
    assert given[0] < 100 * len(data)


@pytest.mark.feature("X7")
@pytest.mark.parametrize("wanted", [set(), {"t"}], ids=["as objects", "where columns are wanted"])
def test_records_from_a_damaged_one_on_have_no_content(wanted: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker does not compare the length of a compressed record with its parts, and the worker stopped each time."""
    monkeypatch.setattr(FetchedRows, "wanted", wanted)
    batch = _compressed("gzip", 0, *[b"value"] * 20)
    text = bytearray(gzip.decompress(batch[61:]))
    size = len(text) // 20
    assert text[2 * size] == 2 * (size - 1)
    text[2 * size] += 2
    data = _whole(bytearray(batch[:61]) + gzip.compress(text)) + _compressed("gzip", 20, b"behind")
    found = FetchedRecords(TopicPartition("t", 0), CheckedRecords(data), [], 0, None, None, True, READ_COMMITTED)
    before, damaged, behind = (found.take(None)[0] for _ in range(3))
    assert [(one.offset, one.value) for one in before] == [(0, b"value"), (1, b"value")]
    assert [(type(one), one.offset) for one in damaged] == [(UnreadRecord, offset) for offset in range(2, 20)]
    assert "damaged" in damaged[0].why
    assert [(one.offset, one.value) for one in behind] == [(20, b"behind")]


def _whole(batch: bytearray) -> bytes:
    """A batch whose length and checksum are those of what it holds."""
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def test_what_stands_before_a_damaged_batch_is_read_again_and_nothing_is_passed_over() -> None:
    good, base = encoded(Batch([0] * 4), 0)
    bad = bytearray(encoded(Batch([0]), base)[0])
    bad[-1] ^= 1
    stands = Position(0)
    assignment = SimpleNamespace(active=True, state_value=lambda _: stands)
    tp = SimpleNamespace(topic="t", partition=0)
    records = FetchedRecords(tp, CheckedRecords(good + bytes(bad)), [], 0, None, None, False, READ_COMMITTED)
    result = FetchedPartition(tp, assignment=assignment, partition_records=records, backoff=0)
    assert [one.offset for one in result.getall(3)] == [0, 1, 2]
    with pytest.raises(CorruptRecordException):
        result.getall(3)
    assert result.getall(3) == []
    assert stands.position == 3


def test_what_was_fetched_for_another_place_is_not_handed_out() -> None:
    data, _ = encoded(Batch([0] * 4), 0)
    stands = Position(0)
    assignment = SimpleNamespace(active=True, state_value=lambda _: stands)
    tp = SimpleNamespace(topic="t", partition=0)
    records = FetchedRecords(tp, CheckedRecords(data), [], 0, None, None, False, READ_COMMITTED)
    result = FetchedPartition(tp, assignment=assignment, partition_records=records, backoff=0)
    assert [one.offset for one in result.getall(2)] == [0, 1]
    stands.position = 1
    assert result.getall(2) == []
    assert stands.position == 1
