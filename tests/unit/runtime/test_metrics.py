"""Figures for Prometheus need no broker, but for the age of the oldest message (Q15, C52)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaTimeoutError

from lapse.core.queue.journal.restored import restore
from lapse.core.queue.settings import QueueSettings
from lapse.runtime import metrics
from lapse.runtime.health import Readiness
from lapse.runtime.metrics import Figures
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.shard.payload import PayloadWindow
from lapse.runtime.timers.clock import WorkerClock
from unit.runtime.bad_input import ARRIVAL_MS, Input


class Silent:
    """A log whose leader does not answer."""

    async def read(self, topic: str, partition: int, first: int, last: int) -> None:
        if partition:
            raise KafkaTimeoutError("no leader")
        await asyncio.Event().wait()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    running = asyncio.new_event_loop()
    thread = threading.Thread(target=running.run_forever)
    thread.start()
    yield running
    running.call_soon_threadsafe(running.stop)
    thread.join()
    running.close()


def machine(partition: int) -> QueueMachine:
    settings = QueueSettings(name="orders", partition=partition, shards=3)
    log: Any = Silent()
    output = QueueOutput("orders", partition, 1, "", 0)
    made = QueueMachine(settings, restore([]), 1, PayloadWindow(log, 0, log), output, "orders")
    if partition < 2:
        made.arrive("orders", partition, [Input(0, b"k")])
    return made


@pytest.mark.feature("Q15", "C52")
def test_a_partition_without_a_leader_costs_only_the_age_of_its_oldest_message(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_OLDEST_WITHIN_S", 0.2)
    clock = WorkerClock(1_000)
    clock.measured(0.0, 0.0, ARRIVAL_MS)
    runners = {partition: SimpleNamespace(machine=machine(partition)) for partition in range(3)}
    rules = SimpleNamespace(current=None)
    entity: Any = SimpleNamespace(name="orders", runners=runners, rules=rules, missing=[])
    ready = Readiness(True, 3, 3, (), {}, None)
    figures = Figures({"orders": entity}, clock, lambda: ready, loop)
    found = {one.name: one.samples for one in figures.collect()}
    available = {
        one.labels["shard"]: one.value for one in found["lapse_queue_messages"] if one.labels["state"] == "available"
    }
    assert available == {"0": 1, "1": 1, "2": 0}
    ages = {one.labels["shard"]: one.value for one in found["lapse_queue_oldest_age_seconds"]}
    assert ages == {"2": 0}, "an unknown age is left out"
