"""Sends messages through a queue while a test breaks something, and checks afterwards that none is lost."""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Message, Producer

from lapse.protocol import answer as answers
from lapse.protocol import event, header, packed_delivery, reference, topic
from lapse.protocol.event import TERMINAL
from lapse_client.error import LapseError
from support.kafka.log import Tail, until
from support.processes.deployment import Deployment
from support.suite.at_length import AT_LENGTH

Place = tuple[int, int]
"""Partition and offset."""

_LEASE_MS = 2_000

FLOWING = {"expiration": "enabled", "lease_period": f"{_LEASE_MS}ms"}
"""The settings of a queue for `Load`."""


class Load:
    """Publishes to a queue's own topic and consumes the queue until it is stopped, whatever happens to workers.

    Some messages have a lifetime, some deliveries are cancelled, some (unless not `forgetful`) are never settled. The
    subscribers ask for payloads in different forms. Payloads are JSON: a number, a price, an account.

    Args:
        deployment: where it happens.
        queue: the stem of the queue's name.
        partitions: of the queue's own topic.
        subscribers: how many consume; three have all forms of payloads.
        rate: messages a second.
        forgetful: whether some deliveries are never settled.
        filters: the subscribers' filters, in turn; together they match all messages.
        ahead: how many messages are published before anybody consumes.
    """

    def __init__(
        self,
        deployment: Deployment,
        queue: str,
        partitions: int,
        subscribers: int = 3,
        rate: int = 400 if AT_LENGTH else 200,
        forgetful: bool = True,
        filters: Sequence[str] = ("",),
        ahead: int = 0,
    ) -> None:
        self.deployment = deployment
        self.queue = queue
        self.topic = deployment.name(queue)
        self.written: dict[Place, bytes] = {}
        self.uncertain = 0
        self.received: dict[bytes, int] = defaultdict(int)
        self.errors: list[BaseException] = []
        self._partitions = partitions
        self._rate = rate
        self._forgetful = forgetful
        self._filters = filters
        self._ahead = ahead
        self._publishing = threading.Event()
        self._consuming = threading.Event()
        self._publisher = threading.Thread(target=self._guarded, args=(self._publish,), daemon=True)
        self._consumers = [
            threading.Thread(target=self._guarded, args=(self._consume, number), daemon=True)
            for number in range(subscribers)
        ]

    def __enter__(self) -> "Load":
        if self._ahead:
            self._publish_ahead()
        for thread in (self._publisher, *self._consumers):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._publishing.set()
        self._consuming.set()
        for thread in (self._publisher, *self._consumers):
            thread.join(60)

    def flow(self, count: int, timeout_s: float = 40.0) -> None:
        """Wait until `count` more messages were received."""
        goal = sum(self.received.values()) + count

        def flowed() -> bool:
            assert not self.errors, self.errors
            return sum(self.received.values()) >= goal

        until(flowed, f"{count} more deliveries", timeout_s)

    def drain(self, timeout_s: float = 60.0) -> None:
        """Stop publishing, and wait until the queue is empty."""
        self._publishing.set()
        self._publisher.join(60)
        assert not self.errors, self.errors
        figures: dict[str, int] = {}

        def empty() -> bool:
            nonlocal figures
            figures = self.deployment.depth(self.queue)
            time.sleep(0.1)
            return figures["depth"] == 0 and figures["scheduled"] == 0

        try:
            until(empty, "an empty queue", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; {figures}") from error
        self._consuming.set()
        for thread in self._consumers:
            thread.join(60)
        assert not self.errors, self.errors

    def _guarded(self, work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException as error:
            self.errors.append(error)
            raise

    def _producer(self, **options: object) -> Producer:
        settings = {"bootstrap.servers": self.deployment.servers, "enable.idempotence": True, "logger": _Quiet()}
        return Producer(settings | options)

    def _publish_ahead(self) -> None:
        producer = self._producer(**{"linger.ms": 20, "queue.buffering.max.messages": self._ahead + 1})
        for number in range(self._ahead):
            self._produce(producer, number)
            producer.poll(0)
        assert producer.flush(120) == 0

    def _publish(self) -> None:
        producer = self._producer(**{"linger.ms": 2})
        number = self._ahead
        while not self._publishing.is_set():
            for _ in range(max(1, self._rate // 50)):
                self._produce(producer, number)
                number += 1
            producer.poll(0)
            time.sleep(0.02)
        assert producer.flush(60) == 0

    def _produce(self, producer: Producer, number: int) -> None:
        value = b'{"n":%d,"price":%d,"account":"a%d"}' % (number, number * 7 % 10, number * 13 % 200)
        producer.produce(
            self.topic,
            value,
            partition=number % self._partitions,
            headers=[("lapse-ttl-ms", b"1500")] if number % 20 == 0 else [],
            on_delivery=self._reported,
        )

    def _reported(self, error: object, message: Message) -> None:
        if error is not None:
            self.uncertain += 1
            return
        self.written[message.partition() or 0, message.offset() or 0] = message.value() or b""

    def _consume(self, number: int) -> None:
        chance = random.Random(number)
        payload = ("packed", "reference", "inline")[number % 3]
        options = {"payload": payload, "filter": self._filters[number % len(self._filters)] or None}
        with self.deployment.subscriber(self.queue, 40, timeout_s=60, **options) as subscriber:
            while not self._consuming.is_set():
                delivery = subscriber.receive(0.1)
                if delivery is None:
                    continue
                self.received[delivery.value or b""] += 1
                draw = chance.random()
                try:
                    if draw < 0.93:
                        delivery.acknowledge()
                    elif draw < 0.98 or not self._forgetful:
                        delivery.cancel()
                except LapseError:  # its lease has expired
                    pass


class _Quiet:
    """A logger that drops librdkafka's errors about a broker that a test has killed."""

    def log(self, *_: object) -> None:
        """Do nothing."""


@dataclass
class Account:
    """What happened to a queue's messages according to its topics, without anything from a worker's memory.

    Attributes:
        lost: messages that were written and never left the queue.
        unexpected: departures of messages that were never written.
        twice_ended: messages with two different departures.
        late: deliveries that began at or after the deadline.
        after_ack: deliveries of a message after the answer that it is acknowledged.
        counts: deliveries whose count is not higher than that of the previous one.
        delivered: valid deliveries, by place.
        letters: the number of dead letters, by `lapse-id`.
        void: records of the deliveries topic that readers drop: of a lower epoch, after a higher one.
        void_events: such records of the events topic, which readers do not drop.
    """

    lost: list[Place] = field(default_factory=list)
    unexpected: list[Place] = field(default_factory=list)
    twice_ended: list[tuple[Place, list[str]]] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    after_ack: list[str] = field(default_factory=list)
    counts: list[str] = field(default_factory=list)
    delivered: dict[Place, int] = field(default_factory=dict)
    letters: dict[bytes, int] = field(default_factory=dict)
    void: int = 0
    void_events: list[str] = field(default_factory=list)

    def assert_balanced(self) -> None:
        """Check that no message is lost or unexpected, and that every promise about deliveries is kept."""
        assert not self.lost, f"{len(self.lost)} lost: {self.lost[:10]}"
        assert not self.unexpected, f"{len(self.unexpected)} unexpected: {self.unexpected[:10]}"
        assert not self.twice_ended, f"{len(self.twice_ended)} with two ends: {self.twice_ended[:10]}"
        assert not self.late, f"{len(self.late)} delivered after the deadline: {self.late[:10]}"
        assert not self.after_ack, f"{len(self.after_ack)} delivered again: {self.after_ack[:10]}"
        assert not self.counts, f"{len(self.counts)} counts that do not rise: {self.counts[:10]}"


def account(deployment: Deployment, queue: str, written: set[Place], lease_ms: int = _LEASE_MS) -> Account:
    """Read a queue's topics and sum up what happened."""
    found = Account()
    name = deployment.name(queue)
    _read_ends(deployment, name, written, found)
    _read_deliveries(deployment, name, lease_ms, found)
    tail = Tail(deployment.servers, topic.dead_letters(name))
    for letter in tail.drain():
        ident = dict(letter.headers() or [])["lapse-id"] or b""
        found.letters[ident] = found.letters.get(ident, 0) + 1
    tail.close()
    return found


def _read_ends(deployment: Deployment, name: str, written: set[Place], found: Account) -> None:
    ends: dict[Place, set[str]] = defaultdict(set)
    tail = Tail(deployment.servers, topic.events(name))
    epochs: dict[int, int] = {}
    for message in tail.drain():
        decoded = event.decode(message.value() or b"")
        if decoded.epoch < epochs.get(decoded.partition, 0):
            found.void_events.append(f"{decoded.event} of epoch {decoded.epoch} at events offset {message.offset()}")
        epochs[decoded.partition] = max(decoded.epoch, epochs.get(decoded.partition, 0))
        if decoded.event in TERMINAL:
            for one in decoded.messages:
                for bookmark in one:
                    ends[bookmark.partition, bookmark.offset].add(decoded.event)
    tail.close()
    source = Tail(deployment.servers, name)
    there = {(message.partition() or 0, message.offset() or 0) for message in source.drain()}
    source.close()
    found.lost = sorted(written - ends.keys())
    found.unexpected = sorted(ends.keys() - there)
    found.twice_ended = [(place, sorted(kinds)) for place, kinds in ends.items() if len(kinds) > 1]


def _read_deliveries(deployment: Deployment, name: str, lease_ms: int, found: Account) -> None:
    tail = Tail(deployment.servers, topic.deliveries(name))
    epochs: dict[int, int] = {}
    count: dict[Place, int] = {}
    acknowledged: set[Place] = set()
    for message in tail.drain():
        fields = dict(message.headers() or [])
        shard = message.partition() or 0
        if fields[header.KIND] == b"void":
            continue  # it took the place of a delivery that would have come too late
        epoch = int(fields[header.EPOCH] or b"0")
        if epoch < epochs.get(shard, 0):
            found.void += 1
            continue
        epochs[shard] = epoch
        kind = fields[header.KIND]
        if kind == b"answer":
            answer = answers.decode(message.value() or b"")
            if answer.command == "acknowledge":
                for one in answer.settlements:
                    if one.result == "settled":
                        acknowledged.update(_places(one.bookmarks))
            continue
        until_ms = int(fields.get(header.LEASE_UNTIL_MS) or b"0")
        for place, times, deadline_ms in _handed_out(message, fields):
            found.delivered[place] = found.delivered.get(place, 0) + 1
            if place in acknowledged:
                found.after_ack.append(f"{place} at deliveries offset {message.offset()}")
            if times <= count.get(place, 0):
                found.counts.append(f"{place}: {times} after {count[place]} at deliveries offset {message.offset()}")
            count[place] = times
            if deadline_ms is not None and until_ms and until_ms - lease_ms >= deadline_ms:
                found.late.append(f"{place}: leased at {until_ms - lease_ms}, deadline {deadline_ms}")
    tail.close()


def _places(text: str) -> list[Place]:
    from lapse.protocol.bookmark import BookmarkRange

    return [(bookmark.partition, bookmark.offset) for bookmark in BookmarkRange.parse(text)]


def _handed_out(message: Message, fields: dict[str, bytes | None]) -> list[tuple[Place, int, int | None]]:
    """Return place, delivery count and deadline of each message that a record delivers."""
    kind = fields[header.KIND]
    if kind == b"delivery":
        (place,) = _places((fields[header.BOOKMARK] or b"").decode())
        deadline = fields.get("lapse-expires-at-ms")
        return [(place, int(fields[header.DELIVERY_COUNT] or b"0"), None if deadline is None else int(deadline))]
    if kind == b"reference":
        named = reference.decode(message.value() or b"")
        places = [
            ((one.partition, offset), one.delivery_count or 0)
            for one in named.ranges
            for offset in range(one.first, one.last + 1)
        ]
        deadlines = [None if at == reference.NEVER else at for at in named.deadlines_ms] or [None] * len(places)
        return [(place, times, at) for (place, times), at in zip(places, deadlines, strict=True)]
    if kind == packed_delivery.KIND:
        packed = packed_delivery.decode(message.value() or b"")
        return [
            ((packed.partition, offset), packed.delivery_counts[at], packed.deadline_ms(at))
            for at, offset in enumerate(packed.offsets)
        ]
    assert kind == b"epoch", kind
    return []
