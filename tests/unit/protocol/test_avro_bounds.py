"""What a payload in Avro may make of its decoder (X7)."""

import contextlib
import io
import subprocess
import sys
from pathlib import Path

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.protocol import avro_bounds
from lapse.protocol.avro_bounds import MOST_CONTAINERS, MOST_EMPTY_ITEMS, MOST_LEVELS, AvroBounds
from lapse.protocol.avro_payload import AvroPayload
from lapse.protocol.avro_schema import AvroSchema

CHAIN = {
    "type": "record",
    "name": "Link",
    "fields": [{"name": "symbol", "type": "string"}, {"name": "next", "type": ["null", "Link"], "default": None}],
}
TREE = {
    "type": "record",
    "name": "Tree",
    "fields": [
        {"name": "inner", "type": {"type": "array", "items": "Tree"}},
        {"name": "named", "type": {"type": "map", "values": ["null", "Tree"]}},
        {"name": "size", "type": ["null", "double", {"type": "fixed", "name": "Four", "size": 4}]},
    ],
}
TREES = st.recursive(
    st.just({"inner": [], "named": {}, "size": None}),
    lambda inner: st.fixed_dictionaries(
        {
            "inner": st.lists(inner, max_size=3),
            "named": st.dictionaries(st.text(max_size=2), st.none() | inner, max_size=2),
            "size": st.none() | st.floats(allow_nan=False) | st.binary(min_size=4, max_size=4),
        }
    ),
)


def chain(depth: int) -> bytes:
    return b"\x02a\x02" * (depth - 1) + b"\x02a\x00"


@pytest.mark.feature("X7")
def test_a_chain_is_read_up_to_the_limit_and_refused_beyond_it() -> None:
    avro = AvroPayload(AvroSchema(CHAIN, "link.avsc"))
    assert avro.parse(chain(MOST_LEVELS))
    for depth in (MOST_LEVELS + 1, 5_000, 1_000_000):
        with pytest.raises(ValueError, match="nested more than 256 deep"):
            avro.parse(chain(depth))
        with pytest.raises(ValueError, match="nested more than 256 deep"):
            avro.parse_delta(chain(depth))


@pytest.mark.feature("X7")
def test_a_branch_that_counts_from_the_end_does_not_get_by() -> None:
    """The decoder takes branch -1 for the last one, which nests on."""
    with pytest.raises(ValueError, match="has no branch -1"):
        AvroPayload(AvroSchema(CHAIN)).parse(b"\x02a\x01" * 5_000 + b"\x02a\x00")


@pytest.mark.feature("X7")
@given(TREES)
def test_what_a_writer_writes_is_walked_to_its_end(tree: object) -> None:
    schema = AvroSchema(TREE)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema.tree, tree)
    data = out.getvalue()
    assert AvroBounds(schema)._walk(data, 0) == len(data), "short ones are not walked"
    assert AvroPayload(schema).parse(data) == tree


@pytest.mark.feature("X7")
@given(st.binary(max_size=600))
def test_no_bytes_escape_as_anything_but_a_value_error(data: bytes) -> None:
    for schema in (CHAIN, TREE):
        with contextlib.suppress(ValueError):
            AvroPayload(AvroSchema(schema)).parse(data)


@pytest.mark.feature("X7")
@pytest.mark.parametrize("items", ["null", {"type": "record", "name": "Empty", "fields": []}])
def test_a_billion_items_that_take_no_bytes_are_refused(items: object) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "all", "type": {"type": "array", "items": items}}]}
    avro = AvroPayload(AvroSchema(schema))
    assert avro.parse(b"\x06\x00") is not None
    with pytest.raises(ValueError, match=f"more than {MOST_EMPTY_ITEMS:,} items that take no bytes"):
        avro.parse(b"\x80\x80\x80\x80\x10\x00")
    with pytest.raises(ValueError, match="items that take no bytes"):
        avro.parse(b"\x80\x80\x04" * 3 + b"\x00")


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    "items",
    [
        *("boolean", "float", "double", "long", "string", "Link"),
        {"type": "fixed", "name": "Four", "size": 4},
        {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "double"}]},
    ],
)
@pytest.mark.parametrize("count", [b"\x80" * 8 + b"\x20", b"\xff" * 8 + b"\x1f\x08"])
def test_more_items_than_bytes_are_refused_at_once(items: object, count: bytes) -> None:
    """To walk 2 to the power of 60 items, none of which is there, would never end."""
    many = {"name": "many", "type": {"type": "array", "items": items}}
    schema = AvroSchema({**CHAIN, "fields": [*CHAIN["fields"], many]})  # type: ignore[misc]  # a list of fields
    with pytest.raises(ValueError, match="it ends too early"):
        AvroPayload(schema).parse(b"\x02a\x00" + count + bytes(300))


@pytest.mark.slow
@pytest.mark.feature("X7")
def test_a_schema_that_is_too_deep_or_endless_is_refused() -> None:
    with pytest.raises(ValueError, match="record Self contains itself without end"):
        AvroBounds(AvroSchema({"type": "record", "name": "Self", "fields": [{"name": "me", "type": "Self"}]}))
    fields = [{"name": "f0", "type": {"type": "record", "name": "R0", "fields": []}}]
    for at in range(1, 2_000):  # each names the one before; the file itself is flat
        inner = {"type": "record", "name": f"R{at}", "fields": [{"name": "f", "type": f"R{at - 1}"}]}
        fields.append({"name": f"f{at}", "type": inner})
    with pytest.raises(ValueError, match="nested more than 256 deep"):
        AvroBounds(AvroSchema({"type": "record", "name": "Top", "fields": fields}))


@pytest.mark.feature("X7")
@pytest.mark.parametrize("depth", [300, 900, 5_000])
def test_a_delta_in_json_that_is_too_deep_is_refused(depth: int) -> None:
    avro = AvroPayload(AvroSchema(CHAIN))
    delta = b'{"symbol":"a","next":' * depth + b"null" + b"}" * depth
    with pytest.raises(ValueError, match=r"deep|neither JSON nor Avro"):
        avro.serialize(avro.parse_delta(delta), b"")


@pytest.mark.slow
@pytest.mark.feature("X7")
def test_what_cannot_be_resolved_at_the_deepest_place_is_a_value_error() -> None:
    fields = [{"name": "symbol", "type": "string"}, {"name": "next", "type": ["null", "int", "Link"], "default": None}]
    old = AvroSchema({"type": "record", "name": "Link", "fields": fields})
    avro = AvroPayload(AvroSchema(CHAIN, "new"), [old])
    for read in (avro.parse, avro.parse_delta):
        with pytest.raises(ValueError, match="Avro|not to be read"):
            read(old.mark + b"\x02a\x04" * (MOST_LEVELS - 1) + b"\x02a\x02\x02")
    assert avro.parse_delta(old.mark + b"\x02a\x04" * (MOST_LEVELS - 1) + b"\x02a\x00")


@pytest.mark.slow
@pytest.mark.feature("X7")
def test_the_limit_is_far_from_the_end_of_the_stack(tmp_path: Path) -> None:
    """The deepest payload is decoded, and resolved, in a thread with an eighth of the usual stack."""
    script = tmp_path / "decode.py"
    script.write_text(
        "import sys, threading\n"
        "from tests.unit.protocol.test_avro_bounds import CHAIN, chain\n"
        "from lapse.protocol.avro_bounds import MOST_LEVELS\n"
        "from lapse.protocol.avro_payload import AvroPayload\n"
        "from lapse.protocol.avro_schema import AvroSchema\n"
        "new = dict(CHAIN, fields=[*CHAIN['fields'], {'name': 'x', 'type': 'int', 'default': 0}])\n"
        "old = AvroSchema(CHAIN)\n"
        "avro = AvroPayload(AvroSchema(new), [old])\n"
        "threading.stack_size(1 << 20)\n"
        "thread = threading.Thread(target=lambda: avro.parse(old.mark + chain(MOST_LEVELS)))\n"
        "thread.start(); thread.join(); print('read')\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, script], cwd=root, env={"PYTHONPATH": str(root)}, capture_output=True)
    assert done.stdout == b"read\n", done


@pytest.mark.feature("X7")
@pytest.mark.parametrize("end", [b"5", b"null"])
def test_a_value_that_fits_two_branches_at_every_level_is_looked_at_once(end: bytes) -> None:
    """Two to the power of 60 looks would take longer than anyone waits."""
    twin = {"type": "record", "name": "Twin", "fields": [{"name": "next", "type": ["null", "Link", "Twin"]}]}
    schema = {"type": "record", "name": "Link", "fields": [{"name": "next", "type": ["null", "Link", twin]}]}
    avro = AvroPayload(AvroSchema(schema))
    delta = avro.parse_delta(b'{"next":' * 60 + end + b"}" * 60)
    if end == b"null":
        assert avro.parse(avro.serialize(delta, b"")) == delta
    else:
        with pytest.raises(ValueError, match="does not fit"):
            avro.serialize(delta, b"")


ITEM = {"type": "record", "name": "Item", "fields": [{"name": "n", "type": "int"}]}
MANY: list[tuple[object, object]] = [
    (ITEM, {"n": 1}),
    ({"type": "array", "items": "int"}, []),
    ({"type": "map", "values": "int"}, {}),
    (["null", ITEM], {"n": 1}),
]


@pytest.mark.slow
@pytest.mark.feature("X7", "C60")
@pytest.mark.parametrize(("items", "item"), MANY)
def test_a_payload_of_very_many_tiny_records_is_refused_before_it_is_decoded(items: object, item: object) -> None:
    """A megabyte of them takes the decoder a second, in which nobody else has a turn."""
    fields = [{"name": "all", "type": {"type": "array", "items": items}}, {"name": "text", "type": "string"}]
    tree = {"type": "record", "name": "Top", "fields": fields}
    avro, out = AvroPayload(AvroSchema(tree)), io.BytesIO()
    fastavro.schemaless_writer(out, tree, {"all": [item] * (MOST_CONTAINERS + 1), "text": "x" * (1 << 18)})
    with pytest.raises(ValueError, match="more than 65,536 records, arrays and maps"):
        avro.parse(out.getvalue())
    few = {"all": [item] * (MOST_CONTAINERS - 3), "text": "x" * (1 << 18)}
    fastavro.schemaless_writer(out := io.BytesIO(), tree, few)
    assert avro.parse(out.getvalue()) == few


def payload_of(items: object, values: object, *, kind: str = "array") -> tuple[AvroPayload, bytes, AvroBounds]:
    many = {"type": kind, "items" if kind == "array" else "values": items}
    schema = AvroSchema({"type": "record", "name": "Top", "fields": [{"name": "all", "type": many}]})
    fastavro.schemaless_writer(out := io.BytesIO(), schema.tree, {"all": values})
    return AvroPayload(schema), out.getvalue(), AvroBounds(schema)


@pytest.mark.slow
@pytest.mark.feature("X7")
@pytest.mark.parametrize(("items", "item"), [("long", 1), (ITEM, {"n": 1}), (["null", "int"], 1)])
def test_an_array_or_map_counts_once_if_it_is_in_one_block(items: object, item: object) -> None:
    count = MOST_CONTAINERS // 3 if items == ITEM else MOST_CONTAINERS - 2
    for kind in ("array", "map"):
        inner = [item] if kind == "array" else {"k": item}
        _, data, bounds = payload_of({"type": kind, "items" if kind == "array" else "values": items}, [inner] * count)
        bounds.check(data + bytes(1 << 18), 0)


@pytest.mark.slow
@pytest.mark.feature("X7", "C60")
def test_each_further_block_counts() -> None:
    """Walking a block takes as long as walking an array."""
    _, _, bounds = payload_of({"type": "array", "items": "long"}, [])
    blocks = b"\x02\x02" * MOST_CONTAINERS
    with pytest.raises(ValueError, match="more than 65,536 records, arrays and maps"):
        bounds.check(b"\x02" + blocks + b"\x00\x00" + bytes(1 << 18), 0)
    bounds.check(b"\x02" + blocks[:-4] + b"\x00\x00" + bytes(1 << 18), 0)


MIXED = ["null", "int", "string", {"type": "fixed", "name": "Four", "size": 4}, ITEM]
MIXED_VALUES = st.none() | st.integers(-70, 70) | st.text(max_size=2) | st.just({"n": 5}) | st.just(b"four")


@pytest.mark.feature("X7")
@given(st.lists(MIXED_VALUES, max_size=20), st.sampled_from(["array", "map"]))
def test_values_of_a_union_are_walked_to_their_end(values: list[object], kind: str) -> None:
    whole = values if kind == "array" else {str(at) * 30 * (at % 3): one for at, one in enumerate(values)}
    avro, data, bounds = payload_of(MIXED, whole, kind=kind)
    assert bounds._walk(data, 0) == len(data)
    assert avro.parse(data) == {"all": whole}


@pytest.mark.slow
@pytest.mark.feature("X7", "C60")
def test_nulls_in_the_place_of_records_are_passed_and_an_array_without_records_is_not_walked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To walk a megabyte of them one by one takes a second, and to decode it a tenth."""
    numbers: list[int] = []
    read = avro_bounds._number

    def noted(data: bytes, at: int) -> tuple[int, int]:
        numbers.append(at)
        return read(data, at)

    monkeypatch.setattr(avro_bounds, "_number", noted)
    for items, most in ((["null", ITEM], 3), (["null", "int"], 0)):
        _, data, bounds = payload_of(items, [None] * (1 << 18))
        numbers.clear()
        bounds.check(data, 0)
        assert len(numbers) <= most
