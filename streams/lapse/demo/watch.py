"""The watch: follows topics and entities while the demo runs, for people only.

The ledger at the end does not use these figures, because events may be repeated after a take-over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, KafkaException, TopicPartition

from lapse.demo.plan import Plan
from lapse.protocol import event as events
from lapse.protocol import topic as topics
from lapse.protocol.codec import CodecError
from lapse.protocol.event import EventKind
from lapse_client import Connection, LapseError, Queue, SowClient

log = logging.getLogger(__name__)

_ASK_EVERY_S: Final = 1.0
_PATIENCE_S: Final = 4.0
_AT_ONCE: Final = 1_000


class Moment(NamedTuple):
    """An observation at one instant.

    Attributes:
        at_ms: the instant, ms since the epoch.
        depth: messages in the queue; None while it did not answer.
        in_sight: aircraft in the SOW topic; None while it did not answer.
    """

    at_ms: int
    depth: int | None
    in_sight: int | None


class Watch:
    """Follows the queue's events, and asks for its depth and for the aircraft in sight; a context manager.

    Attributes:
        acknowledged: flights that were served.
        letters: flights that left by a dead letter, by reasons.
        depth: figures of the queue's depth; empty while it does not answer.
        in_sight: aircraft in the SOW topic; None while it does not answer.
        most_in_sight: the highest number so far.
        moments: the observations, about one each second.
    """

    def __init__(self, plan: Plan) -> None:
        self.acknowledged = 0
        self.letters: Counter[str] = Counter()
        self.depth: dict[str, int] = {}
        self.in_sight: int | None = None
        self.most_in_sight = 0
        self.moments: list[Moment] = []
        self._plan = plan
        self._connection = Connection.from_environment(plan.bootstrap_servers)
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"demo {target.__name__}", daemon=True)
            for target in (self._follow, self._ask_queue, self._ask_aircraft)
        ]

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(_PATIENCE_S)

    @property
    def dead_letter_count(self) -> int:
        """The number of flights that were not served."""
        return sum(self.letters.values())

    def settle_down(self, published: int, timeout_s: float, each: Callable[[], None]) -> bool:
        """Wait until every flight has left the queue and its events have arrived.

        Args:
            published: the number of flights.
            timeout_s: how long to wait at most, s.
            each: called again and again meanwhile.

        Returns:
            Whether the queue is empty; if not, the ledger says so, too.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            each()
            complete = self.acknowledged + self.dead_letter_count >= published
            if complete and self.depth and not self.depth.get("depth") and not self.depth.get("dying"):
                return True
            time.sleep(0.1)
        return False

    def await_nothing_in_sight(self, timeout_s: float) -> int | None:
        """Wait until every aircraft's lifetime is over; return how many are left, or None without an answer."""
        deadline = time.monotonic() + timeout_s
        while self.in_sight != 0 and time.monotonic() < deadline:
            time.sleep(0.1)
        return self.in_sight

    def _follow(self) -> None:
        name = topics.events(self._plan.queue)
        consumer = self._connection.consumer()
        try:
            consumer.assign([TopicPartition(name, number, OFFSET_BEGINNING) for number in range(self._plan.partitions)])
            while not self._stopping.is_set():
                for message in consumer.consume(_AT_ONCE, 0.2):
                    value = message.value()
                    if message.error() is None and value is not None:
                        self._count(value)
        except KafkaException as error:
            log.warning("the watch of %s ended: %s", name, error)
        finally:
            consumer.close()

    def _count(self, value: bytes) -> None:
        try:
            event = events.decode(value)
        except CodecError:
            return
        size = sum(map(len, event.messages))
        if event.event == EventKind.ACKNOWLEDGED:
            self.acknowledged += size
        elif event.event in (EventKind.DEAD_LETTERED, EventKind.EXPIRED):
            self.letters[",".join(event.reasons)] += size

    def _ask_queue(self) -> None:
        with Queue(self._plan.queue, connection=self._connection, timeout_s=_PATIENCE_S) as queue:
            while not self._stopping.wait(_ASK_EVERY_S):
                try:
                    self.depth = queue.depth()
                except LapseError as error:  # a worker was killed; the next one answers
                    self.depth = {}
                    log.info("%s", error)
                self.moments.append(Moment(round(time.time() * 1000), self.depth.get("depth"), self.in_sight))

    def _ask_aircraft(self) -> None:
        with SowClient(self._plan.sow, connection=self._connection, timeout_s=_PATIENCE_S) as aircraft:
            while not self._stopping.wait(_ASK_EVERY_S):
                try:
                    self.in_sight = sum(1 for _ in aircraft.query())
                    self.most_in_sight = max(self.most_in_sight, self.in_sight)
                except LapseError as error:
                    self.in_sight = None
                    log.info("%s", error)
