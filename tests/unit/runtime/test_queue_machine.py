"""A queue shard's machine, without a broker: commands that wait for payloads keep their place in time (C1, C2, C40)."""

import asyncio
import json
from dataclasses import dataclass, field

import pytest

from lapse.core.queue.journal import restore
from lapse.core.queue.settings import Leasing, QueueSettings
from lapse.runtime.queue_machine import QueueMachine
from lapse.runtime.queue_output import QueueOutput


@dataclass
class Record:
    offset: int = 0
    timestamp: int = 1_000
    key: bytes | None = None
    value: bytes | None = b"{}"
    headers: list = field(default_factory=list)


class Payloads:
    """The log behind the messages, of which some records are lost."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}

    def keep(self, topic, partition, records) -> None:
        self.records.update({record.offset: record for record in records})

    async def get(self, topic, partition, offsets, used=True) -> list[Record | None]:
        return [self.records.get(offset) for offset in offsets]


def machine(count: int) -> QueueMachine:
    settings = QueueSettings(name="orders", leasing=Leasing.STRICT, lease_ms=100, dead_letter_topic="dlq.orders")
    one = QueueMachine(settings, restore([]), 1, Payloads(), QueueOutput("orders", 0, 1, "dlq.orders", 1), "orders")
    one.take_over(1_000)
    one.arrive("orders", 0, [Record(offset, value=b'{"f": %d}' % (offset % 2)) for offset in range(count)])
    return one


def command(one: QueueMachine, at_ms: int, name: str, **fields) -> None:
    body = {"id": f"{name}-{at_ms}", "command": name, "subscription": "inky", **fields}
    one.command(Record(timestamp=at_ms, value=json.dumps(body).encode()))


def finish(one: QueueMachine):
    return asyncio.run(one.finish())


@pytest.mark.feature("C1", "C2", "Q8")
def test_a_settlement_by_filter_counts_as_of_its_own_instant_whatever_comes_behind_it_in_the_same_step() -> None:
    one = machine(3)
    command(one, 1_000, "subscribe", max_backlog=5)
    one.deliver(1_000)
    finish(one)
    command(one, 1_099, "acknowledge", filter="/f = 1")
    command(one, 1_500, "heartbeat")
    one.advance(1_600)
    assert one.deliver(1_600), "what waits comes before what is delivered"
    finish(one)
    assert one.shard.depth()["depth"] == 2
    one.advance(1_600)
    one.deliver(1_600)
    effects = finish(one)
    assert sum(len(some.rows) for some in effects.after if hasattr(some, "rows")) == 2


@pytest.mark.feature("C40", "Q14")
def test_a_record_that_is_lost_leaves_when_a_filter_would_have_read_it() -> None:
    one = machine(4)
    del one._payloads.records[1]
    command(one, 1_000, "subscribe", max_backlog=5, filter="/f = 1")
    while one.deliver(1_000):
        finish(one)
    finish(one)
    assert one.shard.depth() == {"available": 2, "leased": 1, "delayed": 0, "scheduled": 0, "depth": 3}
