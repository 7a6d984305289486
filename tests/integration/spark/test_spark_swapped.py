"""A fate in the place of another one that leaves as much: the journal of the worker tells them apart (D8)."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from lapse.core.reason import Reason
from lapse.protocol import event as events
from lapse.protocol import topic
from lapse.protocol.bookmark import BookmarkRange
from lapse.protocol.event import Event, EventKind
from lapse_spark.cli import spark as commands
from support.kafka.log import until
from support.processes.deployment import Deployment

QUEUES = {"work": {"expiration": "enabled", "dead_letter": False}}

pytestmark = [pytest.mark.spark, pytest.mark.feature("D8")]


def fates(served: Deployment) -> dict[int, str]:
    """What the events tell of each message, by its offset."""
    return {
        offset: one.event
        for one in served.events("work")
        if one.event in events.TERMINAL
        for some in one.messages
        for offset in range(some.first, some.last + 1)
    }


def split(one: Event) -> list[Event]:
    """An event about several messages as one of each."""
    return [
        replace(one, messages=(BookmarkRange(some.topic, some.partition, offset, offset),))
        for some in one.messages
        for offset in range(some.first, some.last + 1)
    ] or [one]


def swap(served: Deployment, kafka: str, late: int, in_time: int) -> None:
    """Write all events again, with the fates of two messages swapped."""
    name = topic.events(served.name("work"))
    emitted = [part for one in served.events("work") for part in split(one)]
    admin = AdminClient({"bootstrap.servers": kafka})
    for gone in admin.delete_records([TopicPartition(name, 0, -1)]).values():
        gone.result(30)
    producer = Producer({"bootstrap.servers": kafka})
    for one in emitted:
        offset = one.messages[0].first if one.messages else -1
        if offset == late and one.event == EventKind.EXPIRED:
            one = replace(one, event=EventKind.ACKNOWLEDGED, reasons=())
        elif offset == in_time and one.event == EventKind.ACKNOWLEDGED:
            one = replace(one, event=EventKind.EXPIRED, reasons=(Reason.TIME_LIMIT.value,))
        producer.produce(name, events.encode(one), partition=0)
    assert producer.flush(20) == 0


def test_swapped_fates_are_named_by_bookmark(spark, kafka, served, tmp_path):
    name = served.name("work")
    served.write("work", *(f"m{number}" for number in range(10)), headers=[("lapse-ttl-ms", b"100")])
    until(lambda: len(fates(served)) == 10, "ten expired")
    served.write("work", *(f"m{number}" for number in range(30)))
    with served.subscriber("work", 5) as subscriber:
        for _ in range(20):
            delivery = subscriber.receive(10)
            assert delivery is not None
            subscriber.settle("acknowledge", [delivery], wait=True)
    until(lambda: len(fates(served)) == 30, "twenty acknowledged")
    follow = ["--follow", "--once", "--grace", "1s", "--state", str(tmp_path), "--publish-to", f"balance-{name}"]

    def ledger(*options):
        words = ["ledger", "--queue", name, "--topics", name, "--bootstrap", kafka, "--json", *options]
        answer = CliRunner().invoke(commands, words)
        found = json.loads(answer.stdout)
        (found,) = found.get("balances", [found])
        assert found["not_journaled"] == ""
        assert found["published"] == 40
        return {row["bookmark"]: row["difference"] for row in found["differences"]}

    assert ledger() == {}
    acknowledged = min(offset for offset, fate in fates(served).items() if fate == EventKind.ACKNOWLEDGED)
    swap(served, kafka, 4, acknowledged)
    assert sum(fate == EventKind.EXPIRED for fate in fates(served).values()) == 10, "as many of each as before"
    named = {f"{name}:0:4": "swapped", f"{name}:0:{acknowledged}": "swapped"}
    assert ledger() == named
    assert ledger(*follow) == named
