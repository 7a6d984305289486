"""Writes records in lapse's formats with a plain producer, for tests of the readers."""

from collections.abc import Iterable, Sequence

from confluent_kafka import Producer

from lapse.core.reason import Reason
from lapse.protocol import dead_letter, event, topic
from lapse.protocol.bookmark import Bookmark, BookmarkRange
from lapse.protocol.event import Event, EventKind

Headers = Sequence[tuple[str, bytes | None]]


class Wire:
    """Writes to one cluster. Every call waits until the broker has the records."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True})

    def records(
        self, name: str, values: Iterable[bytes | None], *, headers: Headers = (), partition: int = 0, key: bytes = b"k"
    ) -> None:
        for value in values:
            self.put(name, value, headers=headers, partition=partition, key=key)
        self.flush()

    def put(
        self, name: str, value: bytes | None, *, headers: Headers = (), partition: int = 0, key: bytes | None = b"k"
    ) -> None:
        while True:
            try:
                self._producer.produce(name, value, key, partition, headers=list(headers))
            except BufferError:
                self._producer.poll(0.1)
            else:
                break
        self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(60) == 0

    def event(self, queue: str, kind: EventKind, *messages: BookmarkRange, at_ms: int = 1_000, **facts: object) -> None:
        one = Event(entity=queue, event=kind, at_ms=at_ms, partition=0, messages=messages, **facts)
        self.put(topic.events(queue), event.encode(one))

    def letter(
        self,
        queue: str,
        bookmark: Bookmark,
        *reasons: Reason,
        value: bytes = b"{}",
        original: Headers = (),
        on: str = "",
        expired_at_ms: int = 1_000,
        **facts: object,
    ) -> None:
        death = dead_letter.Death(
            entity=queue, bookmark=bookmark, reasons=reasons, expired_at_ms=expired_at_ms, **facts
        )
        headers = dead_letter.headers(death, list(original))
        self.put(on or topic.dead_letters(queue), value, headers=headers)
