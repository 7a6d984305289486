"""Commands that were taken in with a rewind wait for its end, and come again in the step that ended it (X10)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from lapse.config import QueueConfig
from lapse.core.shard.changelog import Changelog, claim_key, epoch_header, progress_key
from lapse.protocol import topic as names
from lapse.protocol.event import Event, decode
from lapse.protocol.tick import TICK_KEY
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.shard.effects import Effects
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

CONFIG = QueueConfig(topics=("t",), expiration="enabled", dead_letter=False)
COMMANDS, MESSAGES = TP(names.commands("q"), 0), TP("t", 0)


def message(offset: int) -> Recorded:
    return Recorded("t", 0, offset, 10, 1, None, b"{}", (("lapse-expires-at-ms", b"35"),) if offset == 0 else ())


def command(offset: int, at_ms: int, **fields: Any) -> Recorded:
    return Recorded(COMMANDS.topic, 0, offset, at_ms, 1, None, orjson.dumps({"id": str(offset), **fields}), ())


def journaled(offset: int, key: bytes, value: bytes) -> Recorded:
    return Recorded("changelog", 0, offset, 100 + offset, 1, key, value, tuple(epoch_header(1)))


def emitted(effects: Effects) -> list[Event]:
    topic = names.events("q")
    return [decode(one.value) for one in outputs_of(effects.before) if one.topic == topic and one.value is not None]


@pytest.mark.feature("X10", "C61", "C63")
@pytest.mark.parametrize("later", [{"filter": "TRUE"}, {"bookmarks": ["t:0:1~1"]}], ids=["by filter", "by bookmark"])
def test_what_waits_for_the_end_of_a_rewind_comes_again_in_its_step(later: dict[str, Any]) -> None:
    messages = [message(offset) for offset in range(3)]
    commands = [
        command(0, 20, command="acknowledge", filter="/x IS NULL AND OFFSET() > 0"),
        command(1, 30, command="rewind", to="beginning"),
        command(2, 40, command="acknowledge", **later),
        Recorded(COMMANDS.topic, 0, 3, 50, 1, TICK_KEY, None, ()),
    ]
    recording = Recording({"t": 1, COMMANDS.topic: 1}, [*messages, *commands])
    recording.now_ms = 60
    machine = QueueEntity("q", CONFIG, recording, None).machine(0, 1, Changelog(), {})
    assert isinstance(machine, QueueMachine)
    inbox = Inbox(MemoryReader(recording), machine, COMMANDS, {MESSAGES: 0, COMMANDS: 0}, None, lambda: None)
    machine.begin_topics([], {})
    list(machine.take_over(0))
    inbox.receive(MESSAGES, messages)
    inbox.receive(COMMANDS, commands)
    start = {"t:0": 0, f"{COMMANDS.topic}:0": 0}
    journal = [
        journaled(0, claim_key(1), b"a worker"),
        journaled(1, progress_key(1), orjson.dumps(start)),
    ]
    events: list[Event] = []
    ticks: list[int] = []
    while inbox.processed[COMMANDS] < len(commands) or machine.unfinished is not None:
        machine.begin_step()
        inbox.take_messages(100)
        if machine.unfinished is None:
            inbox.take_commands(100, None, lambda tick: ticks.append(tick.timestamp))
        for reached_ms in ticks:
            machine.advance(reached_ms)
        effects = at_once(machine.finish(lambda _: pytest.fail("there are no letters")))
        events += emitted(effects)
        read = inbox.processed[COMMANDS] if machine.unfinished is None else machine.unfinished
        at = {**start, "t:0": 3, f"{COMMANDS.topic}:0": read, PROGRESS_KEY: {INSTANTS: effects.instants}}
        journal.append(journaled(len(journal), progress_key(1), orjson.dumps(at)))
    assert len(journal) > 3, "the rewind took more than one step"
    assert {one.event for one in events} >= {"acknowledged", "rewound"}
    shard = ReplayedShard("q", {0: Serving(CONFIG, None, None)}, 0, recording, RecordedJournal(journal))
    assert [(one.event, one.at_ms, one.messages) for one in shard.events()] == [
        (one.event, one.at_ms, one.messages) for one in events
    ]
