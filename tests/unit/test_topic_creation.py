"""Topics are asked for again while all brokers are fenced, and other errors are returned at once."""

from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException

from lapse import topic_creation
from lapse.topic_creation import NewTopic

FENCED = KafkaError(
    KafkaError.INVALID_REPLICATION_FACTOR,
    "Unable to replicate the partition 1 time(s): All brokers are currently fenced.",
)
TOO_FEW = KafkaError(
    KafkaError.INVALID_REPLICATION_FACTOR,
    "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be reached because only "
    "1 broker(s) are registered.",
)


class Controller:
    """Answers each request with the next errors, by topic; without more of them all is created."""

    def __init__(self, *answers: dict[str, KafkaError]) -> None:
        self.answers = list(answers)
        self.asked: list[list[str]] = []

    def __call__(self, new: list[NewTopic], /, *, operation_timeout: float) -> dict[str, Future]:
        self.asked.append([one.topic for one in new])
        errors = self.answers.pop(0) if self.answers else {}
        made = {one.topic: Future() for one in new}
        for name, future in made.items():
            future.set_exception(KafkaException(errors[name])) if name in errors else future.set_result(None)
        return made


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_creation, "_AGAIN_S", 0.0)


@pytest.mark.feature("C58")
def test_what_no_broker_could_take_is_asked_for_again() -> None:
    controller = Controller({"a": FENCED, "b": TOO_FEW}, {"a": FENCED})
    errors = topic_creation.create(controller, [NewTopic(name, 1, 1) for name in "abc"], 30)
    assert {name: error.args[0] for name, error in errors.items()} == {"b": TOO_FEW}
    assert controller.asked == [["a", "b", "c"], ["a"], ["a"]]


def test_after_the_time_limit_the_error_says_what_to_look_at() -> None:
    errors = topic_creation.create(Controller({"a": FENCED}), [NewTopic("a", 1, 1)], 0)
    message = errors["a"].args[0]
    assert message.code() == KafkaError.INVALID_REPLICATION_FACTOR
    assert "for 0 s Kafka's controller has had no broker that may take partitions" in message.str()
    assert "All brokers are currently fenced" in message.str()
    assert "See in the brokers' logs" in message.str()
