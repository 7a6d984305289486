"""Topics that Kafka does not create beside others: their new entities are not half made (X7, C81)."""

from __future__ import annotations

import pytest

from lapse.config import Config
from lapse.runtime.topics.topology import Topology

pytestmark = pytest.mark.feature("X7", "C81")


def test_an_entity_whose_topic_kafka_would_refuse_gets_no_topic_and_concerns_nobody_else() -> None:
    config = Config.model_validate(
        {"queue": {"new": {"topics": ["a.b"]}, "letters": {"dead_letter": "e.f"}, "twice": {"topics": ["c.d", "c_d"]}}}
    )
    topology = Topology(config, {"a_b": 1, "e_f": 1})
    refused = {one.topic: one for one in topology.differences() if not one.mended}
    assert set(refused) == {"a.b", "c_d", "e.f"}
    assert "Kafka does not create it beside a_b: '.' and '_' are the same" in refused["a.b"].what
    assert "beside c.d" in refused["c_d"].what
    assert topology.barred().keys() >= {name for one in refused.values() for name in one.bars}
    assert {name for one in refused.values() for name in one.bars} == {"new", "letters", "twice"}


def test_an_entity_that_exists_is_served_without_the_topic() -> None:
    config = Config.model_validate({"queue": {"old": {"topics": ["a.b", "t"]}}})
    there = {one.name: one.partitions for one in Topology(config, {}).wanted() if one.name != "a.b"}
    topology = Topology(config, {**there, "a_b": 1})
    assert topology.barred() == {}
    assert [one.topic for one in topology.differences() if one.create] == ["a.b"], "Kafka's refusal says why"
