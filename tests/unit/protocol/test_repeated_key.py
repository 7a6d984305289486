"""A key that an object has twice is found, however it is written, and nothing else is (X7)."""

import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.protocol.avro_schema import AvroSchema
from lapse.protocol.command import CommandError, decode
from lapse.protocol.repeated_key import repeated_key
from support.suite.at_length import examples

pytestmark = pytest.mark.feature("X2", "X7")

NAMES = st.sampled_from(["a", "b:", 'c":', "", "é"])
TREES = st.recursive(
    NAMES | st.integers(-9, 9) | st.none(),
    lambda some: st.lists(some, max_size=3) | st.lists(st.tuples(NAMES, some), max_size=3).map(tuple),
    max_leaves=9,
)
"""JSON in which a tuple of pairs is an object, which may have a key twice."""


def written(tree: object, spaced: bool, escaped: bool) -> str:
    """A tree as JSON."""
    if isinstance(tree, tuple):
        colon = " : " if spaced else ":"
        pairs = (written(key, spaced, escaped) + colon + written(value, spaced, escaped) for key, value in tree)
        return "{" + ",".join(pairs) + "}"
    if isinstance(tree, list):
        return "[" + ",".join(written(one, spaced, escaped) for one in tree) + "]"
    text = json.dumps(tree, ensure_ascii=escaped)
    return text.replace(":", "\\u003A") if escaped and isinstance(tree, str) else text


def twice(tree: object) -> set[str]:
    """The keys that an object has twice."""
    if not isinstance(tree, tuple):
        return set().union(*map(twice, tree)) if isinstance(tree, list) else set()
    keys = [key for key, _ in tree]
    return {key for key in keys if keys.count(key) > 1}.union(*(twice(value) for _, value in tree))


@given(tree=TREES, spaced=st.booleans(), escaped=st.booleans())
@settings(max_examples=examples(400))
def test_a_key_is_found_if_it_is_there_twice(tree: object, spaced: bool, escaped: bool) -> None:
    data = written(tree, spaced, escaped).encode()
    found, expected = repeated_key(data, orjson.loads(data)), twice(tree)
    assert found in expected if expected else found is None


@pytest.mark.parametrize("field", ["filter", "command", "id"])
def test_a_command_with_a_field_twice_is_refused_with_its_id(field: str) -> None:
    body = f'{{"command": "purge", "id": "1", "{field}": "x", "{field}": "y"}}'
    with pytest.raises(CommandError, match=rf"^field {field}: is there twice") as refused:
        decode(body.encode())
    assert refused.value.id
    assert refused.value.encoding == "json"


def test_a_schema_with_a_key_twice_is_refused(tmp_path) -> None:
    path = tmp_path / "trade.avsc"
    path.write_text('{"type": "record", "name": "t", "fields": [{"name": "a", "type": "int", "type": "long"}]}')
    with pytest.raises(ValueError, match=r"trade.avsc: key 'type' is there twice"):
        AvroSchema.of_file(path)
