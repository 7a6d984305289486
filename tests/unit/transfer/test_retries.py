"""When a process that follows gives up."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from lapse.transfer.copier import NotRead, TakenOver, TransferError
from lapse.transfer.retries import Retries
from lapse_client.error import AnswerTimeout, EntityDeleted, LapseError, UnknownEntity

UNKNOWN = UnknownEntity("queue", "orders", [])
DELETED = EntityDeleted("orders", "deleted")
SILENT = AnswerTimeout("orders", "transfer", [0], 30)
DOWN = KafkaException(KafkaError(KafkaError._TRANSPORT))


@pytest.mark.feature("Q26", "X7")
def test_a_queue_that_is_away_ends_it_at_the_start_at_once_and_later_after_ten_seconds() -> None:
    assert Retries().is_final(UNKNOWN, 0)
    retries = Retries()
    retries.note_begun()
    found = [retries.is_final(one, at) for one, at in [(DELETED, 5), (UNKNOWN, 6), (UNKNOWN, 14.9), (UNKNOWN, 15)]]
    assert found == [False, False, False, True]
    retries.note_begun()  # it was created anew
    assert not retries.is_final(UNKNOWN, 16)
    assert not retries.is_final(SILENT, 20)
    assert not retries.is_final(UNKNOWN, 27)


@pytest.mark.feature("Q26", "X7")
def test_what_may_pass_is_tried_again_and_a_missing_right_is_not() -> None:
    retries = Retries()
    assert not retries.is_final(SILENT, 0)
    assert not retries.is_final(DOWN, 0)
    assert retries.is_final(LapseError("a right is missing"), 0)
    retries.note_begun()
    assert not retries.is_final(LapseError("there is no answer"), 1)
    assert retries.is_final(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)), 1)


@pytest.mark.feature("Q26", "X7")
def test_what_the_queue_there_has_not_read_is_tried_again_and_a_mistake_at_the_start_is_not() -> None:
    unread, mistaken = NotRead("orders has not read it"), TransferError("there is no such topic")
    retries = Retries()
    assert not retries.is_final(unread, 0)
    assert retries.is_final(mistaken, 0)
    assert retries.is_final(TakenOver("follow-1"), 0)
    retries.note_begun()
    assert not retries.is_final(unread, 1)
    assert not retries.is_final(mistaken, 1)  # the topic is perhaps created anew
    assert retries.is_final(TakenOver("follow-1"), 1)
