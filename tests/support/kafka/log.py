"""Reads and writes Kafka topics without lapse's client, as any consumer and producer does."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

Headers = Sequence[tuple[str, bytes | None]]


class Written(NamedTuple):
    """The position and time of a written record."""

    partition: int
    offset: int
    timestamp_ms: int


def until(condition: Callable[[], object], what: str, timeout_s: float = 20.0) -> None:
    """Wait until a condition holds; `what` describes it for the error.

    A condition that takes long to evaluate is evaluated less often, as other tests share the processors.
    """
    began = time.monotonic()
    deadline = began + timeout_s
    while not condition():
        looked = time.monotonic()
        assert looked < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(min(max(4 * (looked - began), 0.01), 0.1))
        began = time.monotonic()


class Tail:
    """Reads a topic from its beginning, or from its end, and keeps what it has read."""

    def __init__(self, servers: str, topic: str, from_end: bool = False) -> None:
        self.topic = topic
        self.records: list[Message] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": f"tail-{topic}-{time.monotonic_ns()}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 100,  # an open tail costs the broker ten fetches a second
            }
        )
        partitions = self._consumer.list_topics(topic, timeout=15).topics[topic].partitions
        places = [TopicPartition(topic, partition, 0) for partition in partitions]
        if from_end:
            for place in places:
                place.offset = self._bounds(place)[1]
        self._consumer.assign(places)
        self._places = places

    def poll(self, timeout_s: float = 0.05) -> list[Message]:
        """Read new records. Return all that were read so far."""
        first = self._consumer.poll(timeout_s)
        found = [] if first is None else [first, *self._consumer.consume(10_000, 0)]
        for message in found:
            assert message.error() is None, message.error()
            self.records.append(message)
        return self.records

    def wait(self, count: int, timeout_s: float = 20.0) -> list[Message]:
        """Wait until `count` records were read in all."""
        return self.wait_for(lambda records: len(records) >= count, f"{count} records", timeout_s)

    def wait_for(self, enough: Callable[[list[Message]], object], what: str, timeout_s: float = 20.0) -> list[Message]:
        """Wait until `enough` is true of the records that were read."""
        deadline = time.monotonic() + timeout_s
        while not enough(self.poll()):
            if time.monotonic() > deadline:
                seen = [(message.value() or b"")[:40] for message in self.records[-5:]]
                raise AssertionError(
                    f"{self.topic}: not within {timeout_s:g} s: {what}; {len(self.records)} records: {seen}"
                )
        return self.records

    def drain(self) -> list[Message]:
        """Read up to the current end."""
        bounds = [self._bounds(place) for place in self._places]

        def at_end(_: list[Message]) -> bool:
            # The position passes last offsets that are no records. Before the first poll there is no position.
            positions = self._consumer.position(self._places)
            return all(
                max(place.offset, begun.offset, low) >= high
                for place, begun, (low, high) in zip(positions, self._places, bounds, strict=True)
            )

        return self.wait_for(at_end, "the end")

    def _bounds(self, place: TopicPartition, timeout_s: float = 15.0) -> tuple[int, int]:
        """Return a partition's first offset and its next one. Try again while the broker knows no leader of it."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                low, high = self._consumer.get_watermark_offsets(place, timeout=timeout_s)
                return low, high
            except KafkaException as error:
                unknown = error.args[0].code() in (
                    KafkaError.NOT_LEADER_FOR_PARTITION,
                    KafkaError.UNKNOWN_TOPIC_OR_PART,
                    KafkaError._UNKNOWN_PARTITION,
                )
                if not unknown or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()


def write(
    servers: str,
    topic: str,
    values: Iterable[bytes | None],
    *,
    headers: Headers = (),
    key: bytes | None = None,
    partition: int = 0,
    timestamp_ms: int = 0,
    **options: object,
) -> list[Written]:
    """Write records with a plain producer, and return their positions, in order."""
    written: list[Written] = []

    def reported(error: object, message: Message) -> None:
        assert error is None, error
        written.append(Written(message.partition() or 0, message.offset() or 0, message.timestamp()[1]))

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 1, "acks": "all", **options})
    for value in values:
        extra = {"timestamp": timestamp_ms} if timestamp_ms else {}
        while True:
            try:
                producer.produce(topic, value, key, partition, headers=list(headers), on_delivery=reported, **extra)
            except BufferError:
                producer.poll(0.1)
            else:
                break
    assert producer.flush(60) == 0
    return written


def header(message: Message, name: str) -> bytes | None:
    """Return the value of a header, or None if it is missing."""
    return dict(message.headers() or []).get(name)


def texts(message: Message) -> dict[str, str]:
    """Return a record's headers as text."""
    return {name: value.decode() for name, value in message.headers() or [] if value is not None}
