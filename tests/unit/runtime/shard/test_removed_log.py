"""What Kafka removes while a worker runs is told as soon as it is seen; what there is room for is taken first (C80)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from faust.types import TP

from lapse.runtime.shard.inbox import Inbox
from lapse.runtime.shard.removed_log import RemovedLog
from lapse.runtime.shard.waiting_sizes import WorkerBytes
from unit.core.queue.compared.written import published

ORDERS, COMMANDS, RETIRED = TP("orders", 0), TP("lapse.orders.commands", 0), TP("retired", 0)


class Depth:
    """A queue's machine as far as room, and what it is told, go."""

    merged_by_time = False
    unfinished = None
    waits_for_ends = False

    def __init__(self, room: int) -> None:
        self.room = room
        self.begun: list[tuple[TP, int]] = []
        self.unread: list[tuple[TP, list[tuple[int, int]]]] = []

    def room_for(self, topic: str, partition: int) -> int:
        return self.room

    def missed(self, tp: TP, first: int, last: int) -> list[tuple[int, int]]:
        return [(first, 4), (6, last)] if last > 5 else [(first, last)]

    def log_begins(self, tp: TP, begin_offset: int, now_ms: int) -> bool:
        self.begun.append((tp, begin_offset))
        return True

    def report_unread(self, tp: TP, ranges: list[tuple[int, int]], now_ms: int) -> None:
        self.unread.append((tp, ranges))


class Reader:
    """Notes where a shard wants to read on."""

    def __init__(self) -> None:
        self.next: dict[TP, int] = {}
        self.position = 0
        self.waiting = WorkerBytes()

    def received(self, reader: object, tp: TP, offset: int) -> None:
        self.next[tp] = offset

    def fetch_caught_up(self, reader: object, tp: TP | None = None) -> None:
        pass

    async def next_offset(self, tp: TP) -> int:
        return self.position


def parts(room: int, position: int) -> tuple[Any, Any, Inbox, RemovedLog]:
    machine: Any = Depth(room)
    reader: Any = Reader()
    inbox = Inbox(reader, machine, COMMANDS, {ORDERS: position, COMMANDS: 0}, None, lambda: None)
    unused: Any = None
    return machine, reader, inbox, RemovedLog("q", machine, inbox, unused, lambda: None, [])


@pytest.mark.feature("C80")
@pytest.mark.parametrize("begins_at", [8, 10, 14])
def test_what_waits_in_memory_and_what_was_not_fetched_is_reported_and_passed_over(begins_at: int) -> None:
    machine, reader, inbox, removed = parts(room=0, position=2)
    inbox.receive(ORDERS, [published(at, timestamp=0) for at in range(2, 6)])
    inbox.receive(ORDERS, [published(at, timestamp=0) for at in range(6, 10)])
    removed.begins(ORDERS, begins_at)
    removed.report(0)
    removed.begins(ORDERS, begins_at)
    removed.report(0)
    assert machine.unread == [(ORDERS, [(2, 4), (6, begins_at - 1)])]
    assert machine.begun == [(ORDERS, begins_at)]
    assert inbox.processed[ORDERS] == begins_at
    assert reader.next[ORDERS] == inbox.received[ORDERS] == max(begins_at, 10)
    assert inbox.has_messages(1) is False
    machine.room = 1
    assert inbox.has_messages(1) is (begins_at < 10)


@pytest.mark.feature("C80", "C40")
def test_what_the_machine_has_room_for_is_taken_first_and_nothing_is_reported_it() -> None:
    machine, _, inbox, removed = parts(room=5, position=2)
    inbox.receive(ORDERS, [published(at, timestamp=0) for at in range(2, 6)])
    removed.begins(ORDERS, 4)
    removed.report(0)
    assert (machine.unread, machine.begun) == ([], [])
    assert removed.is_left
    inbox.processed[ORDERS] = 6
    removed.report(0)
    assert (machine.unread, machine.begun) == ([], [(ORDERS, 4)])
    assert not removed.is_left


@pytest.mark.feature("C80", "C42")
def test_of_a_log_that_was_never_read_or_is_read_no_longer_nothing_is_reported() -> None:
    machine, _, inbox, removed = parts(room=0, position=0)
    removed.begins(ORDERS, 4)
    removed.begins(RETIRED, 4)
    removed.is_deleted(RETIRED)
    removed.report(0)
    removed.is_deleted(RETIRED)
    removed.report(0)
    assert machine.unread == []
    assert [tp for tp, _ in machine.begun] == [ORDERS, RETIRED]
    assert inbox.received[ORDERS] == 0


@pytest.mark.feature("C80", "C41")
@pytest.mark.parametrize(("position", "expected"), [(8, []), (7, [(ORDERS, [(6, 7)])])])
def test_ends_of_transactions_behind_the_last_message_are_no_messages(position: int, expected: list[Any]) -> None:
    machine, reader, inbox, removed = parts(room=5, position=5)
    reader.position = position
    asyncio.run(inbox.pass_markers(ORDERS, 8))
    removed.begins(ORDERS, 8)
    removed.report(0)
    assert machine.unread == expected
    assert inbox.received[ORDERS] == inbox.processed[ORDERS] == reader.next[ORDERS] == 8
