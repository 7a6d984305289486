"""A shard that another worker takes over while it is taken over here is given up, and no other one (Q16)."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaTimeoutError
from faust.types import TP

from lapse.core.shard.changelog import Changelog, Items, claim_key, epoch_header
from lapse.runtime.journal import lost_shards, troubled_shards
from lapse.runtime.journal.store import Fenced, MemoryStore
from lapse.runtime.journal.troubled_shards import TroubledShards

pytestmark = pytest.mark.feature("Q16", "C1")


class Owner:
    """An entity whose journals are lists, and what its store asked of it."""

    stopped: frozenset[int] = frozenset()
    partitions = 2
    stands_by = False
    worker_name = "this worker"

    def __init__(self) -> None:
        self.journals: dict[int, list[tuple[bytes, bytes | None, int]]] = {0: [], 1: []}
        self.id_of_topic = "first"
        self.happened: list[tuple[str, int]] = []
        self.fenced: set[int] = set()
        self.troubled: list[int] = []
        self.silent = asyncio.Event()
        """Whether a leader does not answer."""
        self.changelog_reader: Any = self
        self.journal_producer: Any = self
        self.clock = SimpleNamespace(measured=lambda *_: None)

    async def read(self, topic: str, partition: int, into: Changelog, keep: Any = None) -> None:
        for key, value, epoch in self.journals[partition][into.next_offset :]:
            into.take(key, value, epoch_header(epoch))
        into.next_offset = len(self.journals[partition])

    async def send_atomically(self, topic: str, partition: int, items: Items, headers: Any) -> Any:
        journal = self.journals[partition]
        sent: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        sent.set_result(SimpleNamespace(offset=len(journal), timestamp_type=0, timestamp=0))
        journal += [(key, value, int.from_bytes(headers[0][1], "big")) for key, value in items]
        return sent, 0

    def claim(self, partition: int, epoch: int) -> None:
        self.journals[partition].append((claim_key(epoch), b"another worker", epoch))

    def records(self) -> dict[bytes, bytes]:
        return {}

    def first_records(self, partition: int) -> Items:
        return []

    async def exists(self) -> bool:
        return True

    async def topic_id(self, topic: str) -> str:
        return self.id_of_topic

    async def last_epoch(self, partition: int) -> int:
        return 0

    async def prepare(self, partition: int, epoch: int) -> None: ...

    async def take_over(self, partition: int, epoch: int, changelog: Changelog) -> None:
        if partition in self.fenced:
            raise Fenced("another worker has taken the shard over")
        if self.troubled and self.troubled[0] == partition:
            self.troubled.pop(0)
            raise KafkaTimeoutError("no leader answers")
        self.happened.append(("serves", partition))

    async def abandon(self, partition: int) -> None:
        self.happened.append(("abandons", partition))

    async def reach(self, partition: int) -> None:
        if self.silent.is_set():
            self.happened.append(("asks", partition))
            await asyncio.Event().wait()

    def let_go(self, partition: int) -> None: ...

    async def changelog_end(self, partition: int) -> int:
        self.happened.append(("asks for the end", partition))
        return len(self.journals[partition])

    def hold(self, partition: int) -> None:
        self.happened.append(("holds", partition))

    def rest(self, partition: int) -> None:
        self.happened.append(("rests", partition))

    async def release(self, partition: int) -> None:
        self.happened.append(("releases", partition))


class Store(MemoryStore):
    """A store without Faust."""

    changelog_topic = "changelog"
    owner: Any = None

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.table_name = "orders"
        self._owned, self._next_offsets, self._epochs = set(), {}, {}
        self._lost, self._standby = lost_shards.LostShards(), None
        self.again: list[int] = []
        self._troubled, self._held = TroubledShards("orders", self.again.append, owner.reach), {}
        self._noted = SimpleNamespace(note=lambda _: None)
        self._generation, self._topic_id = 0, owner.id_of_topic


@pytest.mark.feature("C90")
def test_entities_that_get_no_shard_take_no_turn_of_those_that_do() -> None:
    async def run() -> None:
        begun: list[Any] = []
        store = Store(Owner())
        store._gone, store.early = False, set()
        store.app = SimpleNamespace(tables=SimpleNamespace(begin=lambda name, take_over: begun.append(take_over)))
        mine = {TP("changelog", 0)}
        await store.on_rebalance(mine, set(), mine)
        (take_over,) = begun
        take_over.close()
        await store._take_over(0)
        await store.on_rebalance(mine, set(), set())
        assert len(begun) == 1

    asyncio.run(run())


@pytest.mark.feature("C90", "Q16")
@pytest.mark.parametrize("missed", ["nothing", "a rebalance", "a loss"])
def test_a_kept_shard_is_asked_for_only_if_another_worker_may_have_had_it(missed: str) -> None:
    async def run() -> None:
        owner = Owner()
        store = Store(owner)
        store._gone, store.early, mine = False, set(), {TP("changelog", 0)}
        store.app = SimpleNamespace(tables=SimpleNamespace(begin=lambda name, take_over: take_over.close()))
        await store.on_rebalance(mine, set(), mine, 7)
        await store._take_over(0)
        if missed == "a loss":
            store.lose(0, Fenced("another worker has taken the shard over"))
        if missed != "nothing":
            owner.claim(0, 2)
        await store.on_rebalance(mine, set(), set(), 9 if missed == "a rebalance" else 8)
        asked = ("asks for the end", 0) in owner.happened
        assert (asked, store._owned) == ((False, {0}) if missed == "nothing" else (True, set()))

    asyncio.run(run())


@pytest.mark.feature("C4", "C42")
def test_a_kept_shard_of_a_deleted_entity_is_none_of_the_entity_that_was_created_in_its_place() -> None:
    """A frozen worker missed both. The new journal is as long as the old one."""

    async def run() -> None:
        owner = Owner()
        store = Store(owner)
        store._gone, store.early, mine = False, set(), {TP("changelog", 0)}
        coming: list[Any] = []
        store.app = SimpleNamespace(tables=SimpleNamespace(begin=lambda _, take_over: coming.append(take_over)))
        await store.on_rebalance(mine, set(), mine, 7)
        await store._take_over(0)
        owner.id_of_topic = "second"
        await store.on_rebalance(mine, set(), set(), 9)
        assert ("releases", 0) in owner.happened
        assert len(coming) == 2, "it is taken over anew"
        for one in coming:
            one.close()

    asyncio.run(run())


def test_only_the_shard_that_was_lost_while_it_was_taken_over_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        owner = Owner()
        store = Store(owner)
        owner.fenced.add(0)
        await asyncio.gather(store._take_over(0), store._take_over(1))
        assert sorted(owner.happened) == [("abandons", 0), ("serves", 1)]
        assert store._owned == {1}
        assert 0 in store._lost
        store._lost.settle()
        assert 0 not in store._lost

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert "orders, partition 0: another worker has taken the shard over; it is given up" in caplog.text


def test_a_shard_that_another_worker_has_is_not_taken_back_because_its_settings_change() -> None:
    """Nobody may take a shard from the worker to which the group has given it."""

    async def run() -> None:
        owner = Owner()
        store = Store(owner)
        await asyncio.gather(store._take_over(0), store._take_over(1))
        owner.claim(0, 2)
        owner.happened.clear()
        await store.renew()
        assert owner.happened == [("releases", 0), ("abandons", 0), ("releases", 1), ("serves", 1)]
        assert store._owned == {1}
        assert [epoch for _, _, epoch in owner.journals[0]] == [1, 2]
        store._lost.settle()

    asyncio.run(run())


def test_a_shard_whose_loss_is_known_is_left_alone_until_the_group_has_said_whose_it_is() -> None:
    async def run() -> None:
        owner = Owner()
        store = Store(owner)
        await store._take_over(0)
        store.lose(0, Fenced("another worker has taken the shard over"))
        owner.happened.clear()
        await store.renew()
        assert owner.happened == []
        store._lost.settle()

    asyncio.run(run())


def test_a_worker_ends_if_the_group_never_says_whose_a_lost_shard_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    monkeypatch.setattr(lost_shards, "end_process", ended.append)
    monkeypatch.setattr(lost_shards, "_ANSWER_WITHIN_S", 0)

    async def run() -> None:
        lost = lost_shards.LostShards()
        lost.note("orders", 0, Fenced("it is another's"))
        lost.note("orders", 0, Fenced("it is another's"))
        settled = lost_shards.LostShards()
        settled.note("orders", 1, Fenced("it is another's"))
        settled.settle()
        while not ended:  # noqa: ASYNC110
            await asyncio.sleep(0)

    asyncio.run(run())
    assert ended == ["orders, partition 0: it is another's, and the group has not said so for 0 s"]


@pytest.mark.feature("C52")
def test_a_shard_that_no_leader_answers_for_is_taken_over_later_and_keeps_no_other_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its own claim, which may have come through, is not taken for another worker's."""
    monkeypatch.setattr(troubled_shards, "_FIRST_S", 0)

    async def run() -> None:
        owner = Owner()
        store = Store(owner)
        await store._take_over(0)
        owner.troubled = [0, 0]
        owner.happened.clear()
        await asyncio.gather(store._take_over(0, 1), store._take_over(1))
        assert sorted(owner.happened) == [("abandons", 0), ("rests", 0), ("serves", 1)]
        while not store.again:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert store._troubled.begins(0)
        await store._take_over(0, store._held[0])
        assert store._troubled.settle() == {0}
        await store._take_over(0, store._held[0])
        assert owner.happened[-1] == ("serves", 0)
        assert [epoch for _, _, epoch in owner.journals[0]] == [1, 2, 3, 4]
        assert 0 not in store._troubled

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    logged = [record.message for record in caplog.records if "partition 0" in record.message]
    assert sum("cannot be taken over for now" in one for one in logged) == 1
    assert "orders, partition 0: is taken over after all" in logged


@pytest.mark.feature("C52")
def test_a_refused_shard_holds_its_sources_only_while_it_is_taken_over_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another queue may read the same topic."""
    monkeypatch.setattr(troubled_shards, "_FIRST_S", 0)
    begun: list[Coroutine[Any, Any, None]] = []

    @contextlib.asynccontextmanager
    async def still() -> AsyncIterator[bool]:
        yield True

    async def run() -> None:
        owner = Owner()
        store: Any = Store(owner)
        tables = SimpleNamespace(still=still, begin=lambda _, take_over: begun.append(take_over))
        store.app = SimpleNamespace(tables=tables)
        await store._take_over(0)
        owner.happened.clear()
        await store.give_up(0, KafkaTimeoutError("refused"))
        assert owner.happened == [("releases", 0), ("rests", 0)]
        await store._take_over_again(0)
        await begun.pop()
        assert owner.happened[2:] == [("holds", 0), ("serves", 0)]

    asyncio.run(run())


@pytest.mark.feature("C52")
def test_while_a_leader_is_silent_no_attempt_holds_topics_that_others_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(troubled_shards, "_FIRST_S", 0)
    monkeypatch.setattr(troubled_shards, "_ANSWER_WITHIN_S", 0)

    async def run() -> None:
        owner = Owner()
        store = Store(owner)
        owner.troubled = [0]
        owner.silent.set()
        await store._take_over(0)
        while len(owner.happened) < 5:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert owner.happened[:5] == [("abandons", 0), ("rests", 0), *[("asks", 0)] * 3]
        assert not store.again
        owner.silent.clear()
        while not store.again:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert store._troubled.settle() == {0}

    asyncio.run(run())


@pytest.mark.feature("C52")
@pytest.mark.parametrize("silent", [True, False])
def test_a_first_attempt_is_broken_off_only_while_a_leader_is_silent(
    silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It held topics that others read until all of its questions had got no answer, up to 27 s."""
    monkeypatch.setattr(troubled_shards, "_LOOK_AFTER_S", 0.001)
    monkeypatch.setattr(troubled_shards, "_ANSWER_WITHIN_S", 0.001)

    async def run() -> None:
        owner = Owner()
        store = Store(owner)
        goes_on, read = asyncio.Event(), owner.read

        async def late(*args: Any) -> None:
            await goes_on.wait()
            await read(*args)

        monkeypatch.setattr(owner, "read", late)
        if silent:
            owner.silent.set()
            async with asyncio.timeout(10):
                await store._take_over(0)
            assert owner.happened == [("asks", 0), ("abandons", 0), ("rests", 0)]
            assert store._troubled.settle() == {0}
            return
        asyncio.get_running_loop().call_later(0.05, goes_on.set)
        await store._take_over(0)
        assert owner.happened == [("serves", 0)]

    asyncio.run(run())


@pytest.mark.feature("C52")
def test_leaders_that_are_only_slow_are_given_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(troubled_shards, "_FIRST_S", 0)
    monkeypatch.setattr(troubled_shards, "_ANSWER_WITHIN_S", 0.001)
    asked: list[int] = []
    again = asyncio.Event()

    async def slow(partition: int) -> None:
        asked.append(partition)
        await asyncio.sleep(0.02)

    async def run() -> None:
        shards = TroubledShards("orders", lambda _: again.set(), slow)
        shards.note(0, KafkaTimeoutError("no leader answers"))
        async with asyncio.timeout(10):
            await again.wait()
        assert len(asked) > 1

    asyncio.run(run())


def test_a_step_of_a_lost_shard_is_not_written_beside_its_next_epoch_in_the_same_process() -> None:
    """It would be void, and the local copy of the journal would have it all the same."""

    async def run() -> None:
        owner = Owner()
        store = Store(owner)
        await store._take_over(0)
        await store._take_over(0)
        before = list(owner.journals[0])
        with pytest.raises(Fenced, match="epoch 1 is at its end"):
            await store.commit(0, 1, [], [(b"d", b"void")])
        assert owner.journals[0] == before
        await store.commit(0, 2, [], [(b"d", b"step")])
        assert owner.journals[0] == [*before, (b"d", b"step", 2)]

    asyncio.run(run())
