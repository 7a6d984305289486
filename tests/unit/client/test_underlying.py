"""Which topics entities read, by their definitions."""

import orjson
import pytest

from lapse_client.reading.underlying import may_be_underlying


@pytest.mark.feature("Q2", "Q23", "C28")
@pytest.mark.parametrize(
    ("kind", "settings", "read", "left_out"),
    [
        ("queue", {}, {"q"}, {"orders"}),
        ("queue", {"topics": ["a", "b"]}, {"a", "b"}, {"q"}),
        ("queue", {"topic_pattern": "part-.*"}, {"part-1"}, {"q", "apart-1", "lapse.part-1"}),
        ("queue", {"topics": ["a"], "topic_pattern": "part-.*"}, {"a", "part-1"}, {"q"}),
        ("sow", {}, {"q"}, {"orders"}),
        ("sow", {"topic": "prices"}, {"prices"}, {"q"}),
    ],
)
def test_what_an_entity_reads(kind: str, settings: object, read: set[str], left_out: set[str]) -> None:
    definition = orjson.dumps({"kind": kind, "settings": settings})
    assert {one for one in read | left_out if may_be_underlying(definition, "q", one)} == read


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    "definition",
    [
        b"",
        b"[]",
        b"1",
        b"{}",
        b'{"kind": "queue", "settings": []}',
        b'{"kind": "queue", "settings": {"topics": 5}}',
        b'{"kind": "queue", "settings": {"topic_pattern": "("}}',
    ],
)
def test_what_cannot_be_understood_leaves_nothing_out(definition: bytes) -> None:
    assert may_be_underlying(definition, "q", "orders")
