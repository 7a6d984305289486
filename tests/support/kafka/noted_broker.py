"""A fake of Kafka for a shard's runner, for tests of the order in which a step's effects happen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from aiokafka.structs import RecordMetadata
from faust.types import TP

from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.shard.machine import Machine
from lapse.runtime.shard.runner import Runner
from lapse.runtime.shard.step_turns import StepTurns
from lapse.runtime.shard.taken_over import TakenOver
from lapse.runtime.shard.waiting_sizes import WorkerBytes
from lapse.runtime.timers.clock import WorkerClock
from lapse.runtime.topics.topic_id import KnownTopics
from lapse.runtime.watch import Watch
from unit.core.sow.make import Arrived, T

SOURCE, COMMANDS = TP("prices", 0), TP("lapse.prices.commands", 0)
DELIVERIES = TP("lapse.prices.deliveries", 0)
COUNT = 6_000


class Payloads:
    """A fake of the log that holds the messages' payloads."""

    gone: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.records: dict[int, Arrived] = {}

    def keep(self, topic: str, partition: int, records: Any) -> None:
        self.records.update({record.offset: record for record in records})

    async def get(self, topic: str, partition: int, offsets: list[int], used: bool = True) -> list[Arrived | None]:
        return [self.records.get(offset) for offset in offsets]


class Broker:
    """A fake of Kafka for the runner: every write takes a while, and all that happens is noted in order."""

    last_timestamp_ms = None

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.journal: dict[bytes, bytes | None] = {}
        self.journaled: list[list[tuple[bytes, bytes | None]]] = []
        self.arrived_while_writing = 0
        self.writing = False
        self.done = self.ticks = 0
        self.runner: Runner | None = None
        self.waiting = WorkerBytes()

    async def send(self, outputs: list[Any], *_: Any) -> list[asyncio.Future[RecordMetadata]]:
        self.happened.append("send")
        return [asyncio.ensure_future(self._sent())]

    async def commit(self, partition: int, epoch: int, ahead: list[Any], items: list[Any]) -> int:
        self.happened.append("commit")
        await self._write("committed")
        self.journaled.append([*ahead, *items])
        self.journal.update([*ahead, *items])
        return sum(len(key) + len(value or b"") for key, value in (*ahead, *items))

    async def _sent(self) -> RecordMetadata:
        await self._write("sent")
        return RecordMetadata(DELIVERIES.topic, 0, DELIVERIES, 0, -1, 0, 0)

    async def _write(self, what: str) -> None:
        self.writing = True
        for _ in range(30):
            await asyncio.sleep(0)
        self.writing = False
        self.happened.append(what)

    async def send_one(self, topic: str, partition: int, key: bytes, value: bytes) -> RecordMetadata:
        """Write a tick, which the runner gets back at once."""
        assert self.runner is not None
        self.runner.receive(COMMANDS, [Arrived(self.ticks, T + 100, key, value)])
        self.ticks += 1
        return RecordMetadata(topic, partition, COMMANDS, 0, -1, 0, 0)

    def received(self, *_: Any) -> None: ...
    def fetch_caught_up(self, *_: Any) -> None: ...
    def saturate(self, *_: Any) -> None: ...
    def forget(self, *_: Any) -> None: ...

    def finished(self, runner: Any, offsets: dict[TP, int]) -> None:
        self.done = offsets[SOURCE]

    async def next_offset(self, tp: TP) -> int:
        return COUNT

    async def existing_ends(self, tps: list[TP]) -> dict[TP, int]:
        return dict.fromkeys(tps, COUNT)


def runner_of(machine: Machine, broker: Broker, catch_up: int = 0) -> Runner:
    floors = {DELIVERIES.topic: 0} if isinstance(machine, QueueMachine) else {}
    anything: Any = broker
    clock = WorkerClock()
    clock.measured(time.monotonic(), time.monotonic(), int(time.time() * 1000))
    return Runner(
        entity="prices", partition=0, epoch=1, machine=machine, store=anything, producer=anything, letters=anything,
        reader=anything, log=anything, clock=clock, watch=Watch(60), commands_topic=COMMANDS.topic,
        found=TakenOver(
            positions={SOURCE: 0, COMMANDS: 0}, catch_up=catch_up, topics=KnownTopics({}, {}), floors=floors
        ),
        turns=StepTurns(),
    )  # fmt: skip


async def run(
    machine: Machine,
    broker: Broker,
    until: Callable[[], bool],
    records: list[Arrived],
    commands: Sequence[Arrived] = (),
    catch_up: int = 0,
) -> None:
    runner = runner_of(machine, broker, catch_up)
    broker.runner = runner
    await runner.start()
    runner.receive(SOURCE, records)
    if commands:
        runner.receive(COMMANDS, commands)
    async with asyncio.timeout(60):
        while not until():  # noqa: ASYNC110  # many places fulfil the condition
            await asyncio.sleep(0.001)
    await runner.stop()
