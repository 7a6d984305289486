"""Sweeps: what arrived before a purge is taken in before it, and what arrived later waits for it (C1, C37)."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from lapse.protocol.command import Command, CommandError, decode, encode
from lapse.runtime.shard import saturation, waiting_commands
from lapse.runtime.shard.gate import Gate
from lapse.runtime.shard.inbox import Inbox
from lapse.runtime.shard.intake import Intake
from lapse.runtime.shard.sweeps import Sweeps
from lapse.runtime.shard.under_way import NOTHING_NOTED
from lapse.runtime.shard.waiting_sizes import WorkerBytes
from lapse.runtime.tp import TP

pytestmark = pytest.mark.feature("C1", "C37")

COMMANDS, ORDERS = TP("commands", 0), TP("orders", 0)
NOBODY = SimpleNamespace(
    received=lambda *_: None, saturate=lambda *_: None, fetch_caught_up=lambda *_: None, waiting=WorkerBytes()
)


class Machine:
    """Notes in which order it gets what waits."""

    waits_for_updates = False
    under_way = NOTHING_NOTED
    step_bytes = 0
    most_at_once = 100

    def __init__(self, merged_by_time: bool = False) -> None:
        self.got: list[str] = []
        self.merged_by_time = merged_by_time
        self.unfinished: int | None = None
        self.waits_for_ends = False
        self.shard = SimpleNamespace(agreement=SimpleNamespace(checks_use=False))

    def room(self) -> int:
        return 100

    def note_take(self, ends: object) -> None:
        """Nothing to note."""

    def room_for(self, topic: str, partition: int) -> int:
        return 100 if self.unfinished is None else 0

    def waits_for_arrivals(self, at_ms: int) -> bool:
        return False

    def arrive(self, topic: str, partition: int, records: Sequence[Any]) -> int:
        self.got += [f"m{record.timestamp}" for record in records]
        return len(records)

    def command(self, record: Any) -> None:
        self.got.append(f"c{record.timestamp}")


def record(offset: int, at_ms: int, command: Command | None = None) -> Any:
    value = b"{}" if command is None else encode(command)
    return SimpleNamespace(offset=offset, timestamp=at_ms, value=value, key=None)


PURGE, BY_FILTER, OTHER = Command(command="purge"), Command(command="expire", filter="/n > 1"), Command(command="depth")
REWIND = Command(command="rewind", to="beginning")


def inbox_of(machine: Machine, catch_up: int) -> Inbox:
    return Inbox(NOBODY, machine, COMMANDS, {COMMANDS: 0, ORDERS: 0}, None, lambda: None, catch_up=catch_up)  # type: ignore[arg-type]


def step(inbox: Inbox, take_all: bool = False) -> None:
    inbox.take_messages(100)
    inbox.take_commands(100, None, lambda _: None, take_all)


def test_messages_and_sweeps_are_taken_in_by_their_instants() -> None:
    machine = Machine()
    inbox = inbox_of(machine, 3)
    inbox.receive(ORDERS, [record(at, at_ms) for at, at_ms in enumerate((1, 4, 6, 9))])
    inbox.take_messages(100)
    assert machine.got == [], "a sweep may be among the commands that were in the log"
    assert not inbox.has_messages(0)
    inbox.receive(COMMANDS, [record(0, 2, OTHER), record(1, 5, BY_FILTER), record(2, 7, PURGE)])
    for _ in range(3):
        step(inbox)
    assert machine.got == ["m1", "m4", "c2", "c5", "m6", "c7", "m9"]


@pytest.mark.feature("C63")
@pytest.mark.parametrize("whole", [PURGE, REWIND])
def test_only_purges_and_rewinds_hold_messages_back_once_the_log_is_read(whole: Command) -> None:
    """To read every command twice would cost more."""
    machine = Machine()
    inbox = inbox_of(machine, 0)
    inbox.receive(ORDERS, [record(0, 1), record(1, 6), record(2, 9)])
    inbox.receive(COMMANDS, [record(0, 5, BY_FILTER), record(1, 7, whole)])
    for _ in range(2):
        step(inbox)
    assert machine.got == ["m1", "m6", "c5", "c7", "m9"]


def test_while_no_message_can_be_taken_in_no_sweep_waits() -> None:
    machine = Machine()
    inbox = inbox_of(machine, 1)
    inbox.receive(ORDERS, [record(0, 1)])
    inbox.receive(COMMANDS, [record(0, 5, PURGE)])
    inbox.take_commands(100, None, lambda _: None, take_all=True)
    assert machine.got == ["c5"]


def test_what_is_withheld_counts_as_later_than_an_earlier_instant() -> None:
    """Else a command that waits for a scheduled message's place would wait for ever."""
    machine = Machine()
    inbox = inbox_of(machine, 1)
    inbox.receive(ORDERS, [record(0, 8)])
    inbox.receive(COMMANDS, [record(0, 5, PURGE)])
    coming = inbox.will_bring(ORDERS, 1, 4)
    with pytest.raises(StopIteration) as done:
        coming.send(None)
    assert done.value.value is False


@pytest.mark.parametrize(
    "value", [b"purge? no", b'{"command": "purge", "cls": 1}', b'{"purge": ' + b"[" * 9_999, encode(PURGE)[:9] + b"\0"]
)
def test_a_command_that_cannot_be_read_stops_nothing(value: bytes) -> None:
    """What carries it out says what is wrong."""
    Sweeps(1).note([SimpleNamespace(offset=0, timestamp=1, value=value)])
    with pytest.raises(CommandError):
        decode(value)


@pytest.mark.parametrize("takes_long", [False, True])
def test_commands_behind_a_sweep_come_behind_the_messages_that_waited_for_it(takes_long: bool) -> None:
    """Else an `expire` by filter would not find what was published between a purge and itself."""
    machine = Machine()
    inbox = inbox_of(machine, 0)
    inbox.receive(ORDERS, [record(0, 4), record(1, 6), record(2, 9)])
    inbox.receive(COMMANDS, [record(0, 5, PURGE), record(1, 8, BY_FILTER)])
    step(inbox)
    if takes_long:  # the purge goes on over several steps, and ends before a step's commands
        machine.unfinished = 0
        inbox.take_messages(100)
        machine.unfinished = None
        inbox.take_commands(100, None, lambda _: None)
    step(inbox)
    assert machine.got == ["m4", "c5", "m6", "m9", "c8"]


def test_a_producers_clock_that_goes_back_holds_nothing_up_in_one_order() -> None:
    """A message counts as of the one before it there, so the sweep does not wait for it."""
    machine = Machine(merged_by_time=True)
    inbox = inbox_of(machine, 0)
    inbox.receive(ORDERS, [record(0, 10)])
    step(inbox)
    inbox.receive(ORDERS, [record(1, 4)])
    inbox.receive(COMMANDS, [record(0, 5, PURGE)])
    step(inbox)
    step(inbox)
    assert machine.got == ["m10", "c5", "m4"]


def test_what_a_sweep_withholds_is_not_waited_for_before_it() -> None:
    """Brokers' clocks differ: a command before the sweep may bear a later stamp than a message behind it."""
    machine = Machine()
    inbox = inbox_of(machine, 2)
    inbox.receive(ORDERS, [record(0, 12)])
    inbox.receive(COMMANDS, [record(0, 10, OTHER), record(1, 5, PURGE)])
    assert not inbox.has_messages(0)
    assert not asyncio.run(inbox.will_bring(ORDERS, 1, 20))


@pytest.mark.feature("L11")
def test_while_a_queue_checks_that_nothing_is_left_commands_wait_for_its_logs_and_sweeps_do_not() -> None:
    asyncio.run(_checks_what_is_left())


@pytest.mark.feature("L11", "C40")
def test_a_check_that_nothing_is_left_goes_on_where_markers_end_the_commands_of_a_take_over() -> None:
    """Messages wait for the rest of the commands, which are markers only, and the command that is here for messages."""

    async def main() -> None:
        machine = Machine()
        reader = SimpleNamespace(**vars(NOBODY), next_offset=lambda tp: asyncio.sleep(0, 2))
        anything: Any = machine
        inbox = Inbox(reader, anything, COMMANDS, {COMMANDS: 0, ORDERS: 0}, None, lambda: None, catch_up=2)  # type: ignore[arg-type]
        log = SimpleNamespace(existing_ends=lambda _: asyncio.sleep(0, {ORDERS: 2}))
        gate = Gate(inbox, log, lambda: None)  # type: ignore[arg-type]
        intake = Intake(anything, inbox, gate, anything, SimpleNamespace(replaced=()), lambda _: None)  # type: ignore[arg-type]
        machine.waits_for_ends = True
        inbox.receive(ORDERS, [record(0, 4), record(1, 9)])
        inbox.receive(COMMANDS, [record(0, 5, OTHER)])
        for _ in range(3):
            await inbox.pass_markers(COMMANDS, 2)
            inbox.take_messages(100)
            await intake.commands(100)
        assert machine.got == ["m4", "m9", "c5"]
        assert inbox.processed[COMMANDS] == 2

    asyncio.run(main())


@pytest.mark.feature("C1", "C3")
def test_messages_that_wait_for_the_clock_keep_the_commands_behind_them() -> None:
    async def main() -> None:
        machine, waits = Machine(), [True, True, False]
        anything: Any = machine
        inbox = inbox_of(machine, 0)
        gate, timeline = Gate(inbox, anything, lambda: None), SimpleNamespace(note_take=lambda more: None)
        topics: Any = SimpleNamespace(replaced=())
        intake = Intake(anything, inbox, gate, timeline, topics, lambda _: None, lambda: waits.pop(0))  # type: ignore[arg-type]
        inbox.receive(ORDERS, [record(0, 1)])
        inbox.receive(COMMANDS, [record(0, 3, OTHER)])
        for _ in range(2):
            assert await intake.messages(100) + await intake.commands(100) == 0
            assert not intake.has_commands, "nothing to do until there is news"
            assert not intake.has_messages(0)
        await intake.messages(100)
        await intake.commands(100)
        assert machine.got == ["m1", "c3"]

    asyncio.run(main())


async def _checks_what_is_left() -> None:
    machine, ends = Machine(), {ORDERS: 2}
    reader = SimpleNamespace(**vars(NOBODY), next_offset=lambda tp: asyncio.sleep(0, inbox.received[tp]))
    anything: Any = machine
    inbox = Inbox(reader, anything, COMMANDS, {COMMANDS: 0, ORDERS: 0}, None, lambda: None, catch_up=0)  # type: ignore[arg-type]
    log = SimpleNamespace(existing_ends=lambda _: asyncio.sleep(0, ends))
    gate = Gate(inbox, log, lambda: None)  # type: ignore[arg-type]
    intake = Intake(anything, inbox, gate, anything, SimpleNamespace(replaced=()), lambda _: None)  # type: ignore[arg-type]
    machine.waits_for_ends = True  # it begins to check while it runs
    inbox.receive(COMMANDS, [record(0, 3, OTHER)])
    inbox.receive(ORDERS, [record(0, 1)])
    inbox.take_messages(100)
    await intake.commands(100)
    assert machine.got == ["m1"], "a message has still to be read"
    assert not intake.has_commands
    inbox.receive(ORDERS, [record(1, 9)])
    inbox.receive(COMMANDS, [record(1, 5, PURGE), record(2, 10, OTHER)])
    for _ in range(3):
        inbox.take_messages(100)
        await intake.commands(100)
    assert machine.got == ["m1", "c3", "c5", "m9", "c10"]


@pytest.mark.parametrize("command", [PURGE, BY_FILTER])
def test_a_sweep_waits_for_earlier_messages_that_are_here_and_not_for_those_that_come_meanwhile(command) -> None:
    """Else a producer whose clock is behind could hold it back for ever."""
    machine = Machine()
    inbox = inbox_of(machine, 0)
    inbox.receive(ORDERS, [record(at, 4) for at in range(101)])
    inbox.receive(COMMANDS, [record(0, 5, command)])
    step(inbox)
    assert machine.got == ["m4"] * 100
    inbox.receive(ORDERS, [record(101 + at, 4) for at in range(200)])
    step(inbox)
    assert machine.got == ["m4"] * 200 + ["c5"]


@pytest.mark.parametrize("catch_up", [0, 1_000])
def test_no_more_commands_are_fetched_while_very_many_wait_for_a_sweep(
    monkeypatch: pytest.MonkeyPatch, catch_up: int
) -> None:
    """Nothing waits for what is not fetched then, though not all is read that the log held at a take-over."""
    monkeypatch.setattr(waiting_commands, "MOST_BYTES", 20_000)
    machine, fetched = Machine(), []
    reader = SimpleNamespace(
        **vars(NOBODY)
        | {
            "saturate": lambda _, tp: fetched.append((tp, False)),
            "fetch_caught_up": lambda _, tp=None: fetched.append((tp, True)),
        }
    )
    inbox = Inbox(reader, machine, COMMANDS, {COMMANDS: 0, ORDERS: 0}, None, lambda: None, catch_up=catch_up)  # type: ignore[arg-type]
    inbox.receive(ORDERS, [record(at, 4) for at in range(250)])
    inbox.receive(COMMANDS, [record(0, 3, OTHER), record(1, 5, PURGE)])
    inbox.receive(COMMANDS, [record(2 + at, 6, OTHER) for at in range(60)])
    assert fetched == [(COMMANDS, False)]
    inbox.receive(COMMANDS, [record(62 + at, 6, OTHER) for at in range(60)])
    for _ in range(2):
        step(inbox)
    assert machine.got == ["m4"] * 100 + ["c3"] + ["m4"] * 100
    assert fetched == [(COMMANDS, False)]
    for _ in range(3):
        step(inbox)
    assert machine.got == ["m4"] * 100 + ["c3"] + ["m4"] * 150 + ["c5"] + ["c6"] * 120
    assert fetched == [(COMMANDS, False), (COMMANDS, True)]


@pytest.mark.feature("C76", "S9")
@pytest.mark.parametrize("merged_by_time", [False, True])
def test_messages_are_fetched_again_while_many_commands_wait_for_them(
    monkeypatch: pytest.MonkeyPatch, merged_by_time: bool
) -> None:
    """Commands may wait for messages up to the ends of the logs: if they counted, both would wait for ever."""
    monkeypatch.setattr(saturation, "_SATURATED_RECORDS", 100)
    monkeypatch.setattr(waiting_commands, "MOST_BYTES", 20_000)
    left_out: set[TP] = set()
    reader = SimpleNamespace(
        **vars(NOBODY)
        | {
            "saturate": lambda _, tp: left_out.add(tp),
            "fetch_caught_up": lambda _, tp=None: left_out.discard(tp) if tp else left_out.clear(),
        }
    )
    monkeypatch.setattr(saturation, "_LEAST_SATURATED_RECORDS", 100)
    machine = Machine(merged_by_time)
    inbox = Inbox(reader, machine, COMMANDS, {COMMANDS: 0, ORDERS: 0}, None, lambda: None, catch_up=0)  # type: ignore[arg-type]
    inbox.receive(COMMANDS, [record(at, 5, OTHER) for at in range(80)])
    inbox.receive(ORDERS, [record(at, 4) for at in range(101)])
    assert left_out == {COMMANDS, ORDERS}
    inbox.fetch_caught_up(inbox.take_messages(100))
    assert left_out == {COMMANDS}, "many commands wait still"
    inbox.take_messages(100)
    inbox.fetch_caught_up(inbox.take_commands(100, None, lambda _: None))
    assert left_out == set(), "no further step looks after commands if none is fetched"


@pytest.mark.feature("C33", "C60")
def test_large_messages_of_one_partition_do_not_leave_out_another_for_which_they_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In total order the one partition would wait for the other, and that for memory, for ever."""
    monkeypatch.setattr(saturation, "_SATURATED_BYTES", 400)
    monkeypatch.setattr(saturation, "_LEAST_SATURATED_BYTES", 0)
    other, left_out = TP("orders", 1), set[TP]()
    reader = SimpleNamespace(
        received=lambda *_: None,
        saturate=lambda _, tp: left_out.add(tp),
        fetch_caught_up=lambda _, tp: left_out.discard(tp),
        waiting=WorkerBytes(),
    )
    machine, positions = Machine(merged_by_time=True), {COMMANDS: 0, ORDERS: 0, other: 0}
    inbox = Inbox(reader, machine, COMMANDS, positions, {ORDERS: 2, other: 9}, lambda: None, catch_up=0)  # type: ignore[arg-type]

    def large(offset: int, at_ms: int) -> Any:
        return SimpleNamespace(offset=offset, timestamp=at_ms, value=bytes(250), key=None)

    inbox.receive(ORDERS, [large(0, 5), large(1, 6)])
    inbox.receive(other, [large(0, 1)])
    assert left_out == {ORDERS, other}
    inbox.fetch_caught_up(inbox.take_messages(100))
    assert (machine.got, left_out) == (["m1"], {ORDERS})
    inbox.receive(other, [large(8, 7)])
    inbox.fetch_caught_up(inbox.take_messages(100))
    assert (machine.got, left_out) == (["m1", "m5", "m6", "m7"], set())


@pytest.mark.parametrize(
    "command", [PURGE, BY_FILTER, REWIND, OTHER, Command(command="cancel", bookmarks=("orders:0:1",))]
)
def test_a_quick_look_tells_a_sweep_in_either_encoding(command: Command) -> None:
    fields = {
        "command": command.command,
        "filter": command.filter,
        "bookmarks": command.bookmarks,
        "to": command.to,
    }
    for value in (encode(command), orjson.dumps(fields)):
        sweeps = Sweeps(1)
        sweeps.note([SimpleNamespace(offset=0, timestamp=7, value=value)])
        assert (sweeps.until_ms(1, 0) == 7) == (command in (PURGE, BY_FILTER, REWIND))


@pytest.mark.feature("C60", "C63", "C76")
@pytest.mark.parametrize("why", ["unfinished", "waits_for_ends"])
def test_a_command_that_was_held_is_not_asked_for_again_while_no_command_is_taken(why: str) -> None:
    """A worker hung that held a command behind a rewind: it asked the shard for it again and again in one step."""
    asyncio.run(_is_held(why))


async def _is_held(why: str) -> None:
    machine = Machine()
    anything: Any = machine
    inbox = inbox_of(machine, 0)
    log = SimpleNamespace(existing_ends=lambda _: asyncio.sleep(0, {ORDERS: 1}))
    reader = SimpleNamespace(next_offset=lambda tp: asyncio.sleep(0, 0))
    inbox._reader = reader  # type: ignore[assignment]
    gate = Gate(inbox, log, lambda: None)  # type: ignore[arg-type]
    intake = Intake(anything, inbox, gate, anything, SimpleNamespace(replaced=()), lambda _: None)  # type: ignore[arg-type]
    inbox._batches[COMMANDS].append([record(0, 3, OTHER)])
    machine.waits_for_arrivals = lambda at_ms: True  # type: ignore[method-assign]
    await intake.commands(100)
    assert inbox.held_ms == 3
    assert not intake.has_commands
    machine.waits_for_arrivals = lambda at_ms: False  # type: ignore[method-assign]
    setattr(machine, why, 0 if why == "unfinished" else True)
    looked = 0
    while inbox.held_ms is not None and looked < 3:  # as a runner does
        looked += 1
        await intake.commands(100)
    assert looked == 1
    assert machine.got == []


@pytest.mark.feature("Q18")
def test_what_is_written_while_there_is_no_room_counts_before_a_queue_says_whether_it_is_idle() -> None:
    """A partition is left out of the fetch while very many of its messages wait, so none of these is received."""
    asyncio.run(_counts_what_is_written())


async def _counts_what_is_written() -> None:
    machine, noted = Machine(), list[TP]()
    machine.shard.agreement.checks_use = True
    machine.room = lambda: 0  # type: ignore[method-assign]
    anything: Any = machine
    anything.note_received = lambda topic, partition: noted.append(TP(topic, partition))
    inbox = inbox_of(machine, 0)
    ends = {ORDERS: 7}
    log = SimpleNamespace(existing_ends=lambda _: asyncio.sleep(0, dict(ends)))
    gate = Gate(inbox, log, lambda: None)  # type: ignore[arg-type]
    intake = Intake(anything, inbox, gate, anything, SimpleNamespace(replaced=()), lambda _: None)  # type: ignore[arg-type]
    inbox.received[ORDERS] = 5
    inbox._batches[COMMANDS].append([record(0, 3, OTHER)])
    assert await intake.commands(100) == 0
    assert (noted, machine.got) == ([ORDERS], []), "use is noted in this step, and the question answered in the next"
    assert await intake.commands(100) == 1
    assert (noted, machine.got) == ([ORDERS], ["c3"]), "nothing was written since"
    ends[ORDERS] = 8
    inbox._batches[COMMANDS].append([record(1, 4, OTHER)])
    assert await intake.commands(100) == 0
    assert noted == [ORDERS, ORDERS]
