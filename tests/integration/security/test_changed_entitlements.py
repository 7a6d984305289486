"""Entitlements over restarts and take-overs: unchanged they come back, and changes hold (X4)."""

from pathlib import Path

import pytest

from integration.security.test_entitlements import USERS, taken, trade, values
from lapse.protocol import topic
from lapse_client import CommandFailed
from support.kafka.log import until
from support.processes.deployment import Deployment
from support.processes.entitled import Entitled

pytestmark = pytest.mark.feature("X4")


def subscribed(deployment: Deployment) -> int:
    """How many commands to subscribe there were."""
    sent = deployment.tail(topic.commands(deployment.name("orders"))).drain()
    values = [one.value() or b"" for one in sent]
    return len([value for value in values if b"subscribe" in value and b"unsubscribe" not in value])


@pytest.mark.feature("Q5", "Q16")
def test_entitlements_that_are_switched_on_or_changed_end_what_they_no_longer_cover(kafka: str, tmp_path: Path) -> None:
    settings = {"orders": {"heartbeat_timeout": "60s", "lease_period": "5m"}}
    copied = {"store": "rocksdb", "standby": True}
    deployment = Entitled(kafka, tmp_path, settings, **copied)
    try:
        worker = deployment.apply().worker().wait_for_shards(1)
        deployment.write("orders", *[trade("A"), trade("B")])
        before = deployment.subscriber("orders", 5).start()
        assert len(taken(before, 2)) == 2
        deployment.users = {"alice": USERS["alice"], "ops": USERS["ops"]}
        deployment.configure(settings, **copied)
        worker.stop(60)
        refused = deployment.worker()
        assert refused.wait(90) == 1
        assert "run `lapse apply`" in refused.text
        (tmp_path / "alice.key").unlink()
        refused = deployment.apply().worker()
        assert refused.wait(90) == 1
        assert "users.alice: " in refused.text
        assert "alice.key: cannot be read" in refused.text
        deployment.configure(settings, **copied)
        worker.start().wait_for_shards(1, 90)
        with deployment.subscriber_of("alice", "orders", 5) as alice:
            assert values(taken(alice, 1)) == [{"desk": "A"}], "the lease of nobody's subscription returned at once"
            asked = subscribed(deployment)
            worker.kill()
            worker.start().wait_for_shards(1, 90)  # it reads on from its copy
            deployment.write("orders", trade("B", n=1), trade("A", n=1))
            assert values(taken(alice, 1)) == [{"desk": "A", "n": 1}]
            standby = deployment.worker()
            until(lambda: "standing by" in standby.text, "the standby", 40)
            worker.kill()
            standby.wait_for_shards(1, 90)
            deployment.write("orders", trade("B", n=2), trade("A", n=2))
            assert values(taken(alice, 1)) == [{"desk": "A", "n": 2}]
            assert subscribed(deployment) == asked, "her subscription came back with its row filter, each time"
            deployment.users = {"alice": {"entitlements": {".*": {"read": True, "filter": "/desk = 'B'"}}}}
            deployment.configure(settings, **copied)
            standby.stop(60)
            standby.start().wait_for_shards(1, 90)
            found = taken(alice, 1)
            assert values(found)[0] == {"desk": "B"}, "she subscribes again by herself, and sees what she may see now"
        before.close()
    finally:
        deployment.close()


@pytest.mark.feature("X3", "X4")
def test_who_waits_learns_that_the_right_to_read_was_taken_away(kafka: str, tmp_path: Path) -> None:
    """The subscriptions have ended at the shards. Clients would otherwise wait for ever."""
    queues, sow = {"orders": {}}, {"prices": {}}
    deployment = Entitled(kafka, tmp_path, queues)
    deployment.users = {"alice": {"entitlements": {".*": {"read": True}}}, "ops": USERS["ops"]}
    deployment.configure(queues, sow)
    try:
        worker = deployment.apply().worker().wait_for_shards(2)
        with (
            deployment.subscriber_of("alice", "orders", heartbeat_timeout_ms=3_000) as alice,
            deployment.sow_of("alice", "prices") as prices,
            prices.sow_and_subscribe(heartbeat_timeout_ms=3_000) as updates,
        ):
            assert alice.receive(0.5) is None
            deployment.users = {"alice": {"entitlements": {".*": {"publish": True}}}, "ops": USERS["ops"]}
            deployment.configure(queues, sow)
            worker.stop(60)
            worker.start().wait_for_shards(2, 90)
            with pytest.raises(CommandFailed) as refused:
                alice.receive(30)
            assert refused.value.code == "forbidden"
            with pytest.raises(CommandFailed) as refused:
                list(updates.updates(timeout=30))
            assert refused.value.code == "forbidden"
    finally:
        deployment.close()
