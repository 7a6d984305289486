"""Errors of the client reach another process as they are: process pools and task queues pickle them."""

import copy
import pickle

import pytest
from confluent_kafka import KafkaError, KafkaException

import lapse_client.error as errors
from lapse.protocol.answer import Answer
from lapse_client import Connection, LapseError, Publisher, Retry


def _all() -> list[LapseError]:
    refused = Answer(
        id="1", command="peek", status="error", partition=3, error="no such filter", code="invalid_argument"
    )
    return [
        errors.LapseError("plain"),
        errors.ConnectionFailed("127.0.0.1:9092", "timed out"),
        errors.UnknownEntity("queue", "ordres", ["orders", "jobs"]),
        errors.InvalidPayload("no number"),
        errors.UnresolvedSchema("no default"),
        errors.InvalidPublication("a lifetime below zero"),
        errors.PublishFailed("orders", b"k", "too large", 3),
        errors.CommandFailed("orders", refused),
        errors.EntityDeleted("orders", "it was deleted"),
        errors.NoRecord("orders:0:7"),
        errors.RedriveUnfinished("a redrive by Spark has not ended"),
        errors.NoReply("orders", 2.5),
        errors.AnswerTimeout("orders", "peek", [1, 0], 5.0),
        errors.TransactionFailed("fenced", outcome_unknown=True),
        errors.AlreadySettled("orders:0:7", "acknowledged"),
        errors.Closed("the subscriber"),
        errors.OtherEventLoop("the subscriber"),
        errors.OtherProcess("the subscriber"),
    ]


@pytest.mark.parametrize("error", _all(), ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_in_another_process(error: LapseError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def test_a_publication_that_kafka_refused_says_so_by_kafkas_name() -> None:
    refused = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
    assert errors.PublishFailed("orders", None, refused).kafka_error == "MSG_SIZE_TOO_LARGE"
    assert errors.PublishFailed("orders", None, KafkaException(refused)).kafka_error == "MSG_SIZE_TOO_LARGE"
    text = str(errors.PublishFailed("orders", None, refused))
    assert "(MSG_SIZE_TOO_LARGE)" in text
    assert "KafkaError{" not in text
    assert "Publish smaller ones, or raise max.message.bytes of the topic and message.max.bytes" in text
    assert errors.PublishFailed("orders", None, "MSG_SIZE_TOO_LARGE: no error, but a text").kafka_error == ""


@pytest.mark.feature("X7")
def test_an_option_that_librdkafka_does_not_have_is_no_matter_of_passwords() -> None:
    with pytest.raises(errors.ConnectionFailed, match='"foo". Correct this option of librdkafka'):
        Publisher(Connection("nowhere:1", {"foo": 1}))


def test_every_kind_of_error_is_tried() -> None:
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LapseError)}
    assert kinds == {type(error) for error in _all()}


def test_a_retry_is_the_same_in_another_process() -> None:
    again = pickle.loads(pickle.dumps(Retry(after=1.5)))
    assert again.delay_ms == 1500
    assert str(again) == "retry after 1500 ms"
