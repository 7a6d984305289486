"""Topics of several entities: `lapse apply` makes them wide enough, and workers ask for them as long as one is left."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from lapse.config import Config
from lapse.runtime.topics.entity_cleanup import unneeded
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


def _entity(name: str, *targets: str, shapes: Collection[str] = (), forward: str | None = None) -> Any:
    return SimpleNamespace(name=name, targets=dict.fromkeys(targets), shapes=dict.fromkeys(shapes), forward=forward)


@pytest.mark.feature("C4", "C52")
def test_workers_ask_no_more_for_topics_that_only_deleted_entities_name() -> None:
    """They stay on the cluster. Clients log every five minutes that they are missing if somebody removes them."""
    deleted = _entity("a", "a", "dlq.a", "shared", "target", shapes=("by-pattern",))
    left = [_entity("b", "b", "dlq.b", "shared"), _entity("c", "c", forward="target")]
    assert unneeded([deleted], left) == {"lapse.events.a", "a", "dlq.a", "by-pattern"}
