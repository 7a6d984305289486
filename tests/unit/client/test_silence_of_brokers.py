"""Nobody who reads a log to its end waits without end for a broker that does not answer."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer

from lapse_client.error import LapseError
from lapse_client.kafka.connection import Connection, Silence
from lapse_client.kafka.span import span
from lapse_client.kafka.topic_reader import TopicReader
from lapse_client.kafka.transport import Transport


class SilentConsumer(Consumer):
    """A consumer that knows where a log ends, and whose leader has gone since."""

    def get_watermark_offsets(self, *_: Any, **__: Any) -> tuple[int, int]:
        return 0, 5

    def poll(self, *_: Any) -> None:
        return None


class SilentCluster(Transport):
    def consumer(self, config: dict[str, Any]) -> Consumer:
        return SilentConsumer({**config, "log_level": 0})


CONNECTION = Connection("127.0.0.1:1", transport=SilentCluster())


def readers() -> Iterator[Iterator[object]]:
    yield span(CONNECTION, {"orders": 1})
    yield iter(TopicReader(CONNECTION, "orders", 1))


@pytest.mark.feature("X7")
@pytest.mark.parametrize("reader", [*readers()])
def test_a_reader_ends_when_nothing_comes_of_what_must_be_there(reader: Iterator[object]) -> None:
    with pytest.raises(LapseError, match="orders cannot be read: no answer from its broker"):
        next(reader)


@pytest.mark.feature("X7")
def test_what_comes_late_counts_as_an_answer() -> None:
    silence = Silence("orders")
    for _ in range(10):
        for _ in range(50):
            silence.note(None)
        silence.note("a record")
