"""Queues of every kind in one deployment, and what kills, a silent broker and a missing topic leave of them.

The rows of `tests/interactions.toml` that no shard alone can show.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import ClassVar

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

import support.workers.impatient
from lapse.embedded import EmbeddedKafka
from lapse.protocol import event, header, topic
from lapse.protocol.command import Command
from lapse.transfer.side import Side
from lapse_client import Admin, Delivery, QueueSubscriber
from lapse_client.letters.redriven import Redriven
from support.kafka.log import texts, until
from support.processes.deployment import Deploy, Deployment, broker_now_ms
from support.suite.at_length import cases

HOUR_MS = 3_600_000
# The topic that is to be missing is shared by those with one partition; the queue with two has another one.
QUEUES = {
    "busy": {
        "expiration": "enabled", "lease_period": "5m", "max_deliveries": 9, "state": "disk",
        "topics": ["busy{}", "absent{}"],
    },
    "order": {
        "ordering": "total", "priority": "/p", "barrier": "/b = 'yes'", "group_by": "/g", "lease_period": "5m",
        "topics": ["order{}", "wide{}"], "partitions": 2,
    },
    "deep": {"target_queue_depth": 3, "topics": ["deep{}", "absent{}"]},
    "once": {"semantics": "at-most-once", "topics": ["once{}", "absent{}"], "dedup_window": "1h"},
    "idle": {"auto_delete_on_idle": "5m", "topics": ["idle{}", "absent{}"]},
    "source": {"forward_to": "sink{}", "topics": ["source{}", "absent{}"]},
    "sink": {},
    "again": {"expiration": "enabled", "topics": ["again{}", "absent{}"]},
}  # fmt: skip
SOME_TIME_S = 4
IDENTIFIED = [(header.MESSAGE_ID, b"one")]


def receive(subscriber: QueueSubscriber) -> Delivery:
    found = subscriber.receive(30)
    assert found is not None
    return found


class Kinds:
    """The queues with something in each, and consumers that hold some of it."""

    def __init__(self, here: Deployment, stack: ExitStack) -> None:
        self.here = here
        self.queues = {stem: stack.enter_context(here.queue(stem)) for stem in QUEUES if stem != "source"}
        options = {"busy": {"filter": "/f < 5", "payload": "reference"}}
        self.subscribers = {
            stem: stack.enter_context(here.subscriber(stem, backlog, timeout_s=60, **options.get(stem, {})))
            for stem, backlog in (("busy", 3), ("order", 1), ("once", 1))
        }
        self.taken = {"busy": self._busy(), "order": self._order(), "once": self._once()}
        self._deep()
        self._again()
        here.write("idle", "stays")
        here.write("source", "a", "b", headers=[("lapse-ttl-ms", b"%d" % HOUR_MS)])
        until(lambda: here.depth("sink")["available"] == 2, "what was forwarded")
        self.before = self.look()

    def _bookmark(self, stem: str, offset: int | str) -> str:
        return f"{self.here.name(stem)}:0:{offset}"

    def _busy(self) -> list[Delivery]:
        """Acknowledged, delayed, leased, available, held by a transfer, purged by a filter, scheduled; then paused."""
        queue, subscriber = self.queues["busy"], self.subscribers["busy"]
        lives = [("lapse-ttl-ms", b"%d" % HOUR_MS)]
        self.here.write("busy", *(b'{"f": %d}' % number for number in range(3)), headers=lives)
        taken = [receive(subscriber) for _ in range(3)]
        queue.pause()
        subscriber.settle("acknowledge", taken[:1], wait=True)
        subscriber.settle("cancel", taken[1:2], delay_ms=HOUR_MS, wait=True)
        later = [("lapse-enqueue-at-ms", b"%d" % (broker_now_ms() + HOUR_MS))]
        self.here.write("busy", *(b'{"f": %d}' % number for number in (3, 4, 5)), headers=lives)
        self.here.write("busy", b'{"f": 0}', headers=later)
        until(lambda: self.here.depth("busy")["scheduled"] == 1, "all messages")
        hold = Command(command="transfer", transfer="tom", to="there", top_n=1, bookmarks=(self._bookmark("busy", 4),))
        queue._ask(hold)
        assert queue.purge(filter="/f = 5")["removed"] == 1
        assert [one.state for one in queue.peek()] == ["delayed", "leased", "available", "transferring", "scheduled"]
        return taken[2:]

    def _order(self) -> list[Delivery]:
        """The highest of a group is leased; another one waits for it, a barrier for both, and a message behind it."""
        values = ('{"p": 1, "g": "x"}', '{"p": 2, "g": "x"}', '{"b": "yes"}', '{"p": 9}')
        self.queues["order"].pause()
        for at, value in enumerate(values):
            self.here.write("order", value, partition=at % 2)
        until(lambda: self.here.depth("order")["depth"] == len(values), "all messages")
        self.queues["order"].resume()
        taken = receive(self.subscribers["order"])
        assert taken.value == values[1].encode()
        return [taken]

    def _once(self) -> list[Delivery]:
        self.here.write("once", "a", headers=IDENTIFIED)
        self.here.write("once", "b")
        return [receive(self.subscribers["once"])]

    def _deep(self) -> None:
        """Three of six are active, and the last one is acknowledged before it is."""
        self.here.write("deep", *"012345")
        until(lambda: self.here.depth("deep")["depth"] == 3, "what is active")
        assert all(one.settled for one in self.queues["deep"].acknowledge([self._bookmark("deep", 5)]))

    def _again(self) -> None:
        """Purged, brought back with another lifetime, and one of them acknowledged."""
        self.here.write("again", *"abc", headers=[("lapse-ttl-ms", b"%d" % HOUR_MS)])
        until(lambda: self.here.depth("again")["depth"] == 3, "all messages")
        self.queues["again"].purge()
        assert self.queues["again"].rewind("beginning", command_id="one")["rewound"] == 3
        assert all(one.settled for one in self.queues["again"].acknowledge([self._bookmark("again", "1~1")]))

    def look(self) -> dict[str, list[object]]:
        """What every queue shows, but for the one whose messages have gone on."""
        return {stem: list(queue.peek()) for stem, queue in self.queues.items()}

    def are_the_same(self) -> None:
        assert self.look() == self.before

    def go_on(self) -> None:
        """Everything that is left is handed out by each queue's own rules, once."""
        busy, order, once = (self.subscribers[stem] for stem in ("busy", "order", "once"))
        (settled,) = busy.settle("acknowledge", self.taken["busy"], wait=True)
        assert settled.settled
        self.queues["busy"].resume()
        left = receive(busy)
        assert left.value == b'{"f": 3}'
        busy.settle("acknowledge", [left], wait=True)
        assert [one.state for one in self.queues["busy"].peek()] == ["delayed", "transferring", "scheduled"]

        with self.taken["order"][0].transaction() as tx:
            tx.produce(self.here.name("sink"), b"shipped")
        until(lambda: self.here.depth("sink")["available"] == 3, "its output")
        second = receive(order)
        assert second.value == b'{"p": 1, "g": "x"}'
        order.settle("acknowledge", [second], wait=True)
        barrier, last = receive(order), receive(order)
        assert (barrier.is_barrier, barrier.value, last.value) == (True, b'{"b": "yes"}', b'{"p": 9}')

        self.here.write("once", "a again", headers=IDENTIFIED)
        self.here.write("once", "c")
        once.settle("acknowledge", self.taken["once"], wait=True)
        second = receive(once)
        once.settle("acknowledge", [second], wait=True)
        assert (self.taken["once"][0].value, second.value, receive(once).value) == (b"a", b"b", b"c")

        with self.here.subscriber("deep", 2, timeout_s=60) as subscriber:
            for number in range(5):
                one = receive(subscriber)
                assert one.value == b"%d" % number
                subscriber.settle("acknowledge", [one], wait=True)
            assert subscriber.receive(1) is None, "the last one was acknowledged long before"

        again = self.queues["again"]
        assert again.rewind("beginning", command_id="one")["rewound"] == 3, "it was done, and is not done twice"
        assert [one.bookmark for one in again.peek()] == [self._bookmark("again", name) for name in ("0~1", "2~1")]
        (settled,) = again.acknowledge([self._bookmark("again", 0)])
        assert settled.result == "stale"

        self.queues["idle"].delete(force=True)
        with pytest.raises(Exception, match="Unfinished is transfer"):
            self.queues["busy"].delete(force=True)


@contextmanager
def kinds(here: Deployment) -> Iterator[Kinds]:
    with ExitStack() as stack:
        yield Kinds(here, stack)


@pytest.mark.feature("Q16", "Q5", "Q6", "Q11", "Q12", "Q13", "Q20", "L5", "C19", "C21", "C33", "C77", "C79")
@pytest.mark.feature("L1", "D4", "Q3", "Q7", "Q9", "Q14", "Q17", "Q23", "C27", "C37", "C38", "C61", "C63", "X6", "X9")
@pytest.mark.parametrize("store", cases(["rocksdb"], ["memory"]))
def test_queues_of_every_kind_are_the_same_after_a_kill(deploy: Deploy, store: str) -> None:
    """Of the only worker, which reads on from its copy; then of the owner of shards that another one follows."""
    here = deploy(QUEUES, store=store, standby=True, definitions="topic").apply()
    first = here.worker().wait_for_shards(len(QUEUES))
    with kinds(here) as found:
        with Admin(here.app_id, connection=here.connection, timeout_s=60) as admin:
            assert admin.alter_queue(here.name("sink"), max_deliveries=1).version == 2
        until(lambda: "version 2 is served" in first.text, "the change")
        first.kill()
        first.start().wait_for_shards(len(QUEUES))
        found.are_the_same()
        second = here.worker()
        until(lambda: "standing by" in second.text, "the standby", 40)
        first.kill()
        second.wait_for_shards(len(QUEUES), 60)
        found.are_the_same()
        found.go_on()
        with here.subscriber("sink", timeout_s=60) as subscriber:
            receive(subscriber).cancel(0)
        letters = here.tail(topic.dead_letters(here.name("sink"))).wait(1, 30)
        assert texts(letters[0])["lapse-reasons"] == "max_deliveries", "the change counts at the other worker"


class Meanwhile:
    """What comes to its instant, and what is asked for, while the broker stands still."""

    QUEUES: ClassVar = {
        "late": {"ordering": "total", "partitions": 2, "expiration": "enabled", "lease_period": "3s"},
        "room": {"target_queue_depth": 1, "lease_period": "5m"},
        "first": {"priority": "/p", "lease_period": "5m"},
        "ended": {},
        "grouped": {"group_by": "/g", "lease_period": "3s", "expiration": "enabled"},
        "swept": {"dead_letter_reasons": ["purged"]},
        "onward": {"forward_to": "arrived{}"},
        "arrived": {},
        "halted": {"lease_period": "5m"},
        "given": {},
        "taken": {},
    }

    def __init__(self, here: Deployment, stack: ExitStack) -> None:
        self.here, self.stack = here, stack
        self.late = stack.enter_context(here.subscriber("late", 2, timeout_s=60))
        self.room = stack.enter_context(here.subscriber("room", 1, timeout_s=60, heartbeat_timeout_ms=3_000))
        self.first = stack.enter_context(here.subscriber("first", 1, timeout_s=60))
        self.grouped = stack.enter_context(here.subscriber("grouped", 2, timeout_s=60))
        self.ended, self.swept = (stack.enter_context(here.queue(stem)) for stem in ("ended", "swept"))
        self.halted, self.halting = (
            stack.enter_context(here.subscriber("halted")),
            stack.enter_context(here.queue("halted")),
        )
        self.admin = stack.enter_context(Admin(here.app_id, connection=here.connection, timeout_s=60))
        self.asking = stack.enter_context(ThreadPoolExecutor(16))
        here.write("swept", "a", "b")
        here.write("room", "held", "next")
        here.write("first", '{"p": 1}', '{"p": 2}')
        here.write("halted", "taken", "waits")
        self._give()
        here.write("late", "delayed", "leased")
        here.write("grouped", '{"g": "x", "n": 1}', headers=[("lapse-ttl-ms", b"3000")])
        self.lone = receive(self.grouped)
        here.write("grouped", '{"g": "x", "n": 2}')
        self.held = [receive(self.room), receive(self.first), receive(self.halted)]
        self.cancelled, self.leased = receive(self.late), receive(self.late)
        self.late.settle("cancel", [self.cancelled], delay_ms=3_000, wait=True)
        here.write("late", "filler")
        self.filler = receive(self.late)  # from here on it has no room, until the leases end
        until(lambda: here.depth("swept")["depth"] == 2, "what is to be purged")
        here.write("late", "expires", partition=1, headers=[("lapse-ttl-ms", b"3000")])
        soon_ms = broker_now_ms() + 3_000
        here.write("late", "due", headers=[("lapse-enqueue-at-ms", b"%d" % soon_ms)])
        until(lambda: here.depth("late")["scheduled"] == 1 or broker_now_ms() >= soon_ms, "all messages")

    def _give(self) -> None:
        """The first stages of a transfer: what is held here, and put there."""
        given, taken = self.here.name("given"), self.here.name("taken")
        (written,) = self.here.write("given", "handed over")
        stages = Side(self.here.connection, given, 60), Side(self.here.connection, taken, 60)
        self.given, self.taken = map(self.stack.enter_context, stages)
        held = self.here.bookmark("given", written)
        until(lambda: self.here.depth("given")["depth"] == 1, "what is to be handed over")
        self.given.ask(Command(command="transfer", transfer="tom", bookmarks=(held,), to=taken))
        (put,) = self.here.write("taken", "handed over", headers=[(header.TRANSFER, f"{taken}/tom".encode())])
        self.put = self.here.bookmark("taken", put)
        self.confirmed = Command(command="transfer_confirm", transfer="tom", bookmarks=(f"{held}>{self.put}",))
        until(lambda: self.here.depth("taken")["unconfirmed"] == 1, "what was put")

    def _confirm(self) -> None:
        """The other stages, as the process of a transfer asks for them: each once the one before was answered."""
        self.given.ask(self.confirmed)
        self.taken.ask(Command(command="transfer_accept", transfer="tom", bookmarks=(self.put,)))
        self.given.ask(Command(command="transfer_finish", transfer="tom"))

    def begin(self) -> None:
        """Ask for things that the broker takes once it goes on."""
        self.room.settle("acknowledge", self.held[:1])
        ask = self.asking.submit
        self.answers = [
            ask(self.here.write, "first", '{"p": 9}'),
            ask(self.here.write, "onward", "goes on"),
            ask(self.ended.delete, force=True),
            ask(self.halting.pause),
            ask(self._confirm),
            ask(self.admin.alter_queue, self.here.name("arrived"), max_deliveries=7),
        ]
        self.renewed = ask(self.late.settle, "renew", [self.leased], wait=True)
        self.purged = ask(self._purge)

    def _purge(self) -> tuple[int, int]:
        """How many were purged, and how many letters there were when that was answered.

        A worker that ended meanwhile may have written one again, with the same `lapse-id` (D3).
        """
        removed = self.swept.purge()["removed"]
        letters = self.here.tail(topic.dead_letters(self.here.name("swept"))).drain()
        return removed, len({dict(letter.headers() or [])[header.LAPSE_ID] for letter in letters})

    def end(self) -> None:
        """All of it happened at its instant, once."""
        for answer in self.answers:
            answer.result(60)
        (late,) = self.renewed.result(60)
        assert late.result in ("not_leased", "stale"), "it counts as of when the broker took it: its lease was over"
        assert self.purged.result(60) == (2, 2)
        self._went_on()
        self._went_over()
        assert receive(self.grouped).value == b'{"g": "x", "n": 2}'
        (letter,) = self.here.letters("grouped", 1, 30)
        assert letter.value() == self.lone.value

        self.here.write("late", "after", partition=1)
        got: list[Delivery] = []
        while len(got) < 5:
            one = receive(self.late)
            (result,) = self.late.settle("acknowledge", [one], wait=True)
            got += [one] if result.settled else []  # on a busy machine its lease may have ended again
        assert [one.value for one in got] == [b"delayed", b"leased", b"filler", b"due", b"after"]
        assert min(one.delivery_count for one in got[:3]) > 1
        (letter,) = self.here.letters("late", 1, 30)
        assert letter.value() == b"expires"

        assert (receive(self.room).value, self.here.depth("room")["subscriptions"]) == (b"next", 1)
        until(lambda: self.here.depth("first")["depth"] == 3, "what was published meanwhile")
        self.first.settle("acknowledge", self.held[1:2], wait=True)
        assert receive(self.first).value == b'{"p": 9}'

    def _went_over(self) -> None:
        """What was handed over, paused and changed while the broker stood still."""
        here = self.here
        assert (here.depth("given")["depth"], here.depth("taken")["available"]) == (0, 1)
        self.halted.settle("acknowledge", self.held[2:], wait=True)
        assert self.halted.receive(1) is None, "it is paused from then on"
        self.halting.resume()
        assert receive(self.halted).value == b"waits"
        again = self.admin.alter_queue(here.name("arrived"), max_deliveries=7)
        assert (again.version, again.changed) == (2, False)

    def _went_on(self) -> None:
        """What was published meanwhile was forwarded, and left when its copy was there.

        A worker that ended in between has written the copy twice, with the same id, so it arrives once (C78).
        """
        here = self.here
        copies = here.tail(here.name("arrived")).wait(1, 30)
        assert len({dict(copy.headers() or [])["lapse-message-id"] for copy in copies}) == 1
        until(lambda: here.depth("onward")["depth"] == 0, "nothing is left to be forwarded")
        until(lambda: here.depth("arrived")["depth"] == 1, "the copy arrived, once")
        emitted = [
            record.timestamp()[1]
            for record in here.tail(topic.events(here.name("onward"))).drain()
            if event.decode(record.value() or b"").messages
        ]
        assert len(emitted) == 1
        assert emitted[0] >= copies[0].timestamp()[1]


@contextmanager
def listened(here: Deployment) -> Iterator[None]:
    """A temporary queue whose idle time is shorter than the broker's silence; somebody has it open."""
    idle = [support.workers.impatient.__file__, str(here.config), str(here.directory / "data"), "4000"]
    worker = here.apply().run(idle).wait_for_shards(1)
    with here.subscriber("heard", timeout_s=60, heartbeat_timeout_ms=60_000) as subscriber:
        yield
        if not worker.running:  # it may have ended meanwhile
            worker.start()
        here.write("heard", "still there")
        assert receive(subscriber).value == b"still there"
        assert topic.commands(here.name("heard")) in here.connection.partitions()


@pytest.mark.long
@pytest.mark.feature("C27", "Q5", "Q6", "Q11", "Q12", "Q13", "Q20", "L5", "C5", "C19", "C21", "C77", "C79")
@pytest.mark.feature("L10", "C1", "C2", "C4", "C33", "C38", "C58", "C76", "D3")
@pytest.mark.feature("Q16", "Q17", "Q18", "Q23", "C39", "C42", "C52", "C63", "D4", "X6", "X9")
def test_queues_of_every_kind_are_the_same_after_the_broker_stood_still(
    own_kafka: EmbeddedKafka, deploy: Deploy
) -> None:
    every = QUEUES | Meanwhile.QUEUES
    here = deploy(every, servers=own_kafka.bootstrap_servers, definitions="topic").apply()
    worker = here.worker(supervised=True).wait_for_shards(len(every))
    with kinds(here) as found, ExitStack() as stack:
        meanwhile = Meanwhile(here, stack)
        stack.enter_context(listened(deploy({"heard": {"auto_delete_on_idle": "5m"}}, servers=here.servers)))
        own_kafka.pause()
        meanwhile.begin()
        with pytest.raises(KafkaException):  # it says nothing for so long
            AdminClient({"bootstrap.servers": here.servers}).list_topics(timeout=SOME_TIME_S)
        own_kafka.resume()
        Redriven(here.connection).make_topic()  # for a moment Kafka has no broker for a new topic (C58)
        meanwhile.end()
        found.are_the_same()
        found.go_on()
    assert not [line for line in worker.text.splitlines() if "missing" in line or "taken over anew" in line]


@pytest.mark.feature("C52", "Q5", "Q6", "Q11", "Q12", "Q13", "Q20", "L5", "C19", "C21", "C77", "X6", "X9")
def test_queues_of_every_kind_work_while_a_topic_of_theirs_is_missing(deploy: Deploy) -> None:
    late = {"ordering": "total", "lease_period": "5m", "topics": ["late{}", "absent{}"]}
    here = deploy(QUEUES | {"late": late}, standby=True).apply()
    absent = {here.name("absent"), here.name("wide")}
    admin = AdminClient({"bootstrap.servers": here.servers})
    for deleted in admin.delete_topics([*absent]).values():
        deleted.result(15)
    until(lambda: not absent & admin.list_topics(timeout=15).topics.keys(), "the topics are gone")
    worker = here.worker().wait_for_shards(len(QUEUES) + 1)
    for one in absent:
        assert any(one in line and "missing" in line for line in worker.text.splitlines())
    standby = here.worker()
    until(lambda: "standing by" in standby.text, "the standby", 40)
    with kinds(here) as found, here.subscriber("late", timeout_s=60) as one:
        here.write("late", "delayed")
        one.settle("cancel", [receive(one)], delay_ms=SOME_TIME_S * 1_000, wait=True)
        here.write("late", "due", headers=[("lapse-enqueue-at-ms", b"%d" % (broker_now_ms() + SOME_TIME_S * 1_000))])
        until(lambda: here.depth("late")["scheduled"] == 1, "it is scheduled")
        worker.kill()
        standby.wait_for_shards(len(QUEUES) + 1, 60)
        found.are_the_same()
        found.go_on()
        with here.subscriber("late", timeout_s=60) as other:
            assert {receive(one).value, receive(other).value} == {b"delayed", b"due"}, "each got what it has room for"
