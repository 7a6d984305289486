"""Writes the topics of a queue that has had millions of messages: the messages, the events and the dead letters.

They are written as a worker writes them: with the same encoders, one event for all messages of a step that share a
fate, and a step repeated after a crash. No worker is used, as it would need minutes for each million. All figures are
known, so that a ledger of the topics can be checked.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import Producer

from benchmarks.instruments.load import create
from lapse.core.reason import Reason
from lapse.protocol import dead_letter, event, topic
from lapse.protocol.bookmark import Bookmark, BookmarkRange
from lapse.protocol.event import Event, EventKind

PARTITIONS: Final = 2
STEP: Final = 10_000
"""Messages whose fates are in one step: as many as a runner reads at most."""

_PAYLOAD: Final = b'{"id":123456789,"price":101.25,"qty":40,"symbol":"ABC","note":""}'
_HEADERS: Final = [("lapse-ttl-ms", b"3600000")]
_SUBSCRIPTIONS: Final = 4
_QUEUED: Final = "queued"
# The fate of a run of neighbouring messages, its probability, and the greatest length of the run.
_RUNS: Final = (
    (EventKind.ACKNOWLEDGED.value, 0.90, 64),
    (EventKind.DEAD_LETTERED.value, 0.06, 8),
    (EventKind.EXPIRED.value, 0.02, 8),
    (_QUEUED, 0.02, 8),
)
_REPORTED_TWICE: Final = 0.01


@dataclass(slots=True)
class Written:
    """The figures that a ledger must find.

    Attributes:
        published: the number of messages.
        fates: the number of messages by fate; `queued` ones are still in the queue.
        letters: the number of dead letters by reason, without duplicates.
        ranges: the number of bookmark ranges in all events.
    """

    published: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    letters: Counter[str] = field(default_factory=Counter)
    ranges: int = 0


def write(
    bootstrap_servers: str, queue: str, messages: int, *, rate: int = 0, begun: Callable[[], None] = lambda: None
) -> Written:
    """Write the underlying topic, which has the queue's name, the events and the dead letters.

    Args:
        bootstrap_servers: the broker.
        queue: the queue's name.
        messages: the number of messages.
        rate: the limit of messages a second; 0 = as fast as possible.
        begun: called when the topics exist.
    """
    for name in (queue, topic.events(queue), topic.dead_letters(queue)):
        create(bootstrap_servers, name, PARTITIONS)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "linger.ms": 20,
            "batch.size": 500_000,
            "queue.buffering.max.messages": 1_000_000,
            "acks": "all",
            "enable.idempotence": True,
        }
    )
    written, chance = Written(), random.Random(messages)
    begun()
    began = time.monotonic()
    for first in range(0, messages, STEP * PARTITIONS):
        if rate:
            producer.flush()
            time.sleep(max(0.0, began + first / rate - time.monotonic()))
        for partition in range(PARTITIONS):
            begin = first // PARTITIONS
            count = min(STEP, (messages - first + PARTITIONS - 1 - partition) // PARTITIONS)
            for _ in range(count):
                _put(producer, queue, partition, _PAYLOAD, _HEADERS)
            written.published += count
            _write_fates(producer, written, chance, BookmarkRange(queue, partition, begin, begin + count - 1))
    producer.flush()
    return written


def _write_fates(producer: Producer, written: Written, chance: random.Random, messages: BookmarkRange) -> None:
    """Choose the fates of a step's messages, and write its events and dead letters."""
    queue, partition = messages.topic, messages.partition
    now_ms = time.time_ns() // 1_000_000
    shared: dict[tuple[str, str, tuple[Reason, ...]], list[BookmarkRange]] = {}
    for fate, some in _runs(chance, messages):
        subscription = f"s{chance.randrange(_SUBSCRIPTIONS)}" if fate == EventKind.ACKNOWLEDGED else ""
        reasons: tuple[Reason, ...] = ()
        if fate == EventKind.DEAD_LETTERED:
            reasons = chance.choice([(Reason.TIME_LIMIT,), (Reason.MAX_DELIVERIES,)])
            written.letters[",".join(reasons)] += len(some)
        elif fate == EventKind.EXPIRED:
            reasons = (Reason.PURGED,)
        written.fates[fate] += len(some)
        if fate != _QUEUED:
            written.ranges += 1
            shared.setdefault((fate, subscription, reasons), []).append(some)
        if chance.random() < _REPORTED_TWICE:
            shared.setdefault((EventKind.CANCELLED.value, "s0", ()), []).append(some)
    for _ in range(2 if chance.random() < _REPORTED_TWICE else 1):
        for (fate, subscription, reasons), some in shared.items():
            made = Event(
                entity=queue,
                event=fate,
                at_ms=now_ms,
                partition=partition,
                epoch=1,
                messages=tuple(some),
                reasons=reasons,
                subscription=subscription,
                dead_letter_topic=topic.dead_letters(queue) if fate == EventKind.DEAD_LETTERED else "",
            )
            _put(producer, topic.events(queue), partition, event.encode(made), None)
            if fate == EventKind.DEAD_LETTERED:
                for bookmark in (bookmark for one in some for bookmark in one):
                    _letter(producer, queue, bookmark, reasons, now_ms)


def _runs(chance: random.Random, messages: BookmarkRange) -> Iterator[tuple[str, BookmarkRange]]:
    """Yield runs of neighbouring messages that share a fate, from the first to the last."""
    fates = [fate for fate, _, _ in _RUNS]
    weights = [weight for _, weight, _ in _RUNS]
    longest = {fate: most for fate, _, most in _RUNS}
    at = messages.first
    while at <= messages.last:
        fate = chance.choices(fates, weights)[0]
        last = min(messages.last, at + chance.randint(1, longest[fate]) - 1)
        yield fate, BookmarkRange(messages.topic, messages.partition, at, last)
        at = last + 1


def _letter(producer: Producer, queue: str, bookmark: Bookmark, reasons: tuple[Reason, ...], now_ms: int) -> None:
    death = dead_letter.Death(
        entity=queue,
        bookmark=bookmark,
        reasons=reasons,
        expired_at_ms=now_ms,
        expires_at_ms=now_ms,
        delivery_count=1,
        epoch=1,
    )
    _put(producer, topic.dead_letters(queue), bookmark.partition, _PAYLOAD, dead_letter.headers(death, list(_HEADERS)))


def _put(producer: Producer, name: str, partition: int, value: bytes, headers: list[tuple[str, bytes]] | None) -> None:
    while True:
        try:
            producer.produce(name, value, None, partition, headers=headers)
        except BufferError:
            producer.poll(0.05)
        else:
            return
