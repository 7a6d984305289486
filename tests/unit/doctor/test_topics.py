"""What `lapse doctor` says to do about topics that do not fit: a remedy that helps (Q15, X7)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lapse.config import Config
from lapse.doctor.finding import Verdict
from lapse.doctor.topics import _differences, _settings
from lapse.protocol import topic
from lapse.runtime.topics.topology import Topology
from lapse_client import Connection, LapseError
from lapse_client.kafka.metadata import Metadata

CONFIG = Config.model_validate({"queue": {"both": {"topics": ["a", "b"]}, "orders": {}}})


@pytest.mark.feature("Q15", "X7")
def test_of_unequal_partitions_nothing_is_promised_that_apply_does_not_do() -> None:
    found = {one.told.partition(":")[0]: one for one in _differences(Topology(CONFIG, {"a": 2, "b": 3}))}
    assert {one.verdict for one in found.values()} == {Verdict.WRONG}
    assert "Give all of them the same number" in found["a"].told
    assert found["a"].remedy == "Do as it says: `lapse apply` leaves it as it is"
    assert found[topic.commands("both")].remedy == "Mend topic a first, then `lapse apply` creates it"
    assert found[topic.commands("orders")].remedy == "`lapse apply` mends it"


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("hidden", "told"),
    [
        ([], "queue orders: its topic lapse.orders.deliveries is missing. `lapse apply` creates it"),
        (["lapse.orders.deliveries"], "do not let this user see lapse.orders.deliveries, if it is there"),
    ],
)
def test_an_entity_that_lacks_a_topic_is_not_said_to_have_another_name(
    hidden: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {"orders": 1, topic.commands("orders"): 1}
    monkeypatch.setattr(Connection, "partitions", lambda *_: there)
    monkeypatch.setattr(Metadata, "hidden", lambda *_: hidden)
    with pytest.raises(LapseError) as error:
        Connection("127.0.0.1:1").shards("queue", "orders")
    assert told in str(error.value)
    assert "did you mean" not in str(error.value)


@pytest.mark.feature("Q15", "X7")
@pytest.mark.parametrize("name", [topic.deliveries("orders"), topic.commands("orders"), topic.events("orders")])
def test_a_topic_that_somebody_has_compacted_is_told(name: str) -> None:
    """Kafka refuses what lapse writes there without a key, and forgets what has one."""
    wanted = Topology(CONFIG, {}).wanted()
    there = Topology(CONFIG, {one.name: one.partitions for one in wanted})
    settings = {
        one.name: {"cleanup.policy": SimpleNamespace(value=one.config.get("cleanup.policy", "delete"))}
        for one in wanted
    }
    assert list(_settings(there, settings)) == []
    (found,) = _settings(there, {**settings, name: {"cleanup.policy": SimpleNamespace(value="compact")}})
    assert found.told == f"topic {name} has cleanup.policy = compact, and lapse needs delete"
    assert found.remedy.endswith("--add-config cleanup.policy=delete")
