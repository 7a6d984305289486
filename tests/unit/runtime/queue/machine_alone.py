"""A queue shard's machine without a broker: the log behind it, and who takes its letters."""

import json
from dataclasses import dataclass, field
from typing import Any

from lapse.core.lifetime import Expiration
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.settings import Leasing, QueueSettings
from lapse.core.queue.step import Messages, Removal
from lapse.protocol import event
from lapse.runtime.kafka.output import Output
from lapse.runtime.letters.refusal import Refusal
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.timers.clock import BY_THE_BROKER
from lapse.runtime.tp import TP
from support.kafka.packed import outputs_of
from support.suite.event_loop import finished


@dataclass
class Record:
    offset: int = 0
    timestamp: int = 1_000
    key: bytes | None = None
    value: bytes | None = b"{}"
    headers: list = field(default_factory=list)
    timestamp_type: int = BY_THE_BROKER


class Payloads:
    """The log behind the messages, of which some records are lost."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}
        self.log = self
        self.has_leader = True
        self.asked = 0

    async def offset_at(self, tps, instant_ms) -> dict[TP, int]:
        self.asked += 1
        if not self.has_leader:
            raise TimeoutError
        later = [one.offset for one in self.records.values() if one.timestamp >= instant_ms]
        return dict.fromkeys(tps, min(later, default=len(self.records)))

    def keep(self, topic, partition, records) -> None:
        self.records.update({record.offset: record for record in records})

    async def get(self, topic, partition, offsets, used=True) -> list[Record | None]:
        return [self.records.get(offset) for offset in offsets]

    async def one(self, topic, partition, offset) -> Record | None:
        return self.records.get(offset)

    async def ends(self, tps, instant_ms=None) -> dict[TP, int]:
        return dict.fromkeys(tps, len(self.records) if instant_ms is None else 0)

    async def begins(self, tps) -> dict[TP, int]:
        return dict.fromkeys(tps, 0)

    async def read(self, topic, partition, first, last) -> list[Record]:
        return [self.records[offset] for offset in range(first, last + 1) if offset in self.records]


def machine(count: int, leasing: Leasing = Leasing.STRICT) -> QueueMachine:
    settings = QueueSettings(name="orders", leasing=leasing, lease_ms=100, dead_letter_topic="dlq.orders")
    one = QueueMachine(settings, restore([]), 1, Payloads(), QueueOutput("orders", 0, 1, "dlq.orders", 1), "orders")
    one.take_over(1_000)
    one.arrive("orders", 0, [Record(offset, value=b'{"f": %d}' % (offset % 2)) for offset in range(count)])
    return one


def command(one: QueueMachine, at_ms: int, name: str, **fields) -> None:
    body = {"id": f"{name}-{at_ms}", "command": name, "subscription": "inky", **fields}
    one.command(Record(timestamp=at_ms, value=json.dumps(body).encode()))


class Letters:
    """A broker that takes letters, but for those that are too large."""

    def __init__(self, most_bytes: int = 1 << 20) -> None:
        self.most_bytes = most_bytes
        self.taken: list[Output] = []

    async def __call__(self, letters) -> dict[int, Refusal]:
        letters = outputs_of(letters)
        refused = {
            at: Refusal("too large") for at, one in enumerate(letters) if len(one.value or b"") > self.most_bytes
        }
        self.taken += [one for at, one in enumerate(letters) if at not in refused]
        return refused


def finish(one: QueueMachine, letters: Letters | None = None):
    return finished(one.finish(letters or Letters()))


def emitted(effects) -> list[tuple[str, list[str]]]:
    events = [event.decode(one.value) for one in effects.before if isinstance(one, Output)]
    return [(one.event, [str(some) for some in one.messages]) for one in events]


def crowded(count: int, **headers) -> QueueMachine:
    settings = QueueSettings(
        name="orders",
        leasing=Leasing.STRICT,
        lease_ms=100,
        dead_letter_topic="dlq.orders",
        expiration=Expiration(enabled=True),
    )
    one = QueueMachine(settings, restore([]), 1, Payloads(), QueueOutput("orders", 0, 1, "dlq.orders", 1), "orders")
    one.take_over(1_000)
    stated = [(name, b"%d" % value) for name, value in headers.items()]
    one.arrive("orders", 0, [Record(offset, headers=stated) for offset in range(count)])
    return one


def answered(one: QueueMachine, at_ms: int, name: str, **fields) -> dict:
    command(one, at_ms, name, answer="all", **fields)
    effects = finish(one)
    while one.unfinished is not None:
        one.continue_command()
        effects = finish(one)
    return json.loads(outputs_of(effects.after)[-1].value)


def live(one: QueueMachine) -> list[int]:
    return [queued.offset for queued in one.shard.peek(0, 100)]


def note_letters(machine: QueueMachine) -> list[int]:
    """Note how many letters a machine makes at once, from now on, in a list that grows."""
    made: list[int] = []
    make = machine._output.letters

    def letters(removal: Removal, messages: Messages, records: Any) -> Any:
        made.append(len(messages))
        return make(removal, messages, records)

    machine._output.letters = letters  # type: ignore[method-assign]
    return made
