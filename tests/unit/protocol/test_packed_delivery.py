"""Packed deliveries: what was written is read, whatever it is, and damage is refused with a sentence."""

import contextlib
import re
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.lifetime import NEVER
from lapse.core.queue.step import Messages
from lapse.protocol import packed_delivery
from lapse.protocol.codec import CodecError
from lapse.protocol.header import is_handed_out
from lapse.protocol.packed_delivery import HEAD, UnknownVersion, column, decode, encode, encode_length, encode_name
from lapse.runtime.kafka.packed_record import packed_headers
from lapse.runtime.queue.packed_delivery import packed_records
from support.kafka.packed import rows_of


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Row(NamedTuple):
    record: Record
    count: int
    deadline_ms: int


names = st.text(st.characters(codec="utf-8"), max_size=8) | st.just("lapse-ttl-ms") | st.just("\udcff")
own_headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=20)), max_size=3).map(tuple)
payloads = st.none() | st.binary(max_size=40) | st.sampled_from([b"", b"x" * 300])
rows = st.builds(
    Row,
    st.builds(
        Record,
        st.integers(0, (1 << 63) - 1),
        st.integers(-1, (1 << 63) - 1),
        payloads,
        payloads,
        own_headers | st.just(()),
    ),
    st.integers(1, (1 << 32) - 1),
    st.integers(0, 1 << 62) | st.just(NEVER),
)


def messages_of(some: list[Row]) -> Messages:
    return Messages(
        "orders",
        7,
        np.array([row.record.offset for row in some], np.int64),
        None if all(row.deadline_ms == NEVER for row in some) else np.array([row.deadline_ms for row in some]),
        np.array([row.count for row in some], np.uint32),
        None,
    )


def written(some: list[Row], lost: frozenset[int] = frozenset(), most_bytes: int = 800_000) -> list[bytes]:
    records = [None if at in lost else row.record for at, row in enumerate(some)]
    head = packed_headers([("lapse-kind", packed_delivery.KIND)])
    found = rows_of(packed_records(messages_of(some), records, head, 1, most_bytes))
    assert all(key is None and headers == [("lapse-kind", b"packed")] for key, _, headers in found)
    return [value or b"" for _, value, _ in found]


def read(body: bytes) -> list[Row]:
    packed = decode(body)
    assert (packed.topic, packed.partition) == ("orders", 7)
    return [
        Row(
            Record(
                packed.offsets[at],
                packed.timestamps_ms[at],
                packed.key(at),
                packed.value(at),
                tuple(packed.headers(at)),
            ),
            packed.delivery_counts[at],
            NEVER if packed.deadline_ms(at) is None else packed.deadline_ms(at),
        )
        for at in range(len(packed))
    ]


def as_text(row: Row) -> Row:
    """A message as clients see it: what is no UTF-8 in the names of its headers is replaced (X7)."""
    published = (
        (name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), v) for name, v in row.record.headers
    )
    return row._replace(record=row.record._replace(headers=tuple(published)))


def as_block(headers: tuple[tuple[str, bytes | None], ...]) -> bytes:
    """The headers of one message in its packed delivery: names and values, each behind its length."""
    return b"".join(
        encode_name(name) + encode_length(-1 if value is None else len(value)) + (value or b"")
        for name, value in headers
    )


def without_lapse(row: Row) -> Row:
    own = tuple(header for header in row.record.headers if is_handed_out(header[0]))
    return row._replace(record=row.record._replace(headers=own))


@pytest.mark.feature("D4")
@given(
    st.lists(rows, min_size=1, max_size=12), st.frozensets(st.integers(0, 11)), st.sampled_from([1, 60, 400, 800_000])
)
def test_what_is_packed_is_read_as_it_was(some: list[Row], lost: frozenset[int], most_bytes: int) -> None:
    bodies = written(some, lost, most_bytes)
    assert [row for body in bodies for row in read(body)] == [
        as_text(without_lapse(row)) for at, row in enumerate(some) if at not in lost
    ]
    for body in bodies:
        packed = decode(body)
        assert packed.counts_are_alike == (len(set(packed.delivery_counts)) == 1)
        payload = sum(len(row.record.key or b"") + len(row.record.value or b"") for row in read(body))
        assert payload <= most_bytes or len(packed) == 1


def example() -> bytes:
    own = (("a", b"1"), ("b", None))
    some = [Row(Record(5, 17, b"k", b"value", own), 2, 99), Row(Record(9, 18, None, None, ()), 1, NEVER)]
    (body,) = written(some)
    return body


@pytest.mark.feature("D4")
def test_the_bytes_are_those_of_the_page() -> None:
    headers = struct.pack("<i1si1s", 1, b"a", 1, b"1") + struct.pack("<i1si", 1, b"b", -1)
    assert example() == b"".join(
        (
            b"LD\x01\x07" + struct.pack("<IIH", 2, 7, 6) + b"orders",
            struct.pack("<2q2q2I2i", 5, 9, 17, 18, 2, 1, 5, -1),
            struct.pack("<2q2i2i", 99, NEVER, 1, -1, len(headers), 0),
            b"k" + b"value" + headers,
        )
    )


@pytest.mark.feature("D4", "X7")
@given(st.data())
def test_damaged_bytes_are_refused_or_read_but_break_nothing_else(data: st.DataObject) -> None:
    body = bytearray(example())
    for at in data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=4)):
        body[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(CodecError):
        packed = decode(bytes(body))
        for at in range(len(packed)):
            packed.key(at), packed.value(at), packed.headers(at), packed.deadline_ms(at)


@pytest.mark.feature("D4", "X7")
@given(st.integers(1, 200), st.booleans())
def test_cut_and_lengthened_bytes_are_refused(by: int, longer: bool) -> None:
    body = example()
    with pytest.raises(CodecError, match="packed delivery"):
        decode(body + bytes(by) if longer else body[: max(0, len(body) - by)])


@pytest.mark.feature("D4", "X7")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "0 bytes, too few for its head"),
        (b"XX" + example()[2:], "begins with 5858, expected 4c44"),
        (example()[:3] + b"\x0f" + example()[4:], "unknown flags 0x08"),
        (HEAD.pack(b"LD", 1, 0, 1, 0, 1) + b"\xff" + bytes(24), "the topic's name is no text"),
        (HEAD.pack(b"LD", 1, 0, 1 << 31, 0, 0), "end within the columns of 2147483648 messages"),
        (encode("t", 0, bytes(8), bytes(8), bytes(4), [b""])[:-4] + struct.pack("<i", -2), "a value of -2 bytes"),
        (encode("t", 0, bytes(8), bytes(8), bytes(4), [b"abc"])[:-1], "its columns speak of"),
    ],
)
def test_what_is_wrong_is_said(body: bytes, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        decode(body)


@pytest.mark.feature("D4", "X7")
def test_damaged_headers_are_reported_when_they_are_asked_for() -> None:
    packed = decode(encode("t", 0, bytes(8), bytes(8), bytes(4), [b""], headers=[b"\x09\0\0\0abc"]))
    with pytest.raises(CodecError, match="headers that do not end"):
        packed.headers(0)


@pytest.mark.feature("D4")
def test_another_version_is_refused_with_what_to_do() -> None:
    body = example()
    with pytest.raises(UnknownVersion, match="version 2, and this client reads version 1: bring client and worker"):
        decode(body[:2] + b"\x02" + body[3:])


@pytest.mark.feature("D4")
def test_columns_are_little_endian() -> None:
    assert column("q", [1, -1]) == struct.pack("<2q", 1, -1)
    assert column("I", [1, (1 << 32) - 1]) == struct.pack("<2I", 1, (1 << 32) - 1)


@pytest.mark.feature("D4", "X2")
@given(st.lists(rows, min_size=1, max_size=6))
def test_the_code_on_the_page_reads_what_is_packed(some: list[Row]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(import struct\n.*?)```", page, re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {}
    exec(found[1], names)
    (body,) = written(some)
    assert [(name, key, value) for name, key, value, *_ in names["unpack"](body)] == [
        (f"orders:7:{row.record.offset}#{row.count}", row.record.key, row.record.value) for row in some
    ]
    assert [(own or b"", at, deadline or NEVER) for *_, own, at, deadline in names["unpack"](body)] == [
        (as_block(row.record.headers), row.record.timestamp, row.deadline_ms or NEVER)
        for row in map(without_lapse, some)
    ]
