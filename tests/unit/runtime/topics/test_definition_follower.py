"""The definition follower: which records of the definitions topic are news for a worker (Q23, C64)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from lapse.config import Config
from lapse.config.decided_entities import DecidedEntities
from lapse.config.definition import Definition
from lapse.protocol import topic as names
from lapse.runtime.topics import definition_follower, served_versions
from lapse.runtime.topics.definition_follower import DefinitionFollower
from lapse.runtime.topics.definitions_reader import Contents
from lapse.runtime.topics.served_versions import ServedVersions

pytestmark = pytest.mark.feature("Q23", "C64")

OLD = Definition("orders", "queue", 1, "alice", {"max_deliveries": 3})
NEW = Definition("orders", "queue", 1, "bob", {"max_deliveries": 9})
ELSE = Definition("orders", "sow", 1, "bob", {"topic": "prices", "key": "/symbol"})


def record(offset: int, one: Definition | None, name: str = "orders") -> SimpleNamespace:
    value = None if one is None else one.encode()
    return SimpleNamespace(key=name.encode(), value=value, offset=offset, timestamp=1_000 + offset)


class Worker:
    """A worker that serves `orders`, and notes with which settings it takes the shards over anew.

    Args:
        rebalances: so many rebalances come first, each of which takes the shards over as well.
        others: further queues that it serves.
    """

    def __init__(self, rebalances: int = 0, *others: str) -> None:
        self.rebalances = rebalances
        self.claimed: list[int | None] = []
        self.entities = {name: SimpleNamespace(name=name, forward=None) for name in ("orders", *others)}
        self.services = SimpleNamespace(topics=None, versions={})
        self.late_entities = SimpleNamespace(remove=lambda names: None)
        self.renewed: list[int | None] = []

    async def renew(self, entity: Any, whole: Config, version: int = 0) -> bool:
        entity.forward = whole.forward_topic(entity.name)
        if self.rebalances:
            self.rebalances -= 1
            self.claimed.append(self.services.versions.get(entity.name))
            return False
        self.services.versions[entity.name] = version
        self.renewed.append(whole.queue[entity.name].max_deliveries)
        return True


def follow(worker: Any, began_with: tuple[Definition, int], *batches: Sequence[Any]) -> DefinitionFollower:
    """Let a worker that began with a definition at an offset read the topic from its beginning."""
    definition, offset = began_with
    decided = DecidedEntities(Config(), {"orders": definition}, (), Path(), {"orders": offset})
    follower = DefinitionFollower(worker, Config(), decided, {})

    async def read() -> None:
        for records in batches:
            await follower._follow(records)

    asyncio.run(read())
    return follower


DELETED = [record(0, OLD), record(1, None), record(2, NEW)]


@pytest.mark.parametrize("batches", [[DELETED], [[one] for one in DELETED], [DELETED[:2], DELETED[2:]]])
def test_what_was_created_again_while_a_worker_started_is_served(batches: list[list[Any]]) -> None:
    """Both have version 1. The worker had read the first one, and would keep its settings."""
    worker = Worker()
    follow(worker, (OLD, 0), *batches)
    assert worker.renewed == [9]


@pytest.mark.parametrize("batches", [[DELETED], [[one] for one in DELETED]])
def test_what_a_worker_has_read_at_its_start_is_no_news(batches: list[list[Any]]) -> None:
    worker = Worker()
    follow(worker, (NEW, 2), *batches, *batches)
    assert worker.renewed == []


def test_a_worker_starts_anew_for_what_it_cannot_change_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(why: str, error: BaseException | None = None) -> NoReturn:
        raise SystemExit(why)

    monkeypatch.setattr(definition_follower, "end_process", end)
    with pytest.raises(SystemExit, match="orders: was deleted and created again while this worker started"):
        follow(Worker(), (OLD, 0), [record(0, OLD), record(1, None), record(2, ELSE)])


@pytest.mark.feature("C66", "X10")
def test_a_rebalance_before_a_change_claims_the_version_that_it_serves() -> None:
    """A replay serves each epoch by the version that its claim names."""
    worker = Worker(rebalances=1)
    worker.services.versions["orders"] = 1
    follow(worker, (OLD, 0), [record(1, replace(NEW, version=2))])
    assert (worker.claimed, worker.renewed, worker.services.versions) == ([1], [9], {"orders": 2})


@pytest.mark.feature("C38", "X7")
def test_definitions_that_make_a_circle_together_are_taken_up_as_far_as_they_fit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two programs changed them at the same moment, or an older version of lapse let them pass."""
    onward, back = (Definition(one, "queue", 1, "bob", {}) for one in ("orders", "later"))
    worker = Worker(0, "later")
    decided = DecidedEntities(
        Config(queue={"orders": {}, "later": {}}), {"orders": onward, "later": back}, (), Path(), {}
    )
    follower = DefinitionFollower(worker, decided.config, decided, {})

    def forwarding(entity: Definition, version: int, to: str | None) -> Definition:
        return replace(entity, version=version, settings={"forward_to": to} if to else {})

    def hear(offset: int, *definitions: Definition) -> tuple[str | None, str | None]:
        records = [record(offset + at, one, one.name) for at, one in enumerate(definitions)]
        asyncio.run(follower._follow(records))
        return worker.entities["orders"].forward, worker.entities["later"].forward

    assert hear(2, forwarding(onward, 2, "later")) == ("later", None)
    assert hear(3, forwarding(back, 2, "orders")) == ("later", None)
    assert "later: version 2 conflicts: " in caplog.text
    assert "a circle: " in caplog.text
    caplog.clear()
    assert hear(4, forwarding(onward, 3, None)) == (None, "orders"), "it fits now"
    assert hear(5, forwarding(onward, 4, "later"), forwarding(back, 3, None)) == ("later", None), "together they fit"
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


@pytest.mark.feature("C65")
def test_a_shard_that_is_given_up_while_it_is_counted_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is freed meanwhile, so its messages would seem to be gone. The next owner counts them."""
    given_up, kept = SimpleNamespace(machine="given up"), SimpleNamespace(machine="kept")
    runners = {0: given_up, 1: kept}

    def parts(machine: str) -> Iterator[Counter[str]]:
        yield Counter({"a": 1})
        if machine == given_up.machine:
            del runners[0]
        yield Counter({"a": 1})

    monkeypatch.setattr(served_versions, "live_parts", parts)
    worker: Any = Worker()
    worker.entities["orders"].runners = runners
    serving = ServedVersions(worker, follow(worker, (OLD, 0)))
    assert asyncio.run(serving.live("orders")) == {1: {"a": 2}}


def withdrawn(follower: DefinitionFollower, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return up to which offsets the follower removes the definition of `orders`, which was deleted."""
    found: dict[str, int] = {}
    monkeypatch.setattr(follower._topic, "withdraw", found.update)
    asyncio.run(follower.withdraw(["orders"]))
    return found


@pytest.mark.feature("C65")
def test_only_the_definition_that_was_served_goes_with_its_entity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may create the entity again before its definition is removed."""
    assert withdrawn(follow(Worker(), (OLD, 7)), monkeypatch) == {"orders": 7}
    assert withdrawn(follow(Worker(), (OLD, 7), [record(8, NEW)]), monkeypatch) == {"orders": 8}
    worker = Worker()
    worker.entities.clear()  # it is being removed
    follower = follow(worker, (OLD, 7))
    monkeypatch.setattr(follower, "_begin", lambda new, together_ms: asyncio.sleep(0))
    asyncio.run(follower._follow([record(8, NEW)]))
    assert withdrawn(follower, monkeypatch) == {"orders": 7}


@pytest.mark.feature("C65")
def test_a_definition_in_a_topic_that_was_created_again_stays_until_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = follow(Worker(), (OLD, 7), [record(8, NEW)])
    follower._begin_anew()
    assert withdrawn(follower, monkeypatch) == {"orders": -1}
    asyncio.run(follower._follow([record(2, NEW)]))
    assert withdrawn(follower, monkeypatch) == {"orders": 2}


@pytest.mark.feature("C65")
def test_an_entity_that_is_created_while_the_topics_are_listed_is_not_taken_for_a_deleted_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its topics are created before its definition."""
    temporary = replace(NEW, settings={"auto_delete_on_idle": "1m"}, made=("orders",))
    worker = Worker()
    follower = follow(worker, (temporary, 7))
    worker.entities.clear()
    topics: set[str] = set()

    def read_if_there() -> Contents:
        topics.update((*names.entity_topics(Config().lapse.app_id, "orders"), "orders"))  # it is created again
        return Contents({"orders": temporary.encode()}, {"orders": 9}, None)

    async def listed() -> set[str]:
        return set(topics)

    monkeypatch.setattr(follower._topic, "read_if_there", read_if_there)
    assert asyncio.run(follower.unfinished(listed)) == []
