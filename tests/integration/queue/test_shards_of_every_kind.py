"""Queues of every kind get more shards at once, while a worker is killed and the broker stands still (C81).

The rows of `tests/interactions.toml` about added partitions that no other test shows.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions

import support.workers.impatient
from lapse.embedded import EmbeddedKafka
from lapse.embedded.process import freeze
from lapse.protocol import topic
from lapse.protocol.command import Command
from lapse_client import Delivery, QueueSubscriber
from lapse_client.error import CommandFailed
from lapse_client.session.conversation import Conversation
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment
from support.processes.entitled import Entitled

LATER_MS = 3_600_000
QUEUES = {
    "aged": {"expiration": "enabled"},
    "put_off": {"lease_period": "5m"},
    "once": {"semantics": "at-most-once"},
    "shared": {"state": "disk", "lease_period": "5m"},
    "source": {"forward_to": "sink{}"},
    "sink": {"partitions": 2},
    "ordered": {"ordering": "total"},
    "poison": {"max_deliveries": 1, "lease_period": "5m"},
    "swept": {"expiration": "enabled", "lease_period": "5m"},
    "ended": {"lease_period": "5m"},
    "anew": {"topics": ["anew-in{}"], "lease_period": "5m"},
    "uneven": {"topics": ["uneven{}", "absent{}"]},
}
GROWN = ("aged", "put_off", "once", "shared", "source", "poison", "swept", "ended", "anew")
WAITING = ("put_off", "once", "swept", "ended", "anew")
SHARDS = len(QUEUES) + 1
SOME_TIME_S = 4


def add_partitions(here: Deployment, *topics: str, count: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": here.servers})
    for added in admin.create_partitions([NewPartitions(one, count) for one in topics]).values():
        added.result(15)

    def known() -> bool:
        there = admin.list_topics(timeout=15).topics
        return all(len(there[one].partitions) == count for one in topics)

    until(known, "the partitions are known")


def receive(subscriber: QueueSubscriber) -> Delivery:
    found = subscriber.receive(60)
    assert found is not None
    return found


def acknowledge(subscriber: QueueSubscriber, some: Iterable[Delivery]) -> None:
    results = subscriber.settle("acknowledge", [*some], wait=True)
    assert all(one.settled for one in results), results


def values(subscriber: QueueSubscriber, count: int) -> list[bytes | None]:
    """What comes next, acknowledged."""
    found = [receive(subscriber) for _ in range(count)]
    acknowledge(subscriber, found)
    return [one.value for one in found]


class Grown:
    """The queues before they get shards, with what holds their new shards up."""

    def __init__(self, here: Deployment, stack: ExitStack) -> None:
        self.here = here
        backlogs = {"put_off": 2, "once": 3, "shared": 1, "poison": 2, "swept": 2, "ended": 1, "anew": 1}
        options = {"shared": {"filter": "/f = 1", "payload": "reference"}}
        self.subscribers = {
            stem: stack.enter_context(here.subscriber(stem, backlog, timeout_s=60, **options.get(stem, {})))
            for stem, backlog in backlogs.items()
        }
        self.held: dict[str, Delivery] = {}
        for stem in ("put_off", "once", "swept", "ended"):
            here.write(stem, "first")
            self.held[stem] = receive(self.subscribers[stem])
        here.write("anew-in", "first")
        self.held["anew"] = receive(self.subscribers["anew"])

    def enlarge(self) -> None:
        """Give all topics two partitions, and the queues two shards, if they can have them."""
        here = self.here
        add_partitions(
            here, *(here.name("anew-in" if stem == "anew" else stem) for stem in (*GROWN, "ordered", "uneven"))
        )
        for stem in ("put_off", "once", "swept", "ended"):
            here.write(stem, "moved", partition=1)
        here.write("anew-in", *(f"old {number}" for number in range(5)), partition=1)
        with here.queue("anew") as queue:
            until(lambda: queue.depth()["depth"] == 6, "the one shard reads both partitions", 40)
            assert all(one.settled for one in queue.acknowledge([f"{here.name('anew-in')}:1:0-4"]))
        (cancelled,) = self.subscribers["put_off"].settle(
            "cancel", [self.held["put_off"]], delay_ms=LATER_MS, wait=True
        )
        assert cancelled.settled
        for stem in GROWN:
            done = here.lapse("queue", "partitions", here.name(stem))
            assert done.returncode == 0, done.stderr

    def refused(self) -> None:
        """A queue gets no shards while one of its topics is missing or has fewer partitions, nor in total order."""
        admin, absent = AdminClient({"bootstrap.servers": self.here.servers}), self.here.name("absent")
        admin.delete_topics([absent])[absent].result(15)
        until(lambda: absent not in admin.list_topics(timeout=15).topics, "the topic is gone")
        uneven = self.here.lapse("queue", "partitions", self.here.name("uneven"))
        assert (uneven.returncode, "unequal numbers of partitions" in uneven.stderr) == (1, True)
        ordered = self.here.lapse("queue", "partitions", self.here.name("ordered"))
        assert (ordered.returncode, "Nothing has to be done" in ordered.stderr) == (1, True)

    def wait_for_purge_and_expire(self) -> None:
        """A purge takes out what held the new shard up. What is past its deadline then leaves with a letter."""
        here, subscriber = self.here, self.subscribers["swept"]
        held = [self.held["swept"], receive(subscriber)]
        (short,) = here.write("swept", "short", partition=1, headers=[("lapse-ttl-ms", b"1")])
        here.write("swept", "new", partition=1)
        with here.queue("swept") as queue:
            purged = [queue.purge(leased=leased)["removed"] for leased in (False, True)]
        assert purged == [0, 2], "what the first shard had, and no more"
        results = subscriber.settle("acknowledge", held, wait=True)
        # If the worker stood still, the client has asked twice, and takes its first command for the cause (C55).
        assert {one.result for one in results} <= {"already_settled", "settled"}
        assert values(subscriber, 1) == [b"new"]
        (letter,) = here.letters("swept", 1)
        assert (letter.value(), dict(letter.headers())["lapse-expires-at-ms"]) == (
            b"short",
            b"%d" % (short.timestamp_ms + 1),
        )
        assert here.lapse("dlq", "redrive", here.name("swept"), "--yes").returncode == 0
        again = receive(subscriber)
        assert (again.value, again.bookmark.partition) == (b"short", 1)
        acknowledge(subscriber, [again])

    def wait_for_delay(self) -> None:
        """A delayed message holds the new shard up until it has left."""
        here, subscriber = self.here, self.subscribers["put_off"]
        assert values(subscriber, 1) == [b"moved"]
        here.write("put_off", "new", partition=1)
        assert subscriber.receive(2) is None
        with here.queue("put_off") as queue:
            (expired,) = queue.expire([self.held["put_off"].bookmark])
        assert expired.settled
        assert values(subscriber, 1) == [b"new"]

    def wait_for_sent(self) -> None:
        """What was sent at most once holds it up until it is acknowledged."""
        here, subscriber = self.here, self.subscribers["once"]
        assert values(subscriber, 1) == [b"moved"]
        here.write("once", "new", partition=1)
        assert subscriber.receive(2) is None
        acknowledge(subscriber, [self.held["once"]])
        assert values(subscriber, 1) == [b"new"]

    def share_a_filtered_backlog(self) -> None:
        """An open subscription has its filter in the new shard too, and one backlog for both."""
        here, subscriber = self.here, self.subscribers["shared"]
        for partition in (0, 1):
            here.write("shared", '{"f": 2}', '{"f": 1}', partition=partition)
        until(lambda: here.depth("shared")["depth"] == 4, "both shards read", 60)
        first = receive(subscriber)
        assert subscriber.receive(1) is None
        acknowledge(subscriber, [first])
        second = receive(subscriber)
        assert {(one.bookmark.partition, one.value) for one in (first, second)} == {(0, b'{"f": 1}'), (1, b'{"f": 1}')}

    def go_their_ways(self) -> None:
        """A new shard forwards and writes letters; the one shard of a total order reads the added partition."""
        here = self.here
        here.write("source", "on", partition=1)
        until(lambda: here.depth("sink")["available"] == 1, "it is forwarded", 60)
        here.write("ordered", "read", partition=1)
        with here.subscriber("ordered", 1, timeout_s=60) as subscriber:
            assert values(subscriber, 1) == [b"read"]
        here.write("poison", "bad", partition=1)
        bad = receive(self.subscribers["poison"])
        bad.cancel(0)
        (letter,) = here.letters("poison", 1)
        assert letter.value() == b"bad"

    def read_a_new_topic(self) -> None:
        """If the topic is created anew while a shard waits, that shard reads it from its beginning (C42)."""
        here, subscriber = self.here, self.subscribers["anew"]
        here.recreate(here.name("anew-in"), 2)
        here.write("anew-in", *(f"new {number}" for number in range(3)), partition=1)
        subscriber.settle("acknowledge", [self.held["anew"]], wait=True)
        assert values(subscriber, 1) == [b"new 0"]
        assert values(subscriber, 1) == [b"new 1"]
        assert values(subscriber, 1) == [b"new 2"]

    def end(self) -> None:
        """All shards have to agree on the end of their queue, also one that waits."""
        here = self.here
        with here.queue("ended") as queue:
            with pytest.raises(CommandFailed, match="leased"):
                queue.delete()
            assert queue.delete(force=True)["leased"] == 1
        assert here.connection.partitions().keys().isdisjoint({topic.commands(here.name("ended"))})


@pytest.fixture
def grown(own_kafka: EmbeddedKafka, deploy: Deploy) -> Iterator[Grown]:
    """The queues, whose new shards wait, after a silence of the broker and a kill right after it."""
    here = deploy(QUEUES, servers=own_kafka.bootstrap_servers, store="rocksdb", standby=True).apply()
    first = here.worker().wait_for_shards(SHARDS)
    with ExitStack() as stack:
        found = Grown(here, stack)
        found.enlarge()
        found.refused()
        for stem in WAITING:
            until(lambda stem=stem: f"{here.name(stem)}, partition 1: waits until" in first.text, f"{stem} waits", 60)
        second = here.worker()
        until(lambda: "standing by" in second.text, "the standby", 40)
        own_kafka.pause()
        with pytest.raises(KafkaException):  # it says nothing for so long
            AdminClient({"bootstrap.servers": here.servers}).list_topics(timeout=SOME_TIME_S)
        own_kafka.resume()
        first.kill()
        second.wait_for_shards(SHARDS + len(GROWN), 60)
        yield found


@pytest.mark.long
@pytest.mark.feature("C81", "C42", "C4", "C19", "D5", "L11", "Q3", "Q6", "Q7", "Q9", "Q14", "Q16", "Q17", "Q21")
def test_what_is_at_work_in_a_queue_goes_on_in_its_new_shards(grown: Grown) -> None:
    grown.wait_for_purge_and_expire()
    grown.wait_for_delay()
    grown.wait_for_sent()
    grown.share_a_filtered_backlog()
    grown.go_their_ways()
    grown.read_a_new_topic()
    grown.end()


@pytest.mark.feature("C81", "X4")
def test_a_user_sees_of_a_new_shard_what_the_row_filter_shows(kafka: str, tmp_path: Path) -> None:
    here = Entitled(kafka, tmp_path, {})
    here.users = {
        "alice": {"entitlements": {"desks{}": {"read": True, "filter": "/desk = 'A'"}}},
        "oscar": {"entitlements": {".*": {"admin": True}}},
    }
    here.configure({"desks": {}})
    worker = here.apply().worker().wait_for_shards(1)
    try:
        with here.subscriber_of("alice", "desks", timeout_s=60) as subscriber:
            add_partitions(here, here.name("desks"))
            assert here.lapse("queue", "partitions", here.name("desks")).returncode == 0
            until(lambda: "has 2 shards" in worker.text, "it has two shards", 60)
            for partition in (0, 1):
                here.write("desks", '{"desk": "B"}', '{"desk": "A"}', partition=partition)
            seen = [receive(subscriber) for _ in range(2)]
            assert {(one.bookmark.partition, one.value) for one in seen} == {
                (0, b'{"desk": "A"}'),
                (1, b'{"desk": "A"}'),
            }
            worker.kill()
            worker.start().wait_for_shards(2)
            acknowledge(subscriber, seen)
            assert subscriber.receive(1) is None
        with here.queue_of("alice", "desks") as queue:
            assert queue.depth()["depth"] == 0
        with here.queue_of("oscar", "desks") as queue:
            assert queue.depth()["available"] == 2
    finally:
        here.close()


@pytest.mark.feature("C81", "Q18")
def test_a_temporary_queue_ends_with_a_shard_that_waits(deploy: Deploy) -> None:
    here = deploy({"left": {"auto_delete_on_idle": "5m"}, "kept": {"auto_delete_on_idle": "5m"}}).apply()
    arguments = [support.workers.impatient.__file__, str(here.config), str(here.directory / "data"), "4000"]
    worker = here.run(arguments).wait_for_shards(2)
    with here.subscriber("left", 1, timeout_s=60) as holder, here.subscriber("kept", 1, timeout_s=60) as user:
        here.write("left", "held")
        receive(holder)
        add_partitions(here, here.name("left"), here.name("kept"))
        for stem in ("left", "kept"):
            assert here.lapse("queue", "partitions", here.name(stem)).returncode == 0
        until(lambda: f"{here.name('left')}, partition 1: waits until" in worker.text, "it waits", 60)
        holder.close()
        until(lambda: topic.commands(here.name("left")) not in here.connection.partitions(), "its end", 60)
        here.write("kept", "used", partition=1)
        assert values(user, 1) == [b"used"]


@pytest.mark.feature("C81", "Q17")
def test_partitions_that_are_added_once_more_are_merged_by_time_too(deploy: Deploy) -> None:
    """Its shards have consumers of their own by then, which find new partitions before anybody else does."""
    here = deploy({"flow": {}}).apply()
    worker = here.worker().wait_for_shards(1)
    add_partitions(here, here.name("flow"))
    assert here.lapse("queue", "partitions", here.name("flow")).returncode == 0
    until(lambda: "has 2 shards" in worker.text and worker.shards >= 3, "it has two shards", 60)
    add_partitions(here, here.name("flow"), count=4)
    with here.queue("flow") as queue, here.subscriber("flow", 200, timeout_s=60) as subscriber:
        here.write("flow", "there", partition=2)
        acknowledge(subscriber, [receive(subscriber)])
        for _ in range(4):
            queue.pause()
            worker.signal(signal.SIGSTOP)  # so that it finds messages of both partitions at once
            stamped = [
                (one.timestamp_ms, (partition, one.offset))
                for partition in (2, 0, 2, 0)
                for one in here.write("flow", *["{}"] * 20, partition=partition)
            ]
            worker.signal(signal.SIGCONT)
            until(lambda: queue.depth()["depth"] == 80, "all messages")
            queue.resume()
            got = [receive(subscriber) for _ in range(80)]
            acknowledge(subscriber, got)
            places = [(one.bookmark.partition, one.bookmark.offset) for one in got]
            assert places == [place for _, place in sorted(stamped)]


PAUSES = """
import sys
from lapse_client import Connection, Queue

with Queue(sys.argv[1], connection=Connection(sys.argv[2])) as queue:
    print(queue.depth(), flush=True)
    sys.stdin.readline()
    queue.pause()
"""
"""A program that opens a queue, and pauses it when it is told to."""


@pytest.mark.feature("C81", "C21")
def test_a_client_that_has_not_heard_of_a_new_shard_pauses_that_shard_too(deploy: Deploy) -> None:
    """It stands still while the queue gets the shard, which begins to read before the pause."""
    here = deploy({"flow": {}}).apply()
    worker = here.worker().wait_for_shards(1)
    words = [sys.executable, "-c", PAUSES, here.name("flow"), here.servers]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        assert "depth" in client.stdout.readline()
        freeze(psutil.Process(client.pid))
        add_partitions(here, here.name("flow"))
        assert here.lapse("queue", "partitions", here.name("flow")).returncode == 0
        with here.subscriber("flow", 1, timeout_s=60) as subscriber:
            until(lambda: "has 2 shards" in worker.text, "it has two shards", 60)
            here.write("flow", "read", partition=1)
            assert values(subscriber, 1) == [b"read"]
        client.stdin.write("pause\n")
        client.stdin.flush()
        client.send_signal(signal.SIGCONT)
        assert client.wait(60) == 0
    with Conversation(here.connection, here.name("flow"), 2) as shards:
        answers = shards.ask([0, 1], Command(command="depth"), 30)
    assert [answer.counts.get("paused") for answer in answers] == [1, 1]
