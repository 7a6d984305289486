"""The log watch: how much of the brokers it asks for (C40)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from lapse.config import QueueConfig
from lapse.runtime.shard import read_positions
from lapse.runtime.shard.named_topics import NamedTopics
from lapse.runtime.topics import log_watch
from lapse.runtime.topics.log_watch import LogWatch
from lapse.runtime.topics.topic_id import KnownTopics, Shape
from lapse.runtime.tp import TP


@dataclass(eq=False)
class Shard:
    """A shard, as far as the watch looks at it: it is its own runner and machine."""

    sources: list[TP]
    held: list[TP]
    begun: list[TP] = field(default_factory=list)
    entity: str = "orders"
    topics: KnownTopics | None = None

    @property
    def machine(self) -> Shard:
        return self

    def held_sources(self) -> list[TP]:
        return self.held

    async def log_begins(self, tp: TP, offset: int) -> None:
        self.begun.append(tp)


class Log:
    """Answers, and remembers the questions."""

    def __init__(self) -> None:
        self.asked: list[set[TP]] = []

    async def begins(self, tps: Iterable[TP]) -> dict[TP, int]:
        self.asked.append(set(tps))
        return dict.fromkeys(self.asked[-1], 0)


@pytest.mark.feature("C40", "C80")
def test_where_logs_begin_is_asked_for_shards_that_hold_something_and_seldom_for_the_others() -> None:
    busy, left, other = TP("busy", 0), TP("left", 0), TP("other", 0)
    holding, resting = Shard([busy, left], [busy]), Shard([other], [])
    log = Log()
    watch = LogWatch(list, lambda _: asyncio.sleep(0), None, log)
    shapes = {tp.topic: Shape(b"id", 1) for tp in (busy, left, other)}

    async def look(times: int) -> None:
        for _ in range(times):
            await watch._look_at_beginnings([holding, resting], shapes)

    asyncio.run(look(24))
    everything = {busy, left, other}
    assert log.asked == 2 * [everything, *11 * [{busy, left}]]
    assert resting.begun == 2 * [other]
    resting.held = [other]
    asyncio.run(look(2))
    assert log.asked[-1] == everything


class Entity:
    """An entity whose shards are all at other workers."""

    def __init__(self) -> None:
        self.name = "orders"
        self.runners: dict[int, Shard] = {}
        self.partitions = 1
        self.app = self.consumer = self
        self.looks = 0

    async def look_at_size(self) -> None:
        self.partitions = 2

    async def look_again(self) -> None:
        self.looks += 1


class Unanswered:
    """Brokers that are away."""

    def __init__(self) -> None:
        self.asked: list[set[str]] = []

    async def shapes(self, topics: Iterable[str], *, once: bool = False) -> dict[str, Shape]:
        self.asked.append(set(topics))
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


@pytest.mark.feature("Q16")
def test_a_worker_without_shards_knows_as_well_that_the_brokers_are_away() -> None:
    brokers = Unanswered()
    watch = LogWatch(lambda: [Entity()], lambda _: asyncio.sleep(0), brokers, Log())
    with pytest.raises(KafkaException):
        asyncio.run(watch.look())
    assert brokers.asked == [{"lapse.orders.commands"}]


@pytest.mark.feature("C81")
def test_a_worker_without_shards_of_a_queue_sees_that_it_gets_more() -> None:
    """Only the group's leader assigns them. By itself it would ask for the numbers of partitions after minutes."""
    queue, counts = Entity(), iter((1, 2, 2))

    class Brokers:
        async def shapes(self, topics: Iterable[str], *, once: bool = False) -> dict[str, Shape]:
            return {topic: Shape(b"id", next(counts)) for topic in topics}

    watch = LogWatch(lambda: [queue], lambda _: asyncio.sleep(0), Brokers(), Log())
    for _ in range(3):
        asyncio.run(watch.look())
    assert queue.looks == 1, "a look of its consumer that finds more partitions begins a rebalance"


@pytest.mark.feature("C40", "C52")
def test_an_error_in_a_look_does_not_end_the_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would notice what Kafka removes any more, nor a topic that is missing, until the next start."""
    monkeypatch.setattr(log_watch, "_EVERY_S", 0)

    class Watch(LogWatch):
        looks = 0

        async def look(self) -> None:
            self.looks += 1
            if self.looks == 1:
                raise KeyError("a partition that went meanwhile")
            enough.set()

    async def run() -> None:
        watch = Watch(list, lambda _: asyncio.sleep(0), None, Log())
        watch.start()
        async with asyncio.timeout(20):
            await enough.wait()
        watch.stop()

    enough = asyncio.Event()
    asyncio.run(run())


class Reading(NamedTopics):
    """A queue with one shard."""

    def __init__(self, config: QueueConfig, shard: Shard) -> None:
        super().__init__("orders", config, 1)
        self.runners = {0: shard}

    def _needs_take_over(self) -> bool:
        return False

    async def has_new_shards(self) -> bool:
        return False


@pytest.mark.feature("C65", "C42")
def test_a_topic_that_was_taken_away_may_be_created_again() -> None:
    """The journal keeps its place there. To take the shards over anew changes nothing of that, and would never end."""
    kept, away = TP("kept", 0), TP("away", 3)
    shard, log, renewed = Shard([kept], [kept, away]), Log(), list[str]()
    shard.topics = KnownTopics({"kept": ["1", 0], "away": ["1", 0], "away:3": 7}, {"kept": "1"})
    ids = {"kept": "1", "away": "2"}

    class Brokers:
        async def shapes(self, topics: Iterable[str], *, once: bool = False) -> dict[str, Shape]:
            return {topic: Shape(ids[topic], 1) for topic in topics if topic in ids}

    async def renew(entity: Reading) -> None:
        renewed.append(entity.name)

    watch = LogWatch(lambda: [Reading(QueueConfig(topics=("kept",)), shard)], renew, Brokers(), log)
    asyncio.run(watch.look())
    assert renewed == []
    assert log.asked == [{kept}], "the new topic has no such partition"
    ids["kept"] = "3"
    asyncio.run(watch.look())
    assert renewed == ["orders"]


@pytest.mark.feature("C42")
@pytest.mark.parametrize(
    ("topics", "topic_id", "replaced"), [((), "old", []), ((), "new", ["orders"]), (("other",), "new", [])]
)
def test_a_shard_without_a_partition_of_a_topic_that_was_created_again_leaves_the_old_one_behind(
    topics: tuple[str, ...], topic_id: str, replaced: list[str]
) -> None:
    """It was created again with fewer partitions. Otherwise the watch would have the shard taken over without end."""
    commands = TP("lapse.orders.commands", 2)

    class Brokers:
        async def of(self, topics: Iterable[str]) -> dict[str, str]:
            return {topic: {"orders": topic_id}.get(topic, "c") for topic in topics}

        async def begins(self, tps: Iterable[TP]) -> dict[TP, int]:
            return dict.fromkeys(tps, 0)

    known = {"orders": ["old", 0], commands.topic: ["c", 0], "orders:2": 7, f"{commands.topic}:2": 3}
    services = SimpleNamespace(topic_ids=Brokers(), log_reader=Brokers())
    found = asyncio.run(read_positions.find("orders", QueueConfig(topics=topics), services, [commands], known))
    assert found.topics.replaced == replaced
    assert found.offsets == {commands: 3}
    assert found.topics.absent == ({} if replaced else {"orders:2": 7})
    found.topics.settle(5)
    assert found.topics.is_another("orders", topic_id) is (topics == ("other",))
