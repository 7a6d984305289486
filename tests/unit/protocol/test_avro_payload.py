"""Payloads in Avro, in each of their forms (S1, S2, X1)."""

import contextlib
import io
from pathlib import Path

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.protocol.avro_payload import AvroPayload
from lapse.protocol.avro_schema import AvroSchema

SCHEMA = {
    "type": "record",
    "name": "Price",
    "fields": [
        {"name": "symbol", "type": "string"},
        {"name": "price", "type": ["null", "double"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "sizes", "type": {"type": "map", "values": "long"}},
    ],
}
ROW = {"symbol": "IBM", "price": 1.5, "at": 1_700_000_000_001, "sizes": {"bid": 3}}
ROWS = st.fixed_dictionaries(
    {
        "symbol": st.text(max_size=8),
        "price": st.none() | st.floats(allow_nan=False),
        "at": st.integers(-(1 << 63), (1 << 63) - 1),
        "sizes": st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=3),
    }
)


def bare(row: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), row)
    return out.getvalue()


def forms(row: object) -> list[tuple[AvroPayload, bytes]]:
    schema = AvroSchema(SCHEMA)
    avro = AvroPayload(schema)
    return [
        (avro, bare(row)),
        (avro, schema.mark + bare(row)),
        (AvroPayload(schema, confluent=True), b"\x00\x00\x00\x00\x07" + bare(row)),
    ]


@given(ROWS)
@pytest.mark.feature("S1", "X2")
def test_every_form_is_read_and_written_as_it_was(row: dict[str, object]) -> None:
    for avro, data in forms(row):
        assert avro.parse(data) == row
        assert avro.serialize(row, data) == data


@given(st.binary(max_size=40))
@pytest.mark.feature("X7")
def test_whatever_comes_is_a_record_or_a_value_error(data: bytes) -> None:
    for confluent in (False, True):
        with contextlib.suppress(ValueError):
            assert isinstance(AvroPayload(AvroSchema(SCHEMA), confluent=confluent).parse(data), dict)


@pytest.mark.feature("S2")
def test_a_delta_is_json_or_a_whole_record() -> None:
    for avro, data in forms(ROW):
        assert avro.parse_delta(b'{"price": 2}') == {"price": 2}
        assert avro.parse_delta(data) == ROW
        for wrong in (b"{", b"\xff\xff\xff", b""):
            with pytest.raises(ValueError, match="neither JSON nor Avro"):
                avro.parse_delta(wrong)


@pytest.mark.feature("S2", "X7")
def test_what_does_not_fit_the_schema_is_refused() -> None:
    avro = AvroPayload(AvroSchema(SCHEMA))
    for wrong in ({**ROW, "typo": 1}, {**ROW, "at": "soon"}, {"symbol": "IBM"}, {**ROW, "at": 1 << 64}, 5):
        with pytest.raises(ValueError, match="does not fit"):
            avro.serialize(wrong, b"")


@pytest.mark.feature("S2", "X7")
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"price": "much"}, "/price is 'much', expected null or double"),
        ({"at": None}, "/at is null, expected long"),
        ({"at": 1 << 63}, "/at is 9223372036854775808, expected long"),
        ({"at": True}, "/at is True, expected long"),
        ({"sizes": {"bid": "x"}}, "/sizes/bid is 'x', expected long"),
        ({"typo": 1}, "/typo is no field of the schema"),
        ({"lot": 1 << 31}, "/lot is 2147483648, expected int"),
        ({"side": "HOLD"}, "/side is 'HOLD', expected enum Side"),
        ({"to": {"zip": 5}}, "/to/zip is 5, expected string"),
        ({"to": {}}, "/to/zip is missing, and has no default"),
        ({"marks": [b"ab", b"abc"]}, "/marks/[] is b'abc', expected fixed Mark of 2 bytes"),
    ],
)
def test_what_does_not_fit_is_reported_with_its_field(change: dict[str, object], fault: str) -> None:
    more = [
        {"name": "lot", "type": "int", "default": 1},
        {"name": "side", "type": {"type": "enum", "name": "Side", "symbols": ["BUY", "SELL"]}, "default": "BUY"},
        {
            "name": "to",
            "type": ["null", {"type": "record", "name": "To", "fields": [{"name": "zip", "type": "string"}]}],
            "default": None,
        },
        {
            "name": "marks",
            "type": {"type": "array", "items": {"type": "fixed", "name": "Mark", "size": 2}},
            "default": [],
        },
    ]
    avro = AvroPayload(AvroSchema({**SCHEMA, "fields": [*SCHEMA["fields"], *more]}))
    assert avro.parse(avro.serialize(ROW, b"")) == {**ROW, "lot": 1, "side": "BUY", "to": None, "marks": []}
    with pytest.raises(ValueError, match="does not fit the schema") as refused:
        avro.serialize({**ROW, **change}, b"")
    assert str(refused.value).endswith(fault)


@pytest.mark.feature("X7")
def test_a_faulty_schema_says_so(tmp_path: Path) -> None:
    for schema in ({"type": "nothing"}, {"type": "record"}, "long", 5, {"type": "record", "name": "A", "fields": 3}):
        with pytest.raises(ValueError, match="schema"):
            AvroSchema(schema)
    with pytest.raises(ValueError, match="No such file"):
        AvroSchema.of_file(tmp_path / "none.avsc")
