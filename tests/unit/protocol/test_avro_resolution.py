"""Payloads that were written with another schema than they are read with (S1, S2, X1), against Apache's own library."""

import io
import json
from typing import Any

import avro.errors
import avro.io
import avro.schema
import fastavro
import pytest
from fastavro.read import SchemaResolutionError
from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.protocol.avro_payload import AvroPayload
from lapse.protocol.avro_resolution import fault_between
from lapse.protocol.avro_schema import AvroSchema
from support.suite.at_length import examples

LONG = (1 << 63) - 1


def record(*fields: dict[str, Any], name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def written(schema: dict[str, Any], row: object) -> bytes:
    out = io.BytesIO()
    out.write(AvroSchema(schema).mark)
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def both(old: dict[str, Any], new: dict[str, Any]) -> AvroPayload:
    return AvroPayload(AvroSchema(new, "new.avsc"), [AvroSchema(old, "old.avsc")])


def read(old: dict[str, Any], new: dict[str, Any], row: object) -> object:
    return both(old, new).parse(written(old, row))


ADDRESS = record(field("city", "string"), field("zip", "string", default="?"), name="Address")


@pytest.mark.feature("S1", "X1")
@pytest.mark.parametrize(
    ("old", "new", "row", "expected"),
    [
        pytest.param(
            record(field("a", "int")),
            record(
                field("a", "int"), field("b", ["null", "string"], default=None), field("c", "bytes", default="\xff")
            ),
            {"a": 1},
            {"a": 1, "b": None, "c": b"\xff"},
            id="added with a default",
        ),
        pytest.param(
            record(field("a", "int"), field("b", {"type": "array", "items": "string"})),
            record(field("a", "int")),
            {"a": 1, "b": ["x", "y"]},
            {"a": 1},
            id="removed",
        ),
        pytest.param(
            record(field("a", "int"), field("b", "string")),
            record(field("b", "string"), field("a", "int")),
            {"a": 1, "b": "x"},
            {"a": 1, "b": "x"},
            id="in another order",
        ),
        pytest.param(
            record(field("sym", "string")),
            record(field("symbol", "string", aliases=["ticker", "sym"])),
            {"sym": "IBM"},
            {"symbol": "IBM"},
            id="renamed by alias",
        ),
        pytest.param(
            record(
                field("a", "int"), field("b", "long"), field("c", "float"), field("d", "string"), field("e", "bytes")
            ),
            record(
                field("a", "double"),
                field("b", "float"),
                field("c", "double"),
                field("d", "bytes"),
                field("e", "string"),
            ),
            {"a": 1, "b": 2, "c": 0.5, "d": "x", "e": b"y"},
            {"a": 1.0, "b": 2.0, "c": 0.5, "d": b"x", "e": "y"},
            id="promoted",
        ),
        pytest.param(
            record(field("a", "int"), field("b", ["null", "int"])),
            record(field("a", ["null", "long"]), field("b", "double")),
            {"a": 1, "b": 2},
            {"a": 1, "b": 2.0},
            id="into a union and out of one",
        ),
        pytest.param(
            record(field("side", {"type": "enum", "name": "Side", "symbols": ["BUY", "SELL", "SHORT"]})),
            record(
                field("side", {"type": "enum", "name": "Side", "symbols": ["OTHER", "BUY"], "default": "OTHER"}),
            ),
            {"side": "SHORT"},
            {"side": "OTHER"},
            id="an enum's symbol by default",
        ),
        pytest.param(
            record(field("to", record(field("town", "string"), name="Adr"))),
            record(
                field(
                    "to",
                    {**record(field("city", "string", aliases=["town"]), name="Address"), "aliases": ["Adr"]},
                )
            ),
            {"to": {"town": "Rome"}},
            {"to": {"city": "Rome"}},
            id="an inner record under another name",
        ),
        pytest.param(
            record(field("n", "int")),
            record(field("n", "int"), field("to", ADDRESS, default={"city": "Rome"})),
            {"n": 1},
            {"n": 1, "to": {"city": "Rome", "zip": "?"}},
            id="a record by default, with its own defaults",
        ),
    ],
)
def test_what_was_written_with_an_older_schema_is_read(
    old: dict[str, Any], new: dict[str, Any], row: object, expected: object
) -> None:
    assert read(old, new, row) == expected


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (
            record(field("a", "int")),
            record(field("a", "int"), field("venue", "string")),
            "/venue is not in old.avsc, and new.avsc has neither a default for it nor an alias",
        ),
        (record(field("a", "string")), record(field("a", "int")), "/a is string in old.avsc and int in new.avsc"),
        (record(field("a", "long")), record(field("a", "int")), "/a is long in old.avsc and int in new.avsc"),
        (
            record(field("a", ["null", "string"])),
            record(field("a", ["int", "boolean"])),
            "/a is string in old.avsc and int or boolean in new.avsc",
        ),
        (
            record(field("o", record(field("l", {"type": "array", "items": "int"}), name="I"))),
            record(field("o", record(field("l", {"type": "array", "items": "string"}), name="I"))),
            "/o/l/[] is int in old.avsc and string in new.avsc",
        ),
        (
            record(field("m", {"type": "map", "values": {"type": "fixed", "name": "F", "size": 2}})),
            record(field("m", {"type": "map", "values": {"type": "fixed", "name": "F", "size": 3}})),
            "/m/* is fixed F of 2 bytes in old.avsc and fixed F of 3 bytes in new.avsc",
        ),
        (record(name="Price"), record(name="Order"), "give the latter the alias Price"),
        (
            record(field("a", "int"), field("b", "int")),
            record(field("b", "int", aliases=["a"])),
            "/b is both b and a in old.avsc; drop the alias",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_field_and_schema(
    old: dict[str, Any], new: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ValueError, match="what was written with old.avsc cannot be read with new.avsc") as refused:
        both(old, new)
    assert fault in str(refused.value)


SIDES = {"type": "enum", "name": "Side", "symbols": ["BUY", "SELL"]}


@pytest.mark.feature("X7", "S1")
@pytest.mark.parametrize(
    ("old", "new", "row", "fault"),
    [
        (["null", "string"], "string", None, "/x is null in old.avsc and string in new.avsc"),
        (SIDES, {**SIDES, "symbols": ["BUY"]}, "SELL", "/x has the symbol SELL, which new.avsc does not have"),
        (
            {"type": "array", "items": ["null", "int"]},
            {"type": "array", "items": "long"},
            [1, None],
            "/x/[] is null in old.avsc and long in new.avsc",
        ),
        (
            {"type": "map", "values": ["string", "int"]},
            {"type": "map", "values": ["null", "int"]},
            {"k": 1, "here": "text"},
            "/x/here is string in old.avsc and int in new.avsc",
        ),
    ],
)
def test_what_only_some_records_cannot_be_read_for_is_reported_those(
    old: Any, new: Any, row: object, fault: str
) -> None:
    payload = both(record(field("x", old)), record(field("x", new)))
    with pytest.raises(ValueError, match="written with old.avsc, and not to be read with new.avsc") as refused:
        payload.parse(written(record(field("x", old)), {"x": row}))
    assert fault in str(refused.value)


@pytest.mark.feature("S2")
def test_a_delta_says_what_its_writer_wrote_and_no_defaults() -> None:
    inner = record(field("city", "string"), name="Address")
    old = record(
        field("sym", "string"), field("to", ["null", inner]), field("by", {"type": "map", "values": "Address"})
    )
    wider = record(field("city", "string"), field("zip", "string", default="0"), name="Address")
    new = record(
        field("symbol", "string", aliases=["sym"]),
        field("venue", "string", default="X"),
        field("to", ["null", wider]),
        field("by", {"type": "map", "values": "Address"}),
    )
    data = written(old, {"sym": "IBM", "to": {"city": "Rome"}, "by": {"a": {"city": "Bonn"}}})
    payload = both(old, new)
    assert payload.parse_delta(data) == {"symbol": "IBM", "to": {"city": "Rome"}, "by": {"a": {"city": "Bonn"}}}
    whole = payload.parse(data)
    assert payload.parse(payload.serialize(whole, data)) == whole, "written with the new schema, and marked so"


@pytest.mark.feature("S1", "X7")
def test_confluent_ids_name_the_schema() -> None:
    old, new = record(field("a", "int")), record(field("a", "long"), field("b", "int", default=7))
    first, second = AvroSchema(old, "old.avsc"), AvroSchema(new, "new.avsc")
    payload = AvroPayload(second, confluent=True, ids={3: first, 9: AvroSchema(new, "new.avsc")})
    data = b"\0\0\0\0\x03" + written(old, {"a": 5})[10:]
    assert payload.parse(data) == {"a": 5, "b": 7}
    assert payload.serialize({"a": 5, "b": 7}, data) == b"\0\0\0\0\x09" + written(new, {"a": 5, "b": 7})[10:]
    with pytest.raises(ValueError, match="written with the schema of id 4; known are 3, 9"):
        payload.parse(b"\0\0\0\0\x04\x02")
    with pytest.raises(ValueError, match="none of the schemas with an id is new.avsc"):
        AvroPayload(second, confluent=True, ids={3: first})


@pytest.mark.feature("X7")
def test_an_unknown_fingerprint_is_reported_with_those_that_are_known() -> None:
    old, new = record(field("a", "int")), record(field("a", "long"))
    with pytest.raises(ValueError, match="fingerprint 3031323334353637; known are") as refused:
        both(old, new).parse(b"\xc3\x0101234567\xff\xff")
    assert f"{AvroSchema(old).fingerprint} (old.avsc)" in str(refused.value)


# Any schemas

PRIMITIVES = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "string", "bytes"])
VALUES = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-LONG - 1, LONG),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=4),
    "bytes": st.text("abc", max_size=3).map(str.encode),  # so that they are text as well
}
DEFAULTS = {
    "null": None,
    "boolean": True,
    "int": 1,
    "long": 2,
    "float": 0.5,
    "double": 1.5,
    "string": "s",
    "bytes": "b",
}


@st.composite
def parts(draw: st.DrawFn, depth: int = 2) -> Any:
    """A type of a field: primitive, nullable, an array, a map or an enum."""
    kind = draw(st.sampled_from(["primitive", "union", "array", "map", "enum"] if depth else ["primitive"]))
    if kind == "primitive":
        return draw(PRIMITIVES)
    if kind == "union":
        return draw(st.lists(PRIMITIVES, min_size=1, max_size=3, unique=True))
    if kind == "array":
        return {"type": "array", "items": draw(parts(depth - 1))}
    if kind == "map":
        return {"type": "map", "values": draw(parts(depth - 1))}
    symbols = draw(st.lists(st.sampled_from("ABC"), min_size=1, unique=True))
    return {"type": "enum", "symbols": symbols}


@st.composite
def records(draw: st.DrawFn, with_defaults: bool) -> dict[str, Any]:
    """A record of fields a, b and c, some of them."""
    fields = []
    for name in draw(st.lists(st.sampled_from("abc"), unique=True)):
        kind = draw(parts())
        if isinstance(kind, dict) and kind["type"] == "enum":
            kind["name"] = f"Of{name}"
        elif isinstance(kind, dict):
            inner = kind.get("items", kind.get("values"))
            if isinstance(inner, dict) and inner["type"] == "enum":
                inner["name"] = f"In{name}"
        more = {}
        if with_defaults and isinstance(kind, str) and draw(st.booleans()):
            more["default"] = DEFAULTS[kind]
        fields.append(field(name, kind, **more))
    return record(*fields)


def values(kind: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, str):
        return VALUES[kind]
    if isinstance(kind, list):
        return st.one_of([VALUES[one] for one in kind])
    if kind["type"] == "array":
        return st.lists(values(kind["items"]), max_size=2)
    if kind["type"] == "map":
        return st.dictionaries(st.sampled_from("kl"), values(kind["values"]), max_size=2)
    return st.sampled_from(kind["symbols"])


def apache(old: dict[str, Any], new: dict[str, Any], body: bytes) -> Any:
    """What Apache's library reads; the exception if it cannot."""
    schemas = avro.schema.parse(json.dumps(old)), avro.schema.parse(json.dumps(new))
    try:
        return avro.io.DatumReader(*schemas).read(avro.io.BinaryDecoder(io.BytesIO(body)))
    except avro.errors.AvroException as error:
        return error


def has_union(kind: Any) -> bool:
    if isinstance(kind, dict):
        return any(has_union(kind.get(inner)) for inner in ("items", "values"))
    return isinstance(kind, list)


def has_two_sizes(kind: Any) -> bool:
    """Whether a union has a number's narrow and wide type: a value does not tell which of them was written."""
    if isinstance(kind, dict):
        return any(has_two_sizes(kind.get(inner)) for inner in ("items", "values"))
    return isinstance(kind, list) and ({"int", "long"} <= set(kind) or {"float", "double"} <= set(kind))


def are_same(found: Any, expected: Any) -> bool:
    """Whether two values are the same. Apache's library leaves whole numbers as they are where a float is wanted."""
    if isinstance(found, dict):
        return found.keys() == expected.keys() and all(are_same(found[name], expected[name]) for name in found)
    if isinstance(found, list):
        return len(found) == len(expected) and all(map(are_same, found, expected))
    return bool(found == (float(expected) if isinstance(found, float) else expected))


def has_both_texts(kind: Any) -> bool:
    """Whether a union has `string` and `bytes`. The first that fits is taken, and Apache's library prefers the same."""
    if isinstance(kind, dict):
        return any(has_both_texts(kind.get(inner)) for inner in ("items", "values"))
    return isinstance(kind, list) and {"string", "bytes"} <= set(kind)


def nests(kind: Any) -> bool:
    """Whether an array or a map holds another one."""
    inner = kind.get("items", kind.get("values")) if isinstance(kind, dict) else None
    return isinstance(inner, dict) and inner["type"] in ("array", "map")


@given(st.data(), records(False), records(True))
@settings(max_examples=examples(600), deadline=None)
@pytest.mark.feature("S1", "X1", "X7")
def test_any_two_schemas_are_resolved_as_apache_does(
    data: st.DataObject, old: dict[str, Any], new: dict[str, Any]
) -> None:
    row = {one["name"]: data.draw(values(one["type"]), one["name"]) for one in old["fields"]}
    body = written(old, row)[10:]
    writer, reader = AvroSchema(old, "old.avsc"), AvroSchema(new, "new.avsc")
    expected = apache(old, new, body)
    try:
        found: Any = fastavro.schemaless_reader(io.BytesIO(body), writer.tree, reader.tree)
    except SchemaResolutionError as error:
        found = error
    of_any, of_this = fault_between(writer, reader), fault_between(writer, reader, row)
    if isinstance(found, Exception):
        assert of_any or of_this or any(has_two_sizes(one["type"]) for one in old["fields"]), found
    else:
        assert not of_this
    if isinstance(expected, Exception):
        # Of a writer's union, Apache's Python library compares the whole where the specification says the branch. Of an
        # array in an array it compares the items' types by name, so that `int` does not become `long`; and no item is
        # taken for a union's. It reads no bytes as a string, and no string as bytes.
        odd = (
            any(has_union(one["type"]) or nests(one["type"]) for one in old["fields"])
            or any(isinstance(one["type"], dict) and has_union(one["type"]) for one in new["fields"])
            or "bytes" in json.dumps([old, new])
        )
        assert of_any or of_this or odd
    elif not of_any and not any(has_both_texts(one["type"]) for one in new["fields"]):
        assert are_same(found, expected), expected
