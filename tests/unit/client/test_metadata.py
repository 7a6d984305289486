"""Metadata of a cluster that is slow to tell it: a try that was too short is followed by a longer one."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from lapse_client.error import ConnectionFailed
from lapse_client.kafka import metadata
from lapse_client.kafka.metadata import Metadata


class Slow:
    """An administrator's connection whose answers take a while, in seconds."""

    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s
        self.tries: list[float] = []

    def list_topics(self, timeout: float) -> Any:
        self.tries.append(timeout)
        if timeout < self.takes_s:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return SimpleNamespace(topics={})

    def poll(self, _: float) -> None:
        """There is nothing to bring."""


@pytest.mark.feature("X7")
def test_an_answer_that_takes_longer_than_a_try_comes_all_the_same() -> None:
    slow = Slow(3.9)
    Metadata("b:1", {}, lambda _: slow, None).ask(15.0)  # type: ignore[arg-type,return-value]
    assert slow.tries == [1.0, 2.0, 4.0]


@pytest.mark.feature("X7")
@pytest.mark.parametrize("name", ["a\udcff", "\ud800", "", "a b", "x" * 250])
def test_what_no_topic_can_be_called_is_not_asked_for(name: str) -> None:
    """Kafka's client ends the process over a name that is no UTF-8."""
    assert Metadata("127.0.0.1:1", {}, AdminClient, None).hidden([name]) == []  # type: ignore[arg-type]


@pytest.mark.feature("X7")
def test_tries_end_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 3.0, 4.5])
    monkeypatch.setattr(metadata, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    silent = Slow(60.0)
    with pytest.raises(ConnectionFailed):
        Metadata("b:1", {}, lambda _: silent, None).ask(4.0)  # type: ignore[arg-type,return-value]
    assert silent.tries == [1.0, 2.0, 1.0]


@pytest.mark.feature("X7")
def test_after_an_outage_a_new_client_asks() -> None:
    """The old one may have been told that there are no brokers, and then it connects to none again."""
    first, second = Slow(0.0), Slow(0.0)
    opened = iter([first, second])
    source = Metadata("b:1", {}, lambda _: next(opened), None)  # type: ignore[arg-type,return-value]
    source.ask()
    first.takes_s = 60.0
    with pytest.raises(ConnectionFailed):
        source.ask(0.0)
    source.ask()
    assert len(second.tries) == 1


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("old_s", "new_s", "tries"),
    [(60.0, 0.0, ([1.0], [2.0])), (3.0, 60.0, ([1.0, 4.0], [2.0]))],
    ids=["the old client knows no broker", "brokers that are not listed answer late"],
)
def test_an_outage_is_over_within_one_question(
    old_s: float, new_s: float, tries: tuple[list[float], list[float]]
) -> None:
    """The one that answered is asked from then on."""
    old, new = Slow(0.0), Slow(new_s)
    opened = iter([old, new])
    source = Metadata("b:1", {}, lambda _: next(opened), None)  # type: ignore[arg-type,return-value]
    source.ask()
    old.tries.clear()
    old.takes_s = old_s
    source.ask()
    assert (old.tries, new.tries) == tries
    answered = old if old_s < new_s else new
    answered.takes_s = 0.0
    source.ask()
    assert len(old.tries + new.tries) == len([*tries[0], *tries[1]]) + 1
    assert answered.tries[-1] == 1.0


@pytest.mark.feature("X4", "C52")
@pytest.mark.parametrize(
    ("code", "is_absent"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, True),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False),
        (KafkaError._TIMED_OUT, False),
    ],
)
def test_a_topic_that_is_not_listed_is_missing_only_if_the_broker_says_so(code: int, is_absent: bool) -> None:
    """A user may not see the entity's events, and the broker may be too busy to say it."""

    class Answering(Slow):
        def describe_topics(self, some: Any, request_timeout: float) -> dict[str, Future[object]]:
            answered: Future[object] = Future()
            answered.set_exception(KafkaException(KafkaError(code)))
            return {"lapse.events.orders": answered}

    known = Metadata("b:1", {}, lambda _: Answering(0.0), None)  # type: ignore[arg-type,return-value]
    absent = known.absent("lapse.events.orders", "app-orders-changelog", "", None)
    assert absent == ["lapse.events.orders"] * is_absent
