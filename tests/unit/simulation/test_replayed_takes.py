"""What a step took in one after the other comes again one after the other, whatever the stamps say (X10, C33)."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
import pytest

from lapse.config import QueueConfig
from lapse.core.shard.changelog import Changelog, claim_key, epoch_header, progress_key
from lapse.protocol import topic as names
from lapse.protocol.event import Event, decode
from lapse.protocol.tick import TICK_KEY
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.shard.inbox import Inbox
from lapse.runtime.shard.sent_log import INSTANTS, PROGRESS_KEY
from lapse.runtime.tp import TP
from lapse.simulation.recorded_journal import RecordedJournal
from lapse.simulation.recording import Recorded, Recording
from lapse.simulation.replay import ReplayedShard
from lapse.simulation.serving import Serving
from lapse.testing.memory_entity import QueueEntity
from lapse.testing.memory_log import at_once
from lapse.testing.memory_reader import MemoryReader
from lapse.testing.unpacking import outputs_of

CONFIG = QueueConfig(ordering="total", expiration="1s", partitions=2, topics=("t",))
APART = QueueConfig(expiration="1s", topics=("t", "u"))
COMMANDS = TP(names.commands("q"), 0)
A, B, U = TP("t", 0), TP("t", 1), TP("u", 0)


def message(tp: TP, offset: int, at_ms: int, *, scheduled: bool) -> Recorded:
    later = (("lapse-enqueue-at-ms", b"9000"),) if scheduled else ()
    return Recorded(tp.topic, tp.partition, offset, at_ms, 1, None, b"{}", later)


def journaled(offset: int, key: bytes, value: bytes) -> Recorded:
    return Recorded("changelog", 0, offset, 100 + offset, 1, key, value, tuple(epoch_header(1)))


def lived(
    config: QueueConfig, recording: Recording, takes: Sequence[Sequence[Recorded]]
) -> tuple[list[Event], dict[str, int]]:
    """One step that took messages in one after the other: its events, and what its journal says of it."""
    machine = QueueEntity("q", config, recording, None).machine(0, 1, Changelog(), {})
    assert isinstance(machine, QueueMachine)
    sources = dict.fromkeys((U, A) if config is APART else (A, B), 0)
    inbox = Inbox(MemoryReader(recording), machine, COMMANDS, {**sources, COMMANDS: 0}, None, lambda: None)
    machine.begin_topics([], {})
    list(machine.take_over(0))
    machine.begin_step()
    for take in takes:
        for one in take:
            inbox.receive(TP(one.topic, one.partition), [one])
        assert inbox.take_messages(100) == len(take)
    effects = at_once(machine.finish(lambda _: pytest.fail("there are no letters")))
    return [decode(one.value) for one in outputs_of(effects.before) if one.value is not None], effects.instants


@pytest.mark.feature("X10", "C33")
@pytest.mark.parametrize(
    ("config", "takes"),
    [
        (CONFIG, [[message(A, 0, 20, scheduled=True)], [message(B, 0, 10, scheduled=True)]]),
        (
            CONFIG,
            [
                [message(A, 0, 20, scheduled=True)],
                [message(A, 1, 30, scheduled=False), message(B, 0, 10, scheduled=True)],
            ],
        ),
        (
            CONFIG,
            [
                [message(A, 0, 20, scheduled=True)],
                [message(A, 1, 30, scheduled=True), message(B, 0, 10, scheduled=True)],
            ],
        ),
        (CONFIG, [[message(A, 0, 20, scheduled=True), message(B, 0, 10, scheduled=True)]]),
        (APART, [[message(U, 0, 20, scheduled=True)], [message(A, 0, 30, scheduled=True)]]),
        (APART, [[message(U, 0, 20, scheduled=True), message(A, 0, 30, scheduled=True)]]),
        (
            APART,
            [
                [message(A, 0, 20, scheduled=True), message(U, 0, 25, scheduled=True)],
                [message(A, 1, 30, scheduled=True)],
            ],
        ),
    ],
    ids=[
        "an earlier stamp that came later",
        "the same log went on",
        "the same log went on, with an event",
        "together",
        "without total order",
        "without total order, together",
        "without total order, the same log went on",
    ],
)
def test_takes_of_a_step_come_again_as_they_were(config: QueueConfig, takes: Sequence[Sequence[Recorded]]) -> None:
    records = [one for take in takes for one in take]
    recording = Recording({"t": 2, "u": 1, COMMANDS.topic: 1}, records)
    events, instants = lived(config, recording, takes)
    ends = {f"{one.topic}:{one.partition}": one.offset + 1 for one in records}
    none_yet = {"t:0": 0, "u:0" if config is APART else "t:1": 0, f"{COMMANDS.topic}:0": 0}
    journal = [
        journaled(0, claim_key(1), b"a worker"),
        journaled(1, progress_key(1), orjson.dumps(none_yet)),
        journaled(2, progress_key(1), orjson.dumps({**none_yet, **ends, PROGRESS_KEY: {INSTANTS: instants}})),
    ]
    shard = ReplayedShard("q", {0: Serving(config, None, None)}, 0, recording, RecordedJournal(journal))
    assert [(one.event, one.at_ms, one.messages) for one in shard.events()] == [
        (one.event, one.at_ms, one.messages) for one in events
    ]


@pytest.mark.feature("X10", "C3", "L10")
def test_a_shard_that_went_back_with_its_clock_goes_back_again() -> None:
    hour_ms = 3_600_000
    messages = [message(A, 0, hour_ms, scheduled=False), message(A, 1, 100, scheduled=False)]
    ticks = [Recorded(COMMANDS.topic, 0, at, at_ms, 1, TICK_KEY, None, ()) for at, at_ms in enumerate((hour_ms, 1_099))]
    config = QueueConfig(expiration="1s", topics=("t",), dead_letter=False)
    recording = Recording({"t": 1, COMMANDS.topic: 1}, [*messages, *ticks])
    machine = QueueEntity("q", config, recording, None).machine(0, 1, Changelog(), {})
    assert isinstance(machine, QueueMachine)
    machine.begin_topics([], {})
    list(machine.take_over(0))
    start = {"t:0": 0, f"{COMMANDS.topic}:0": 0}
    journal = [journaled(0, claim_key(1), b"a worker"), journaled(1, progress_key(1), orjson.dumps(start))]
    for at in range(2):
        machine.begin_step()
        if at:
            machine.set_back(200)
        machine.arrive("t", 0, [messages[at]])
        machine.advance(ticks[at].timestamp)
        effects = at_once(machine.finish(lambda _: pytest.fail("there are no letters")))
        assert not effects.before, "nothing expires"
        read = {"t:0": at + 1, f"{COMMANDS.topic}:0": at + 1, PROGRESS_KEY: {INSTANTS: effects.instants}}
        journal.append(journaled(len(journal), progress_key(1), orjson.dumps(read)))
    shard = ReplayedShard("q", {0: Serving(config, None, None)}, 0, recording, RecordedJournal(journal))
    assert not list(shard.events())
