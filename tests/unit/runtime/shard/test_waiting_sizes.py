"""What waits for all shards of a worker together is bounded, however many there are (X7)."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from lapse.runtime.shard import saturation, waiting_commands, waiting_sizes
from lapse.runtime.shard.inbox import Inbox
from lapse.runtime.shard.waiting_sizes import WorkerBytes
from lapse.runtime.tp import TP

SHARDS = 20
RECORD_BYTES = 10_000


class Reader:
    """A consumer of a worker, which leaves out what shards cannot take."""

    def __init__(self) -> None:
        self.waiting = WorkerBytes()
        self.left_out: set[TP] = set()

    def received(self, reader: object, tp: TP, offset: int) -> None:
        """Nobody asks."""

    def saturate(self, reader: object, tp: TP) -> None:
        self.left_out.add(tp)

    def fetch_caught_up(self, reader: object, tp: TP | None = None) -> None:
        self.left_out -= {TP(f"topic{reader.name}", 0), TP("commands", reader.name)}  # type: ignore[attr-defined]

    def forget(self, reader: object) -> None:
        """Nobody asks."""


class Named(Inbox):
    name: int


def records(first: int, count: int) -> list[Any]:
    return [SimpleNamespace(offset=first + at, timestamp=1, key=None, value=bytes(RECORD_BYTES)) for at in range(count)]


@pytest.mark.feature("X7", "C60", "Q13")
def test_shards_without_room_keep_little_of_a_backlog_once_all_of_them_keep_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of a thousand queues with a target depth kept 64 MB. The first ones may, and all go on later."""
    monkeypatch.setattr(waiting_sizes, "_WORKER_BYTES", 3_000_000)
    monkeypatch.setattr(saturation, "_SATURATED_BYTES", 1_000_000)
    monkeypatch.setattr(saturation, "_LEAST_SATURATED_BYTES", 50_000)
    reader: Any = Reader()
    room = 0
    machine: Any = SimpleNamespace(
        merged_by_time=False,
        unfinished=None,
        waits_for_ends=None,
        room_for=lambda topic, partition: room,
        arrive=lambda topic, partition, some: len(some),
        note_take=lambda ends: None,
        under_way=SimpleNamespace(is_suspect=lambda *_: False, noted=lambda *_: nullcontext()),
    )
    shards: list[Named] = []
    for number in range(SHARDS):
        source = TP(f"topic{number}", 0)
        shard = Named(
            reader, machine, TP("commands", number), {TP("commands", number): 0, source: 0}, None, lambda: None
        )
        shard.name = number
        shards.append(shard)
    read = [0] * SHARDS
    for number in [at for _ in range(50) for at in range(SHARDS)]:
        source = TP(f"topic{number}", 0)
        if source not in reader.left_out:
            shards[number].receive(source, records(read[number], 5))
            read[number] += 5
    assert len(reader.left_out) == SHARDS
    assert reader.waiting.count < 4_200_000
    room = 10**6
    for shard in shards[1:]:
        shard.fetch_caught_up(shard.take_messages(1_000))
    assert reader.left_out == {TP("topic0", 0)}
    assert reader.waiting.count < 1_100_000
    shards[0].close()
    assert reader.waiting.count == 0


@pytest.mark.feature("X7", "C1")
def test_commands_that_wait_count_for_all_shards_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of many shards kept 32 MiB of commands that waited for messages."""
    monkeypatch.setattr(waiting_sizes, "_WORKER_BYTES", 3_000_000)
    monkeypatch.setattr(waiting_commands, "MOST_BYTES", 1_000_000)
    monkeypatch.setattr(waiting_commands, "_LEAST_BYTES", 50_000)
    reader: Any = Reader()
    machine: Any = SimpleNamespace(
        merged_by_time=False,
        unfinished=None,
        waits_for_ends=False,
        waits_for_updates=False,
        step_bytes=0,
        waits_for_arrivals=lambda at_ms: False,
        command=lambda record: None,
        under_way=SimpleNamespace(
            is_suspect=lambda *_: False, is_set_aside=lambda *_: False, noted=lambda *_: nullcontext()
        ),
    )
    shards: list[Named] = []
    for number in range(SHARDS):
        commands = TP("commands", number)
        shard = Named(reader, machine, commands, {commands: 0}, None, lambda: None, catch_up=0)
        shard.name = number
        shards.append(shard)
    read = [0] * SHARDS
    for number in [at for _ in range(50) for at in range(SHARDS)]:
        commands = TP("commands", number)
        if commands not in reader.left_out:
            shards[number].receive(commands, records(read[number], 5))
            read[number] += 5
    assert len(reader.left_out) == SHARDS
    assert reader.waiting.count < 4_200_000
    for shard in shards[1:]:
        shard.take_commands(1_000, None, lambda record: None)
        shard.fetch_caught_up(0)
    assert reader.left_out == {TP("commands", 0)}
    assert reader.waiting.count < 1_100_000
    shards[0].close()
    assert reader.waiting.count == 0
