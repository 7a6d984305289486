"""Paths of `key` and `hash_index` mean what they mean in expressions (S1, S11)."""

import pytest

from lapse.core.expression import compile_filter, compile_value
from lapse.core.sow.keys import field_path, key
from lapse.core.sow.query.hash_index import HashIndex

PAYLOAD = {"a": {"b": 1}, "order-id": 2, "x y": 3, "it's": 4, "legs": [{"id": 5}, [6]], "35": 7}


@pytest.mark.feature("S1", "S11")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("/a/b", 1),
        ("/'order-id'", 2),
        ('/"x y"', 3),
        ("/'it''s'", 4),
        ("/legs[0]/id", 5),
        ("/legs[1][0]", 6),
        ("/35", 7),
    ],
)
def test_a_path_reads_what_the_expression_reads(text: str, value: int) -> None:
    steps = field_path.parse(text)
    assert field_path.value_at(PAYLOAD, steps) == value == compile_value(text).evaluate(PAYLOAD)
    assert key.key_from_payload(PAYLOAD, [steps]) == b"[%d]" % value


@pytest.mark.feature("S1")
def test_names_with_hyphens_and_dots_need_no_quotes() -> None:
    assert field_path.parse("/order-id/v1.2") == ("order-id", "v1.2")


@pytest.mark.feature("S1")
@pytest.mark.parametrize("text", ["/legs[2]/id", "/a[0]", "/legs/id", "/a/b/c", "/none"])
def test_what_leads_nowhere_is_no_key(text: str) -> None:
    with pytest.raises(key.NoKey, match="is missing or null"):
        key.key_from_payload(PAYLOAD, [field_path.parse(text)])


@pytest.mark.feature("S11")
@pytest.mark.parametrize(
    ("index", "filter_"),
    [
        ("/'order-id'", "/'order-id' = 2"),
        ("/order-id", '/"order-id" = 2'),
        ("/legs[0]/id", "/legs[0]/id = 5"),
        ("/'a'/b", "/a/b = 1"),
    ],
)
def test_an_index_finds_what_its_filter_matches(index: str, filter_: str) -> None:
    hash_index = HashIndex([index])
    hash_index.put(b"k", PAYLOAD)
    compiled = compile_filter(filter_)
    assert compiled.match(PAYLOAD)
    assert hash_index.find(compiled.equalities) == {b"k"}


@pytest.mark.feature("S1", "S3")
@pytest.mark.parametrize(
    ("text", "fields", "found"),
    [
        (b'["A","N"]', 2, '["A","N"]'),
        (b' ["A", "N"]\n', 2, '["A","N"]'),
        (b'["\\u00e9",1.0]', 2, '["é",1]'),
        (b"[12345678901234567890123,true]", 2, "[12345678901234567890123,true]"),
        (b"A", 1, '["A"]'),
        (b'"A"', 1, '["A"]'),
        ("é b".encode(), 1, '["é b"]'),
        (b'["A"', 1, '["[\\"A\\""]'),
    ],
)
def test_a_key_may_be_written_in_any_way_that_json_allows(text: bytes, fields: int, found: str) -> None:
    assert key.canonical_key(text, [("f",)] * fields) == found.encode()


@pytest.mark.feature("S1", "S3", "X7")
@pytest.mark.parametrize(
    ("text", "fields", "fault"),
    [
        (b"A", 2, """'A' is no key here: a key is a JSON list of /f, /f, such as ["…","…"]"""),
        (b'["A"]', 2, "is no key here"),
        (b'["A","B","C"]', 2, "is no key here"),
        (b'["A","B"]', 1, "is no key here"),
        (b"[" * 100_000, 2, "is no key here"),
        (b"5", 1, """may be a text or not: write ["5"] or [5]"""),
        (b"[null]", 1, "/f is missing or null"),
        (b"[{}]", 1, "/f is an object"),
        (b"[NaN]", 1, "no finite number"),
    ],
)
def test_what_is_no_key_says_how_one_is_written(text: bytes, fields: int, fault: str) -> None:
    with pytest.raises(key.NoKey) as refused:
        key.canonical_key(text, [("f",)] * fields)
    assert fault in str(refused.value)
