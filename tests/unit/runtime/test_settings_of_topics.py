"""The settings of topics are asked for again where nobody answers: the one who was asked may have ended (C52)."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException

from lapse.config import Config
from lapse.runtime.topics import cluster
from lapse.runtime.topics.cluster import Cluster


class Client:
    """A client of librdkafka's that asks a broker which has ended, or one that is there."""

    silent: ClassVar[list[bool]] = []
    asked: ClassVar[list[tuple[list[str], float]]] = []

    def __init__(self, settings: dict[str, Any]) -> None:
        self._silent = self.silent.pop(0)

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Future[Any]]:
        self.asked.append(([one.name for one in resources], request_timeout))
        answers: dict[Any, Future[Any]] = {}
        for at, one in enumerate(resources):
            answer: Future[Any] = Future()
            if self._silent and at:
                answer.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
            elif one.name == "hidden":
                answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
            else:
                answer.set_result({"cleanup.policy": SimpleNamespace(value="delete")})
            answers[Named(one.name)] = answer
        return answers


class Named:
    """A resource as a key."""

    def __init__(self, name: str) -> None:
        self.name = name


@pytest.mark.feature("C52", "X7")
def test_a_broker_that_has_ended_keeps_a_start_back_for_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "admin_client", Client)
    Client.silent, Client.asked = [True, False], []
    found = Cluster(Config()).settings_of(["a", "b", "hidden"])
    assert found.keys() == {"a", "b"}
    (first, first_s), (second, second_s) = Client.asked
    assert (first, second) == (["a", "b", "hidden"], ["b", "hidden"])
    assert first_s < second_s < 30
