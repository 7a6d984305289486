"""A queue shard's runner takes messages in while a step is written; each delivery stays behind its own journal."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from aiokafka.structs import RecordMetadata
from faust.types import TP

from lapse.core.queue.journal.restored import restore
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.shard import QueueShard
from lapse.core.shard.changelog import progress_key
from lapse.protocol import topic as names
from lapse.runtime.queue.in_flight import QueueStepInFlight
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.shard.effects import Effects
from lapse.runtime.shard.sent_log import INSTANTS, PROGRESS_KEY
from support.kafka.noted_broker import Broker, Payloads, run, runner_of
from support.kafka.packed import outputs_of
from unit.core.sow.make import Arrived, T

_COUNT = 45_000
_SUBSCRIBE = {"id": "s", "command": "subscribe", "subscription": "inky", "max_backlog": _COUNT}


class QueueBroker(Broker):
    """Notes what was handed out, and how many leases the journal knew of then."""

    def __init__(self, settings: QueueSettings) -> None:
        super().__init__()
        self.settings = settings
        self.delivered: list[int] = []
        self.leased: list[tuple[int, int]] = []

    async def send(self, outputs: list[Any], *leases: Any) -> list[asyncio.Future[RecordMetadata]]:
        topic = names.deliveries("prices")
        found = [orjson.loads(one.value or b"-1") for one in outputs_of(outputs) if one.topic == topic and one.key]
        self.delivered += found
        if found:
            whole = [(key, value) for key, value in self.journal.items() if value is not None]
            journaled = QueueShard(self.settings, restore(whole).state)
            self.leased.append((len(self.delivered), journaled.depth()["leased"]))
        return await super().send(outputs, *leases)


@pytest.mark.slow
@pytest.mark.feature("Q16", "D4", "C55", "X10")
def test_messages_are_taken_in_while_a_step_is_written_and_each_delivery_is_behind_its_journal() -> None:
    settings = QueueSettings(name="prices", lease_ms=60_000, dead_letter_topic="dlq.prices")
    broker, taken_while_writing = QueueBroker(settings), 0
    by_clock: list[dict[str, int]] = []

    class Watched(QueueMachine):
        def arrive(self, topic: str, partition: int, records: Any) -> int:
            nonlocal taken_while_writing
            taken = super().arrive(topic, partition, records)
            taken_while_writing += taken if broker.writing else 0
            return taken

        def _write(self, flight: QueueStepInFlight, effects: Effects) -> None:
            super()._write(flight, effects)
            if effects.journal:
                by_clock.append(effects.instants)

    payloads: Any = Payloads()
    output = QueueOutput("prices", 0, 1, "dlq.prices", 1)
    machine = Watched(settings, restore([]), 1, payloads, output, "prices")
    records = [Arrived(n, T, b"k", b"%d" % n) for n in range(_COUNT)]
    subscribe = [Arrived(0, T, None, orjson.dumps(_SUBSCRIBE))]
    broker.ticks = 1
    asyncio.run(run(machine, broker, lambda: len(broker.delivered) == _COUNT, records, subscribe))
    assert broker.delivered == list(range(_COUNT)), "each once, in order"
    assert taken_while_writing >= machine.step_records, "the next step is prepared"
    assert all(leased >= sent for sent, leased in broker.leased), broker.leased
    assert "".join(one[0] for one in broker.happened if one.startswith("commit")) == "cc" * len(broker.journaled)
    progress = [
        orjson.loads(value or b"") for items in broker.journaled for key, value in items if key == progress_key(1)
    ]
    instants = [one[PROGRESS_KEY].get(INSTANTS) for one in progress if PROGRESS_KEY in one]
    assert [one for one in by_clock if one not in instants] == [], "a step's instants are in its own journal"
    whole = [(key, value) for key, value in broker.journal.items() if value is not None]
    assert QueueShard(settings, restore(whole).state).depth() == machine.shard.depth()
    assert broker.done == _COUNT


@pytest.mark.feature("Q16")
def test_a_small_step_costs_no_task_and_what_comes_meanwhile_is_in_the_next_one() -> None:
    settings = QueueSettings(name="prices", lease_ms=60_000)
    broker, writers = QueueBroker(settings), list[str]()
    commit = broker.commit

    async def noted(*shard_and_items: Any) -> int:
        task = asyncio.current_task()
        writers.append("" if task is None else task.get_name())
        written = asyncio.ensure_future(commit(*shard_and_items))
        if len(broker.delivered) == 1 and broker.runner is not None and not came:
            came.append(1)
            broker.runner.receive(TP("prices", 0), [Arrived(1, T, b"k", b"1")])
        return await written

    came: list[int] = []
    broker.commit = noted  # type: ignore[method-assign]
    payloads: Any = Payloads()
    machine = QueueMachine(settings, restore([]), 1, payloads, QueueOutput("prices", 0, 1, "", 1), "prices")

    async def live() -> None:
        runner = broker.runner = runner_of(machine, broker)
        await runner.start()
        runner.receive(TP("lapse.prices.commands", 0), [Arrived(0, T, None, orjson.dumps(_SUBSCRIBE))])
        runner.receive(TP("prices", 0), [Arrived(0, T, b"k", b"0")])
        async with asyncio.timeout(60):
            while not (broker.delivered and runner._idle.is_set()):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            settled = Arrived(1, T, None, b'{"id": "d", "command": "acknowledge", "bookmarks": ["prices:0:0"]}')
            runner.receive(TP("lapse.prices.commands", 0), [settled])
            while len(broker.delivered) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await runner.stop()

    asyncio.run(live())
    assert broker.delivered == [0, 1]
    assert all(leased >= sent - 1 for sent, leased in broker.leased), "journaled before: the first one is settled"
    assert writers.count("shard prices-0") == 1, writers
    assert writers[-1] != "shard prices-0", "a busy shard takes in messages meanwhile"


@pytest.mark.feature("Q13", "C16")
@pytest.mark.parametrize("adopted", [False, True], ids=["at take-over", "later"])
def test_a_shard_knows_what_it_reads_before_a_record_has_come(adopted: bool) -> None:
    """A command may name a message of a partition of which the depth lets nothing in."""

    async def begun() -> QueueMachine:
        payloads: Any = Payloads()
        settings = QueueSettings(name="prices", target_depth=1)
        output = QueueOutput("prices", 0, 1, "dlq.prices", 1)
        machine = QueueMachine(settings, restore([]), 1, payloads, output, "prices")
        runner = runner_of(machine, Broker())
        await runner.start()
        if adopted:
            runner.adopt(TP("other", 0), "an id")
        await runner.stop()
        return machine

    sources = asyncio.run(begun()).shard.state.sources
    assert [one.topic for one in sources] == ["prices", *(["other"] if adopted else [])]
