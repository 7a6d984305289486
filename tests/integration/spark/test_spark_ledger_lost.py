"""The ledger and a queue at work: what is gone without a trace is named, for the queue does not have it."""

import json
import re

import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from lapse.protocol import topic
from lapse.protocol.bookmark import BookmarkRange
from lapse.protocol.event import EventKind
from lapse_spark.cli import spark as commands
from support.kafka.log import until
from support.kafka.wire import Wire
from support.processes.deployment import Deployment

QUEUES = {"work": {"expiration": "enabled"}}

pytestmark = [pytest.mark.spark, pytest.mark.feature("D3", "D4")]


def acknowledge(served: Deployment, count: int) -> list[str]:
    """Have so many messages handled; returns their bookmarks once their events are there."""
    before = len(reported(served))
    with served.subscriber("work", 5) as subscriber:
        done = []
        while len(done) < count:
            delivery = subscriber.receive(10)
            assert delivery is not None
            subscriber.settle("acknowledge", [delivery], wait=True)
            done.append(str(delivery.bookmark))
    until(lambda: len(reported(served)) - before == count, "the events of what was acknowledged")
    return done


def reported(served: Deployment) -> list[str]:
    """Bookmarks of the messages that events say are acknowledged."""
    events = [event for event in served.events("work") if event.event == "acknowledged"]
    return [str(mark) for event in events for messages in event.messages for mark in messages]


@pytest.mark.feature("D8")
def test_twelve_acknowledgments_whose_events_are_gone_are_named(spark, kafka, served, tmp_path):
    name = served.name("work")
    served.write("work", *(f"m{number}" for number in range(40)))
    served.write("work", "later", headers=[("lapse-enqueue-at-ms", b"4102444800000")])
    lost = acknowledge(served, 12)
    events = topic.events(name)
    admin = AdminClient({"bootstrap.servers": kafka})
    for gone in admin.delete_records([TopicPartition(events, 0, -1)]).values():  # as if they had never been written
        gone.result(30)
    acknowledge(served, 8)

    def ledger(*options):
        words = ["ledger", "--queue", name, "--topics", name, "--bootstrap", kafka, "--limit", "50", *options]
        answer = CliRunner().invoke(commands, words)
        return answer.exit_code, answer

    code, answer = ledger("--json")
    found = json.loads(answer.stdout)
    assert (found["published"], found["fates"]["acknowledged"], found["still_queued"]) == (41, 8, 21)
    assert (found["listed"], found["lost"], found["difference_counts"]) == (21, 12, {"lost": 12})
    assert [(row["bookmark"], row["difference"]) for row in found["differences"]] == [(mark, "lost") for mark in lost]
    assert (code, found["balanced"]) == (1, False)

    # So does the ledger that goes on; and the queue still has a message that a forged event says is acknowledged.
    forged = next(mark for mark in (f"{name}:0:{offset}" for offset in range(20, 40)) if mark not in lost)
    wire = Wire(kafka)
    wire.event(name, EventKind.ACKNOWLEDGED, BookmarkRange.parse(forged), at_ms=1_000)
    wire.flush()
    follow = ["ledger", "--follow", "--once", "--queue", name, "--topics", name, "--bootstrap", kafka, "--grace", "1s"]
    follow += ["--limit", "50", "--json", "--state", str(tmp_path), "--publish-to", f"balance-{name}"]
    answer = CliRunner().invoke(commands, follow)
    (balance,) = json.loads(answer.stdout)["balances"]
    assert (balance["published"], balance["still_queued"], balance["listed"]) == (41, 20, 21)
    assert balance["difference_counts"] == {"lost": 12, "still_held": 1}
    named = {row["bookmark"]: row["difference"] for row in balance["differences"]}
    assert named == {**dict.fromkeys(lost, "lost"), forged: "still_held"}
    assert balance["balanced_up_to"] == [{"topic": name, "partition": 0, "offset": 0, "read": 41}]
    assert (answer.exit_code, balance["balanced"]) == (1, False)

    # By the topics alone they look as if they were queued, and the ledger says what that is worth.
    for worker in served.workers:
        worker.stop()
    code, answer = ledger()
    shown = " ".join(answer.output.split())
    assert code == 0
    assert "balanced, by the topics alone" in shown
    assert "The queue itself was not asked" in shown
    assert "did not answer" in shown or "no answer" in shown
    assert re.search(r"still queued\W+32\b", shown), shown
