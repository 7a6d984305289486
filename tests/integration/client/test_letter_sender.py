"""What a redrive reports of letters whose transaction fails as a whole (D5)."""

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from lapse.protocol.bookmark import Bookmark
from lapse.topic_creation import NewTopic
from lapse_client import Connection, DeadLetter
from lapse_client.kafka.produced import produce
from lapse_client.letters import letter_sender
from lapse_client.letters.letter_queues import LetterQueues
from lapse_client.letters.letter_sender import LetterSender
from lapse_client.letters.redrive_line import Line
from lapse_client.letters.redriven import Redriven
from support.kafka.created_topic import create


@pytest.mark.feature("D5", "X7")
def test_each_letter_is_reported_when_another_redrive_has_taken_over(kafka: str, unique: Callable[[str], str]) -> None:
    name, connection = unique("orders"), Connection(kafka)
    create(AdminClient({"bootstrap.servers": kafka}), NewTopic(name, 1, 1))
    redriven = Redriven(connection)
    redriven.make_topic()
    lines = [_line(name, offset) for offset in range(3)]
    reported = {id(line): "" for line in lines}
    overtaken = _sender(connection, redriven, f"dlq.{name}", lambda line, text: reported.__setitem__(id(line), text))
    _sender(connection, redriven, f"dlq.{name}", lambda line, text: None)
    with pytest.raises(KafkaException) as caught:
        overtaken.send(lines)
    assert caught.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    assert all(text.startswith("not sent") for text in reported.values()), reported


@pytest.mark.feature("D5", "X7")
def test_a_producer_that_was_taken_over_says_so_of_each_further_record(
    kafka: str, unique: Callable[[str], str]
) -> None:
    """librdkafka raises "fatal error" from then on, which looks like a lost connection and would be tried again."""
    name = unique("orders")
    create(AdminClient({"bootstrap.servers": kafka}), NewTopic(name, 1, 1))
    overtaken, other = (Producer({"bootstrap.servers": kafka, "transactional.id": name}) for _ in range(2))
    overtaken.init_transactions(30)
    overtaken.begin_transaction()
    other.init_transactions(30)
    produce(overtaken, name, b"first", None)
    with pytest.raises(KafkaException):
        overtaken.flush(30)
    for _ in range(2):
        with pytest.raises(KafkaException) as caught:
            produce(overtaken, name, b"second", None)
        assert caught.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)


@pytest.mark.feature("D5", "C58")
def test_redrives_of_different_dead_letter_topics_do_not_end_each_other(
    kafka: str, unique: Callable[[str], str]
) -> None:
    names, connection = [unique("orders"), unique("bills")], Connection(kafka)
    create(AdminClient({"bootstrap.servers": kafka}), *(NewTopic(name, 1, 1) for name in names))
    redriven = Redriven(connection)
    redriven.make_topic()
    reported: list[str] = []
    senders = [
        _sender(connection, redriven, f"dlq.{name}", lambda line, text: reported.append(f"{line.topic}: {text}"))
        for name in names
    ]
    assert [sender.send([_line(name, 0)]) for name, sender in zip(names, senders, strict=True)] == [1, 1]
    assert reported == [f"{name}: " for name in names]
    assert all(_line(name, 0).letter in Redriven(connection).read(whole=True) for name in names)


@pytest.mark.feature("D5", "X7")
def test_each_letter_is_reported_when_nothing_can_be_sent_after_one_that_kafka_refuses(
    kafka: str, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer is opened anew then, and its brokers may have gone."""
    name, connection = unique("orders"), Connection(kafka)
    create(AdminClient({"bootstrap.servers": kafka}), NewTopic(name, 1, 1, config={"max.message.bytes": "2000"}))
    redriven = Redriven(connection)
    redriven.make_topic()
    lines = [_line(name, 0), _line(name, 1, b"x" * 5_000)]
    reported = {id(line): "" for line in lines}
    sender = _sender(connection, redriven, f"dlq.{name}", lambda line, text: reported.__setitem__(id(line), text))
    monkeypatch.setattr(letter_sender, "_CONTROL_S", 5.0)
    sender._connection = Connection("127.0.0.1:1")
    with pytest.raises(KafkaException):
        sender.send(lines)
    assert all(text.startswith("not sent") for text in reported.values()), reported


def _sender(
    connection: Connection, redriven: Redriven, letters: str, sent: Callable[[Line, str], None]
) -> LetterSender:
    return LetterSender(connection, redriven, LetterQueues(connection), sent, letters=letters)


def _line(topic: str, offset: int, value: bytes = b"{}") -> Line:
    letter = DeadLetter(
        key=b"k", value=value, bookmark=Bookmark(f"dlq.{topic}", 0, offset), timestamp_ms=2_000,
        origin=Bookmark(topic, 0, offset), entity=topic, reasons=("time_limit",), message="", delivery_count=1,
        cancel_count=0, expires_at_ms=900, expired_at_ms=1_000, redriven_count=0, lapse_id=f"{topic}/{offset}",
        headers=[],
    )  # fmt: skip
    return Line(letter=letter, topic=topic, partition=0, headers=[])
