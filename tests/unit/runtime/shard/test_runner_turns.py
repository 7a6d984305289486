"""A SOW shard's runner works in turns, and prepares the next step while one is written; the order of effects stays."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from lapse.core.sow.shard import SowShard
from lapse.runtime.journal.store import Fenced
from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.shard import deliveries_under_way as module
from lapse.runtime.shard.deliveries_under_way import DeliveriesUnderWay
from lapse.runtime.sow.machine import SowMachine
from lapse.runtime.sow.output import SowOutput
from support.kafka.noted_broker import COMMANDS, COUNT, SOURCE, Broker, run, runner_of
from unit.core.sow.make import Arrived, T, shard_of


async def nothing(topic: str, partition: int, offset: int) -> None:
    return None


@pytest.mark.feature("S4", "S8", "S9", "C1")
def test_updates_and_expiry_come_in_turns_with_events_before_each_journal() -> None:
    broker = Broker()
    turns: list[int] = []

    class Watched(SowMachine):
        def arrive(self, topic: str, partition: int, records: Any) -> int:
            turns.append(len(records))
            broker.arrived_while_writing += len(records) if broker.writing else 0
            return super().arrive(topic, partition, records)

        def advance(self, now_ms: int) -> None:
            before = len(self.shard.state.entries)
            super().advance(now_ms)
            turns.append(before - len(self.shard.state.entries))
            broker.arrived_while_writing += turns[-1] if broker.writing else 0

    machine = Watched(shard_of(100), SowOutput("prices", 0, 1, "", 1), nothing)
    records = [Arrived(n, T, b"k%d" % n, b"{}") for n in range(COUNT)]

    def done() -> bool:
        return broker.done == COUNT and sum(turns) >= 2 * COUNT and len(broker.journaled[-1]) > 1

    asyncio.run(run(machine, broker, done, records))
    assert max(turns) <= machine.most_at_once
    assert sum(turns) == 2 * COUNT
    assert broker.arrived_while_writing > 0
    assert max(map(len, broker.journaled)) <= 2 * machine.step_records + 2
    _is_in_order(broker.happened, [len(items) > 1 for items in broker.journaled])


def _is_in_order(happened: list[str], tells: list[bool]) -> None:
    """What is told of a step is safe before its journal is; no more than one step is told ahead of the last journal.

    Args:
        happened: what the broker noted.
        tells: of each journal whether it holds more than the shard's progress, so that something was told before.
    """
    assert "".join(one[0] for one in happened if one.startswith("commit")) == "cc" * len(tells)
    journals = iter(tells)
    begun = answered = journaled = 0
    writing = False
    for one in happened:
        if one == "send":
            begun += 1
            assert begun - journaled <= 2
        elif one == "sent":
            answered += 1
        elif one == "commit":
            assert not writing, "two journals at a time"
            writing = True
            journaled += next(journals)
            assert answered >= journaled
        else:
            writing = False
    assert begun == journaled > 1


@pytest.mark.feature("S9")
def test_what_was_taken_in_ahead_is_not_counted_as_done() -> None:
    """Whenever the worker dies, the journal's records are those below the position that stands beside them."""
    broker = Broker()
    machine = SowMachine(shard_of(), SowOutput("prices", 0, 1, "", 1), nothing)
    records = [Arrived(n, T, b"k%d" % n, b"{}") for n in range(COUNT)]
    asyncio.run(run(machine, broker, lambda: broker.done == COUNT, records))
    held: dict[bytes, bytes | None] = {}
    for batch in broker.journaled:
        held.update(batch)
        restored = SowShard(machine.shard.settings)
        restored.restore((key, value) for key, value in held.items() if value is not None)
        (progress,) = [value for key, value in held.items() if key.startswith(b"\0p") and value is not None]
        assert b'"prices:0":%d' % len(restored.state.entries) in progress
    assert len(held) == COUNT + 2


@pytest.mark.slow
@pytest.mark.feature("S3", "C45", "S9")
def test_a_deletion_by_filter_leaves_others_their_turn_and_is_not_counted_as_done_before_it_is() -> None:
    """Updates go on meanwhile, later commands wait, and whoever takes over does it again."""
    broker = Broker()
    portions: list[int] = []

    class Watched(SowMachine):
        def continue_command(self) -> None:
            before = len(self.shard.state.entries)
            super().continue_command()
            portions.append(before - len(self.shard.state.entries))

    machine = Watched(shard_of(), SowOutput("prices", 0, 1, "", 1), nothing)
    records = [Arrived(n, T, b"k%d" % n, b'{"n": %d}' % n) for n in range(COUNT)]
    commands = [
        Arrived(0, T + 1, None, b'{"command": "sow_delete", "id": "d", "filter": "/n > 9"}'),
        Arrived(1, T + 1, None, b'{"command": "depth", "id": "e"}'),
    ]
    answers: list[bytes] = []
    send = broker.send

    async def sent(outputs: list[Any], *_: Any) -> list[asyncio.Future[None]]:
        answers.extend(one.value for one in outputs if dict(getattr(one, "headers", ())).get("lapse-kind") == b"answer")
        return await send(outputs)

    broker.send = sent  # type: ignore[method-assign]
    broker.ticks = 2
    asyncio.run(run(machine, broker, lambda: len(answers) == 2, records, commands))
    assert 0 < max(portions) <= 500
    assert len(portions) >= COUNT // 500 - 1
    deleted, depth = map(orjson.loads, answers)
    assert deleted["counts"]["removed"] == COUNT - 10
    assert depth["counts"]["records"] == 10
    # Each state that a crash could leave: the command is behind the position only once all that it means is gone.
    held: dict[bytes, bytes | None] = {}
    seen = set()
    for batch in broker.journaled:
        held.update(batch)
        (progress,) = [value for key, value in held.items() if key.startswith(b"\0p") and value is not None]
        position = orjson.loads(progress)[f"{COMMANDS.topic}:0"]
        left = sum(value is not None for key, value in held.items() if key.startswith(b"r"))
        seen.add((position > 0, left))
        assert position == 0 or left == 10
    assert (True, 10) in seen
    assert any(not done and 10 < left < COUNT for done, left in seen), "some portions were journaled before the last"


@pytest.mark.feature("S5", "C45")
def test_a_query_goes_on_while_its_last_batch_is_written_and_tells_each_record_once() -> None:
    broker = Broker()
    while_writing: list[int] = []

    class Watched(SowMachine):
        def deliver(self, now_ms: int) -> bool:
            before = len(self._step.deliveries)
            more = super().deliver(now_ms)
            if broker.happened[-1:] in (["send"], ["commit"]):  # begun, and not ended
                while_writing.append(len(self._step.deliveries) - before)
            return more

    machine = Watched(shard_of(), SowOutput("prices", 0, 1, "", 1), nothing)
    records = [Arrived(n, T, b"k%d" % n, b'{"n": %d}' % n) for n in range(COUNT)]
    commands = [Arrived(0, T + 1, None, b'{"command": "sow", "id": "q"}')]
    answer, answers = listen(broker)
    broker.ticks = 1
    asyncio.run(run(machine, broker, lambda: bool(answers), records, commands))
    assert orjson.loads(answers[0])["counts"]["records"] == COUNT
    assert answer[1:-1] == [b"k%d" % n for n in range(COUNT)]
    assert sum(while_writing) > 0


def listen(broker: Broker) -> tuple[list[bytes], list[bytes]]:
    """What goes out from now on: the keys of the deliveries' records, and answers."""
    delivered: list[bytes] = []
    answers: list[bytes] = []
    send = broker.send

    async def sent(outputs: list[Any], *_: Any) -> list[asyncio.Future[None]]:
        for one in outputs:
            if isinstance(one, Packed) and one.topic == "lapse.prices.deliveries":
                delivered.extend(record[1 : 1 + record[0] // 2] for record in one.records)
            elif isinstance(one, Output) and dict(one.headers).get("lapse-kind") == b"answer":
                answers.append(one.value or b"")
        return await send(outputs)

    broker.send = sent  # type: ignore[method-assign]
    return delivered, answers


@pytest.mark.feature("S5", "S7", "C45")
@pytest.mark.parametrize("while_writing", [True, False])
def test_an_update_that_comes_during_a_query_is_reported_before_the_rest_of_it(while_writing: bool) -> None:
    """Nobody who waits for updates waits until a query of all records is through, or a step full of it is written."""
    broker = Broker()
    before_it: list[int] = []
    parts: list[int] = []

    class Watched(SowMachine):
        def deliver(self, now_ms: int) -> bool:
            before = len(self._step.deliveries)
            more = super().deliver(now_ms)
            parts.append(len(self._step.deliveries) - before)
            if more and answer and broker.writing is while_writing and not before_it:
                before_it.append(sum(parts))
                assert broker.runner is not None
                broker.runner.receive(SOURCE, [Arrived(COUNT, T + 2, b"new", b'{"n": -1}')])
            return more

    machine = Watched(shard_of(), SowOutput("prices", 0, 1, "", 1), nothing)
    records = [Arrived(n, T, b"k%d" % n, b'{"n": %d}' % n) for n in range(COUNT)]
    subscribe: dict[str, object] = {"command": "subscribe", "id": "s", "subscription": "s", "filter": "/n < 0"}
    subscribe["heartbeat_timeout_ms"] = 1 << 50  # the harness is years behind the clock
    commands = [
        Arrived(0, T + 1, None, orjson.dumps(subscribe)),
        Arrived(1, T + 1, None, b'{"command": "sow", "id": "q"}'),
    ]
    answer, answers = listen(broker)
    broker.ticks = 2
    asyncio.run(run(machine, broker, lambda: len(answers) == 2, records, commands))
    assert answer.count(b"new") == 1
    assert sorted(answer[1:-1]) == sorted([b"new", *(b"k%d" % n for n in range(COUNT))])
    assert answer.index(b"new") - before_it[0] <= 1, "the query's begin was told before; nothing else was not"


@pytest.mark.feature("S5")
def test_a_query_that_comes_while_the_last_part_of_another_is_written_is_answered_at_once() -> None:
    broker = Broker()

    class Watched(SowMachine):
        def deliver(self, now_ms: int) -> bool:
            asked = bool(self._queries)
            more = super().deliver(now_ms)
            if asked and not more and broker.writing and broker.ticks == 1:
                assert broker.runner is not None
                broker.runner.receive(COMMANDS, [Arrived(1, T + 1, None, b'{"command": "sow", "id": "r"}')])
                broker.ticks = 2
            return more

    machine = Watched(shard_of(), SowOutput("prices", 0, 1, "", 1), nothing)
    records = [Arrived(n, T, b"k%d" % n, b'{"n": %d}' % n) for n in range(COUNT)]
    _, answers = listen(broker)
    broker.ticks = 1
    asking = [Arrived(0, T + 1, None, b'{"command": "sow", "id": "q", "top_n": 100}')]
    asyncio.run(run(machine, broker, lambda: len(answers) == 2, records, asking))
    assert [orjson.loads(answer)["counts"]["records"] for answer in answers] == [100, COUNT]


@pytest.mark.slow
@pytest.mark.feature("L10", "Q16")
@pytest.mark.parametrize(("leased", "stood_still"), [(True, False), (True, True), (False, False)])
def test_a_delivery_that_kafka_does_not_take_ends_the_process(
    leased: bool, stood_still: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not an answer; and not one that Kafka took while the process stood still, whose answer is read only now."""
    ended: list[str] = []
    monkeypatch.setattr(module, "end_process", lambda why, error=None: ended.append(why))
    machine = SowMachine(shard_of(100), SowOutput("prices", 0, 1, "", 1), nothing)
    machine.delivery_patience_s = 0.6

    async def deliver() -> None:
        loop = asyncio.get_running_loop()
        delivery: asyncio.Future[Any] = loop.create_future()

        class Silent:
            async def send(self, outputs: Sequence[Any], *_: object) -> list[asyncio.Future[Any]]:
                return [delivery]

        silent: Any = Silent()
        decided = time.monotonic() if leased else None
        await DeliveriesUnderWay("prices, partition 0", machine, silent, {}).send(1, [], decided)
        if stood_still:
            time.sleep(1.2)  # noqa: ASYNC251  # that is what it is about
            loop.call_later(0.1, delivery.set_result, None)
        await asyncio.sleep(1)

    asyncio.run(deliver())
    assert bool(ended) == (leased and not stood_still)


@pytest.mark.feature("Q16", "C1")
@pytest.mark.parametrize("taken_over", [False, True])
def test_a_lost_shard_does_nothing_beside_its_steps_any_more(taken_over: bool) -> None:
    """Its refused letters and its calls of `on_expire` are its next owner's; other shards go on."""
    broker = Broker()
    lost: list[int] = []
    commit = broker.commit

    async def fenced(*shard_and_items: Any) -> int:
        if broker.happened.count("commit") == taken_over:
            raise Fenced("another worker has taken the shard over")
        return await commit(*shard_and_items)

    broker.commit = fenced  # type: ignore[method-assign]
    broker.lose = lambda partition, _: lost.append(partition)  # type: ignore[attr-defined]
    machine = SowMachine(shard_of(), SowOutput("prices", 0, 1, "", 1), nothing)

    async def lose() -> None:
        runner = runner_of(machine, broker)
        broker.runner = runner
        if not taken_over:
            with pytest.raises(Fenced):
                await runner.start()
            assert (lost, runner._task) == ([], None), "who takes it over hears of it by the exception"
            return
        await runner.start()
        runner.receive(SOURCE, [Arrived(0, T, b"k", b"{}")])
        assert runner._task is not None
        await runner._task
        assert lost == [0]
        retrying = machine.retry._task
        assert retrying is not None
        await asyncio.gather(retrying, return_exceptions=True)
        assert retrying.cancelled()
        await runner.stop()

    asyncio.run(lose())


@pytest.mark.feature("X7")
def test_what_came_for_a_shard_that_is_never_started_waits_no_more() -> None:
    """Its own consumer may have brought records before its take-over ended. They counted among those of the worker."""
    broker = Broker()
    machine = SowMachine(shard_of(), SowOutput("prices", 0, 1, "", 1), nothing)

    async def end() -> None:
        runner = runner_of(machine, broker)
        runner.receive(SOURCE, [Arrived(0, T, b"k", bytes(10_000))])
        assert broker.waiting.count > 10_000
        runner.abandon()
        assert broker.waiting.count == 0

    asyncio.run(end())
