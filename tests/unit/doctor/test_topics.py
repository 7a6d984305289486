"""What `lapse doctor` says to do about topics that do not fit: a remedy that helps (Q15, X7)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lapse.config import Config
from lapse.doctor.finding import Verdict
from lapse.doctor.service import _refused
from lapse.doctor.topics import _differences, _settings
from lapse.protocol import topic
from lapse.runtime.topics.retention import Retention
from lapse.runtime.topics.topology import Topology
from lapse_client import Connection, LapseError
from lapse_client.error import UnknownEntity
from lapse_client.kafka.metadata import Metadata

CONFIG = Config.model_validate({"queue": {"both": {"topics": ["a", "b"]}, "orders": {}}})


@pytest.mark.feature("Q15", "X7")
def test_of_unequal_partitions_nothing_is_promised_that_apply_does_not_do() -> None:
    found = {one.text.partition(":")[0]: one for one in _differences(Topology(CONFIG, {"a": 2, "b": 3}))}
    assert next(iter(found)) == "a", "the cause comes first"
    assert {one.verdict for one in found.values()} == {Verdict.WRONG}
    assert "Give all of them the same number" in found["a"].text
    assert found["a"].remedy == "Do this yourself: `lapse apply` does not change it"
    lacking = {
        "5 topics of both are missing": "Mend topic a first, then `lapse apply` creates them",
        "6 topics of orders are missing": "`lapse apply` creates them",
    }
    for finding, remedy in lacking.items():
        assert found.pop(finding).remedy == remedy
    assert len(found) == 2, "one line for each entity, and one for the topics of definitions"


@pytest.mark.feature("Q15", "X7")
def test_one_topic_that_is_missing_is_reported_with_its_purpose() -> None:
    wanted = {one.name: one.partitions for one in Topology(CONFIG, {"a": 1, "b": 1}).wanted()}
    del wanted[topic.events("orders")]
    (one,) = _differences(Topology(CONFIG, wanted))
    assert (
        one.text
        == f"{topic.events('orders')}: missing; events of orders, 1 partition; not served because of it: orders"
    )
    assert one.remedy == "`lapse apply` creates it"


@pytest.mark.feature("Q15")
def test_settings_that_are_wrong_are_mended_by_one_command_that_can_be_pasted() -> None:
    there = Topology(CONFIG, {one.name: one.partitions for one in Topology(CONFIG, {}).wanted()})
    name = topic.changelog("lapse", "orders")
    actual = {key: SimpleNamespace(value="0") for key in ("min.compaction.lag.ms", "delete.retention.ms")}
    found = [one for one in _settings(there, {name: actual}) if one.about == "settings"]
    assert [one.verdict for one in found] == [Verdict.WRONG] * 2
    (remedy,) = {one.remedy for one in found}
    assert remedy.startswith(f"kafka-configs.sh --bootstrap-server {CONFIG.lapse.brokers} --alter --topic {name} ")
    assert "min.compaction.lag.ms=" in remedy
    assert "delete.retention.ms=" in remedy


@pytest.mark.feature("Q15")
def test_an_entity_of_the_file_without_topics_is_not_said_to_be_absent_from_the_file() -> None:
    one = _refused("queue orders", UnknownEntity("queue", "orders", ["jobs"]))
    assert (one.text, one.verdict) == ("it is not on this cluster yet", Verdict.WRONG)
    hidden = _refused("queue orders", UnknownEntity("queue", "orders", [], ["lapse.orders.commands"]))
    assert "do not let this user see lapse.orders.commands" in hidden.text


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("hidden", "message"),
    [
        ([], "queue orders: its topic lapse.orders.deliveries is missing. `lapse apply` creates it"),
        (["lapse.orders.deliveries"], "do not let this user see lapse.orders.deliveries, if it is there"),
    ],
)
def test_an_entity_that_lacks_a_topic_is_not_said_to_have_another_name(
    hidden: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {"orders": 1, topic.commands("orders"): 1}
    monkeypatch.setattr(Connection, "partitions", lambda *_: there)
    monkeypatch.setattr(Metadata, "hidden", lambda *_: hidden)
    with pytest.raises(LapseError) as error:
        Connection("127.0.0.1:1").shards("queue", "orders")
    assert message in str(error.value)
    assert "did you mean" not in str(error.value)


@pytest.mark.feature("Q15", "D4")
@pytest.mark.parametrize(
    ("name", "policy", "needed"),
    [
        (topic.deliveries("orders"), "compact", "delete"),
        (topic.commands("orders"), "compact,delete", "delete"),
        (topic.events("orders"), "compact", "delete"),
        (topic.changelog("lapse", "orders"), "delete", "compact"),
    ],
)
def test_a_topic_whose_policy_somebody_has_changed_is_reported_and_mended(name: str, policy: str, needed: str) -> None:
    """Kafka deletes state, or refuses what lapse writes without a key, and forgets what has one."""
    wanted = Topology(CONFIG, {}).wanted()
    there = {one.name: one.partitions for one in wanted}
    policies = {one.name: one.config.get("cleanup.policy", "delete") for one in wanted}
    fits = {one: Retention(-1, True, "compact" in some, some) for one, some in policies.items()}
    assert Topology(CONFIG, there, retentions=fits).differences() == []
    changed = Topology(CONFIG, there, retentions={**fits, name: Retention(-1, True, "compact" in policy, policy)})
    (found,) = _differences(changed)
    assert found.text.startswith(f"{name}: cleanup.policy is {policy} instead of {needed}: ")
    assert (found.verdict, found.remedy) == (Verdict.WRONG, "`lapse apply` mends it")
    assert [one.alter for one in changed.differences()] == [{"cleanup.policy": needed}]
    assert changed.barred() == {}


@pytest.mark.feature("Q15")
@pytest.mark.parametrize(
    ("name", "kept", "message"),
    [
        (topic.commands("orders"), "60000", "keeps records for 1m, and retention of orders is 1d"),
        (topic.deliveries("orders"), "0", "keeps records for 0"),
        (topic.deliveries("orders"), "-1", ""),
        (topic.deliveries("orders"), "864000000", ""),
        (topic.events("orders"), "60000", ""),  # whoever wants them no longer may say so
    ],
)
def test_a_topic_that_keeps_records_too_shortly_is_reported(name: str, kept: str, message: str) -> None:
    there = Topology(CONFIG, {one.name: one.partitions for one in Topology(CONFIG, {}).wanted()})
    found = [
        one for one in _settings(there, {name: {"retention.ms": SimpleNamespace(value=kept)}}) if one.about != "rights"
    ]
    assert [one.verdict for one in found] == [Verdict.WARNING] * bool(message)
    for one in found:
        assert message in one.text
        assert one.remedy.endswith("--add-config retention.ms=86400000")
