"""Brokers that learn of thousands of topics are waited for as long as they go on learning (C90)."""

from types import SimpleNamespace
from typing import Any

import pytest

from lapse.config import Config
from lapse.runtime.topics import cluster, definitions, patience
from lapse.runtime.topics.cluster import Cluster
from lapse.runtime.topics.definitions import DefinitionsTopic
from lapse.runtime.topics.entity_cleanup import rebalance_patience_s
from lapse.runtime.topics.patience import Patience
from lapse.runtime.topics.topology import TopologyError

pytestmark = pytest.mark.feature("C90", "D1")


class Clock:
    """Time that passes only while somebody sleeps."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, for_s: float) -> None:
        self.now_s += for_s


class Brokers:
    """Brokers that learn of a topic every ten seconds, until they know so many."""

    def __init__(self, clock: Clock, until: int) -> None:
        self._clock = clock
        self._until = until

    def list_topics(self, name: str = "", timeout: float = 0) -> Any:
        known = min(self._until, int(self._clock.now_s / 10))
        there: dict[str, Any] = {f"t{number}": SimpleNamespace(error=None) for number in range(known)}
        return SimpleNamespace(topics={name: there.get(name, SimpleNamespace(error="unknown"))} if name else there)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (cluster, definitions):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(patience.Patience, "__init__", _init(clock))
    return clock


def _init(clock: Clock) -> Any:
    init = Patience.__init__
    return lambda self, patience_s: init(self, patience_s, clock.monotonic)


def test_the_last_topic_is_waited_for_while_the_brokers_learn_of_others(clock: Clock) -> None:
    one = Cluster(Config())
    one._admin = Brokers(clock, 100)  # type: ignore[assignment]
    one._see({f"t{number}" for number in range(100)})
    assert 1_000 <= clock.now_s < 1_002, "ten seconds for each"


def test_topics_that_never_come_are_given_up(clock: Clock) -> None:
    one = Cluster(Config())
    one._admin = Brokers(clock, 3)  # type: ignore[assignment]
    one._see({f"t{number}" for number in range(100)})
    assert 30 <= clock.now_s < 60


@pytest.mark.parametrize(("known", "given_up"), [(100, False), (3, True)])
def test_the_definitions_topic_is_waited_for_while_the_brokers_learn_of_others(
    clock: Clock, known: int, given_up: bool
) -> None:
    """`lapse apply` of a thousand entities on a busy machine gave up after 120 s in all."""
    topic = DefinitionsTopic(Config())
    topic.name = "t99"
    brokers: Any = Brokers(clock, known)
    if given_up:
        with pytest.raises(TopologyError, match="have learned of no topic for 120 s; run it again"):
            topic._await(brokers)
        assert 150 <= clock.now_s < 155
    else:
        topic._await(brokers)
        assert clock.now_s >= 1_000


@pytest.mark.feature("C4", "C90")
def test_topics_of_a_deleted_entity_are_kept_until_kafka_removes_a_frozen_worker_from_the_group() -> None:
    for session_s, removed_after_s in ((10.0, 10.0), (45.0, 45.0), (300.0, 60.0)):
        assert rebalance_patience_s(session_s, rebalance_s=60.0) > removed_after_s
