"""A crowd expires at once: its letters are written beside the journal of the step before, and ticks go on (C60)."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from lapse.core.lifetime import Expiration
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.settings import QueueSettings
from lapse.protocol.tick import TICK_KEY
from lapse.runtime.letters.refusal import Refusal
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.shard.figures import ShardFigures
from lapse.runtime.timers.clock import WorkerClock
from lapse.runtime.timers.ticker import Ticker
from lapse.runtime.tp import TP
from support.kafka.noted_broker import COMMANDS, COUNT, SOURCE, Broker, Payloads, run
from support.kafka.packed import outputs_of
from unit.core.sow.make import Arrived, T
from unit.runtime.queue.machine_alone import note_letters

_COUNT = 20_000
_TURNS = 500
_SETTINGS = QueueSettings(
    name="prices", lease_ms=60_000, dead_letter_topic="dlq.prices", expiration=Expiration(enabled=True)
)


class LetterBroker(Broker):
    """Notes which letters were written while a journal was on its way, and what the journal knew of then."""

    def __init__(self) -> None:
        super().__init__()
        self.letters: list[int] = []
        self.beside: set[int] = set()
        """Numbers of the journals that were on their way then."""
        self.unjournaled: list[int] = []

    async def write(self, letters: Any) -> dict[int, Refusal]:
        offsets = [int(letter.value or b"-1") for letter in outputs_of(letters)]
        journal_under_way = self.happened.count("commit") > self.happened.count("committed")
        self.beside |= {self.happened.count("commit")} if journal_under_way else set()
        self.unjournaled += [offset for offset in offsets if offset >= self.done and journal_under_way]
        self.letters += offsets
        await self._write("letters")
        return {}

    async def _write(self, what: str) -> None:
        """A journal is under way until letters are written beside it, or until it is clear that none are."""
        so_far = len(self.letters)
        for _ in range(_TURNS if what == "committed" else 0):
            if len(self.letters) > so_far:
                break
            await asyncio.sleep(0)
        await super()._write(what)


def _machine(kind: type[QueueMachine] = QueueMachine, payloads: Any = None) -> QueueMachine:
    payloads = payloads or Payloads()
    return kind(_SETTINGS, restore([]), 1, payloads, QueueOutput("prices", 0, 1, "dlq.prices", 1), "prices")


def _records(lifetime_ms: int) -> list[Arrived]:
    headers = [("lapse-ttl-ms", b"%d" % lifetime_ms)]
    return [Arrived(n, T, b"k", b"%d" % n, headers) for n in range(_COUNT)]


@pytest.mark.slow
@pytest.mark.feature("C60", "D3")
def test_letters_of_a_crowd_are_written_beside_the_journal_of_the_step_before() -> None:
    broker = LetterBroker()
    machine = _machine()
    asyncio.run(
        run(machine, broker, lambda: len(broker.letters) == _COUNT and not machine.shard.depth()["depth"], _records(50))
    )
    assert sorted(broker.letters) == list(range(_COUNT)), "each once"
    assert len(broker.beside) > broker.happened.count("commit") / 2, "each step waits for the journal of the one before"


@pytest.mark.slow
@pytest.mark.feature("C60", "D3")
def test_letters_of_a_step_are_written_while_its_next_letters_are_made() -> None:
    """And the step goes on only when all of them are safe."""
    broker = LetterBroker()
    machine = _machine()
    made = note_letters(machine)
    made_meanwhile: list[bool] = []

    async def write(letters: Any) -> dict[int, Refusal]:
        before, due = sum(made), machine._flight.core.removals
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        made_meanwhile.append(sum(made) > before)
        assert not due, "the step that removes more has not begun"
        return await LetterBroker.write(broker, letters)

    broker.write = write  # type: ignore[method-assign]
    asyncio.run(run(machine, broker, lambda: len(broker.letters) == _COUNT, _records(50)))
    assert sorted(broker.letters) == list(range(_COUNT)), "each once"
    assert sum(made_meanwhile) > len(made_meanwhile) / 3


@pytest.mark.slow
@pytest.mark.feature("C60", "D3")
def test_records_of_a_step_are_read_in_parts_so_that_letters_are_written_meanwhile() -> None:
    read: list[int] = []
    portions: list[int] = []

    class Noted(Payloads):
        async def get(self, topic: str, partition: int, offsets: list[int], used: bool = True) -> list[Arrived | None]:
            read.append(len(offsets))
            portions.append(machine.crowd._portion.size)
            return await super().get(topic, partition, offsets, used)

    broker = LetterBroker()
    machine = _machine(payloads=Noted())
    asyncio.run(run(machine, broker, lambda: len(broker.letters) == _COUNT, _records(50)))
    assert broker.letters == list(range(_COUNT)), "each once, and in order"
    assert max(read) <= 1_024 < max(portions)


@pytest.mark.slow
@pytest.mark.feature("D3", "L2")
def test_a_letter_waits_for_the_journal_of_its_messages_arrival() -> None:
    """The instant of an arrival may come from the clock, so that a crash could give the message another deadline."""
    broker = LetterBroker()
    machine = _machine()
    broker.ticks = 1
    tick = [Arrived(0, T + 100, TICK_KEY, b"")]
    asyncio.run(run(machine, broker, lambda: len(broker.letters) == _COUNT, _records(50), tick))
    assert sorted(broker.letters) == list(range(_COUNT))
    assert not broker.unjournaled


@pytest.mark.slow
@pytest.mark.feature("C60")
def test_ticks_go_on_while_something_is_due_by_the_last_one() -> None:
    """What is due meanwhile then leaves along with it, instead of being read back from the log once more."""
    broker = LetterBroker()
    ticks_while_due: list[int] = []

    class Watched(QueueMachine):
        def advance(self, now_ms: int) -> None:
            ticks_while_due.append(broker.ticks)
            super().advance(now_ms)

    machine = _machine(Watched)

    async def write(letters: Any) -> dict[int, Refusal]:
        await asyncio.sleep(0.03)
        return await LetterBroker.write(broker, letters)

    broker.write = write  # type: ignore[method-assign]
    asyncio.run(run(machine, broker, lambda: len(broker.letters) == _COUNT, _records(50)))
    assert ticks_while_due[-1] > ticks_while_due[0] + 1


@pytest.mark.feature("C60", "L2")
def test_the_next_tick_is_on_its_way_while_letters_are_written() -> None:
    """What comes due meanwhile would wait for the letters first, and then for the tick."""
    broker = LetterBroker()
    ticks_meanwhile: list[int] = []

    async def write(letters: Any) -> dict[int, Refusal]:
        for _ in range(1_000):
            if broker.ticks > 1:
                break
            await asyncio.sleep(0.001)
        ticks_meanwhile.append(broker.ticks)
        return await LetterBroker.write(broker, letters)

    broker.write = write  # type: ignore[method-assign]
    lifetimes = (*(50,) * 10, *(150,) * 10)  # a tick's instant is 100 ms behind the arrival
    records = [Arrived(n, T, b"k", b"%d" % n, [("lapse-ttl-ms", b"%d" % ms)]) for n, ms in enumerate(lifetimes)]
    asyncio.run(run(_machine(), broker, lambda: len(broker.letters) == 10, records))
    assert ticks_meanwhile == [2]


@pytest.mark.feature("C60")
def test_no_more_messages_arrive_with_a_step_than_half_of_what_may_leave_while_a_crowd_leaves() -> None:
    machine = _machine()
    records = _records(50)
    before = machine.step_records
    machine.arrive("prices", 0, records[:10_000])
    asyncio.run(machine.finish(LetterBroker().write))
    machine.advance(T + 100)
    asyncio.run(machine.finish(LetterBroker().write))
    machine.note_step_time(0.01)
    assert before >= 10_000
    assert 0 < machine.step_records <= 2_048


@pytest.mark.feature("C60", "C76")
@pytest.mark.parametrize("is_due", [True, False])
def test_what_waits_for_something_else_than_time_has_ticks_written_each_second_only(is_due: bool) -> None:
    """A scheduled message that waits for earlier arrivals is due, and cannot be acted on. Other timers go on."""
    broker = LetterBroker()

    async def ticks() -> None:
        machine: Any = SimpleNamespace(next_due_ms=lambda: T, is_due=lambda at_ms: is_due, figures=ShardFigures())
        kafka: Any = broker
        broker.runner = SimpleNamespace(receive=lambda tp, records: ticker.read(records[0]))  # type: ignore[assignment]
        clock = WorkerClock()
        clock.measured(time.monotonic(), time.monotonic(), T)
        ticker = Ticker("prices", COMMANDS, machine, kafka, clock)
        ticker.reached_ms = T
        ticker.arm()
        async with asyncio.timeout(10):
            while is_due and not broker.ticks:  # noqa: ASYNC110  # what it waits for has many places
                await asyncio.sleep(0.001)
        assert is_due or (ticker._timer and ticker._timer.when() - asyncio.get_running_loop().time() > 0.1)
        ticker.stop()

    asyncio.run(ticks())
    assert broker.ticks == is_due


@pytest.mark.feature("C40", "L2")
def test_messages_expire_though_kafka_has_removed_the_last_commands_before_the_take_over() -> None:
    """A worker that was away for longer than they are kept waits for none that cannot come any more."""
    broker = LetterBroker()
    broker.ticks = COUNT
    asyncio.run(run(_machine(), broker, lambda: len(broker.letters) == 10, _records(50)[:10], catch_up=COUNT))
    assert sorted(broker.letters) == list(range(10))


@pytest.mark.feature("L11", "C4")
def test_a_queue_that_checks_what_is_left_reads_its_log_first_though_it_began_while_it_ran() -> None:
    broker, records, got = Broker(), _records(50_000)[:10], []

    class Watched(QueueMachine):
        def arrive(self, topic: str, partition: int, records: Any) -> int:
            got.append(f"{len(records)} messages")
            return super().arrive(topic, partition, records)

        def command(self, record: Any, refusal: Any = None) -> None:
            got.append("the command")
            super().command(record, refusal)

        def begin_step(self) -> None:
            self.shard.agreement.checking = True
            super().begin_step()

    async def existing_ends(tps: list[TP]) -> dict[TP, int]:
        assert broker.runner is not None
        broker.runner.receive(SOURCE, records[1:])
        return dict.fromkeys(tps, len(records))

    broker.existing_ends = existing_ends  # type: ignore[method-assign]
    command = [Arrived(0, T + 1, None, b'{"command": "pause", "id": "x"}')]
    asyncio.run(run(_machine(Watched), broker, lambda: "the command" in got, records[:1], command))
    assert got == ["1 messages", "9 messages", "the command"]
