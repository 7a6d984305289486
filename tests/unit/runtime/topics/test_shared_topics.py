"""Entities that read one missing topic: `lapse apply` makes it wide enough for all of them (Q1, C81)."""

from __future__ import annotations

import pytest

from lapse.config import Config
from lapse.runtime.topics.topology import Topology


@pytest.mark.feature("Q1", "Q2", "C81")
@pytest.mark.parametrize(
    "tables",
    [
        {"queue": {"narrow": {"topics": ["t"]}, "wide": {"topics": ["t"], "partitions": 3}}},
        {"queue": {"wide": {"topics": ["t"], "partitions": 3}, "narrow": {"topics": ["t"]}}},
        {"queue": {"wide": {"topics": ["t"], "partitions": 3}}, "sow": {"narrow": {"topic": "t"}}},
        {
            "queue": {
                "last": {"topics": ["t", "u"]},
                "first": {"topics": ["v"], "partitions": 3},
                "between": {"topics": ["u", "v"]},
            }
        },
        {"queue": {"narrow": {"topics": ["t"]}, "total": {"topics": ["t"], "partitions": 3, "ordering": "total"}}},
        {"queue": {"wide": {"topics": ["t"], "partitions": 3}, "dlq.wide": {}, "also": {"topics": ["dlq.wide"]}}},
    ],
)
def test_what_apply_creates_fits_every_reader(tables: dict[str, dict[str, object]]) -> None:
    config = Config.model_validate(tables)
    before = Topology(config, {})
    created = {topic.name: topic.partitions for topic in before.wanted()}
    after = Topology(config, created)
    assert after.differences() == []
    assert {name: after.partitions(name) for name in after.entities()} == {
        name: before.partitions(name) for name in before.entities()
    }


@pytest.mark.feature("Q1", "C81")
def test_an_entity_that_is_there_says_how_wide_a_missing_topic_becomes() -> None:
    config = Config.model_validate({"queue": {"new": {"topics": ["t"]}, "old": {"topics": ["t"]}}})
    there = Topology(Config.model_validate({"queue": {"old": {"topics": ["t"], "partitions": 4}}}), {})
    created = {topic.name: topic.partitions for topic in there.wanted() if topic.name != "t"}
    topology = Topology(config, created)
    assert topology.partitions("new") == topology.partitions("old") == 4
    assert {topic.name: topic.partitions for topic in topology.wanted()}["t"] == 4
