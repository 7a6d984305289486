"""What a new owner found unwritten is found again by a replay, as of the instant at which it looked (X10, C55)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson
import pytest

from lapse.config import QueueConfig
from lapse.core.shard.changelog import Changelog, Items, claim_key, epoch_header, progress_key
from lapse.protocol import header
from lapse.protocol import topic as names
from lapse.protocol.event import Event, decode
from lapse.protocol.tick import TICK_KEY
from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.letters.refusal import Refusal
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.queue.unwritten import parse_noted, read_written
from lapse.runtime.shard.inbox import Inbox
from lapse.runtime.shard.sent_log import INSTANTS, PROGRESS_KEY
from lapse.runtime.tp import TP
from lapse.simulation.recorded_journal import RecordedJournal
from lapse.simulation.recording import Recorded, Recording
from lapse.simulation.replay import ReplayedShard
from lapse.simulation.serving import Serving
from lapse.testing.memory_entity import QueueEntity
from lapse.testing.memory_log import MemoryLog, at_once
from lapse.testing.memory_reader import MemoryReader
from lapse.testing.unpacking import outputs_of

CONFIG = QueueConfig(expiration="705ms", lease_period="600ms", topics=("t",))
COMMANDS: Final = TP(names.commands("q"), 0)
MESSAGES: Final = TP("t", 0)
DELIVERIES: Final = TP(names.deliveries("q"), 0)
LEASED_MS: Final = 100
ENDED_MS: Final = LEASED_MS + 600


def command(offset: int, at_ms: int, key: bytes | None, **fields: object) -> Recorded:
    return Recorded(*COMMANDS, offset, at_ms, 1, key, orjson.dumps(fields) if fields else b"", ())


def began(offset: int, epoch: int) -> Recorded:
    """What an owner writes to the deliveries first; none of its deliveries was written."""
    headers = ((header.KIND, b"epoch"), (header.EPOCH, b"%d" % epoch))
    return Recorded(*DELIVERIES, offset, 1, 1, None, b"", headers)


SUBSCRIBE = command(0, 10, None, command="subscribe", id="1", subscription="s", heartbeat_timeout_ms=60_000)
TICK = command(1, ENDED_MS + 50, TICK_KEY)
RECORDING = Recording(
    {"t": 1, COMMANDS.topic: 1, DELIVERIES.topic: 1},
    [Recorded(*MESSAGES, 0, 15, 1, None, b"{}", ()), SUBSCRIBE, TICK, began(0, 1), began(1, 2)],
)


class Lives:
    """A shard under several owners, and what its journal says of them."""

    def __init__(self, recording: Recording = RECORDING) -> None:
        self._recording = recording
        self.journal: list[Recorded] = []
        self.events: list[Event] = []
        self._changelog = Changelog()
        self._positions = {MESSAGES: 0, COMMANDS: 0}
        self._noted: dict[str, Any] | None = None

    def take_over(self, epoch: int, looked_ms: int, began_ms: int) -> None:
        """Begin an epoch: look for what was not written, write it, and make the beginning durable."""
        self._epoch = epoch
        self._write([(claim_key(epoch), b"a worker")])
        machine = QueueEntity("q", CONFIG, self._recording, None).machine(0, epoch, self._changelog, {})
        assert isinstance(machine, QueueMachine)
        self._machine = machine
        self._inbox = Inbox(MemoryReader(self._recording), machine, COMMANDS, self._positions, None, lambda: None)
        machine.begin_topics([], {})
        noted = parse_noted(self._noted)
        if noted is not None:
            log = MemoryLog(self._recording)
            at_once(machine.unwritten(noted, lambda: read_written(log, noted, [DELIVERIES.topic], 0), looked_ms))
        self._write([*machine.take_over(began_ms), self._progress({}, epoch - 1)])

    def step(self, records: Sequence[Recorded], delivered_ms: int | None = None, crashes: bool = False) -> None:
        """Go through a step that reads records; with `crashes`, up to its letters."""
        machine, inbox, reached_ms = self._machine, self._inbox, 0
        machine.begin_step()
        for one in records:
            inbox.receive(TP(one.topic, one.partition), [one])
            reached_ms = one.timestamp if one.key == TICK_KEY else reached_ms
        inbox.take_messages(100)
        inbox.take_commands(100, None, lambda _: None)
        if machine.is_due(reached_ms):
            machine.advance(reached_ms)
        if delivered_ms is not None:
            machine.deliver(delivered_ms)
        effects = at_once(machine.finish(taken, note=self._note))
        if crashes:
            return
        self.events += [decode(one.value) for one in outputs_of(effects.before) if one.topic == names.events("q")]
        self._positions = dict(inbox.processed)
        self._write([*effects.ahead, *effects.journal, self._progress(effects.instants, self._epoch - 1)])

    async def _note(self, items: Items) -> None:
        self._write(items)

    def _progress(self, instants: dict[str, int], floor: int) -> tuple[bytes, bytes]:
        places = {f"{tp.topic}:{tp.partition}": offset for tp, offset in self._positions.items()}
        self._noted = {"step": 0, "from": {DELIVERIES.topic: floor}}
        return progress_key(self._epoch), orjson.dumps({**places, PROGRESS_KEY: {**self._noted, INSTANTS: instants}})

    def _write(self, items: Items) -> None:
        headers = epoch_header(self._epoch)
        for key, value in items:
            self._changelog.take(key, value, headers)
            at = len(self.journal)
            self.journal.append(Recorded("changelog", 0, at, 10_000 + at, 1, key, value, tuple(headers)))


async def taken(letters: Sequence[Output | Packed]) -> dict[int, Refusal]:
    return {}


@pytest.mark.feature("X10", "C55")
@pytest.mark.parametrize(
    ("looked_ms", "count"),
    [(ENDED_MS - 5, 1), (ENDED_MS + 5, 0)],
    ids=["the lease ended while it was written", "the lease was over"],
)
def test_a_delivery_that_nobody_had_seen_counts_as_it_did(looked_ms: int, count: int) -> None:
    lives = Lives()
    lives.take_over(1, 0, 5)
    lives.step([SUBSCRIBE, *RECORDING.log(*MESSAGES)[:]], delivered_ms=LEASED_MS)
    lives.take_over(2, looked_ms, ENDED_MS + 20)
    lives.step([TICK])
    assert [one.delivery_count for one in lives.events if one.event == "dead_lettered"] == [count]
    journal = RecordedJournal(lives.journal)
    events = list(ReplayedShard("q", {0: Serving(CONFIG, None, None)}, 0, RECORDING, journal).events())
    assert events == lives.events


@pytest.mark.feature("X10", "C5")
def test_a_consumer_that_was_lost_in_a_step_that_was_never_journaled_is_lost_at_the_same_instant() -> None:
    """The owner noted it before its letters, so that the next one does not give the consumer another timeout."""
    subscribe = command(0, 10, None, command="subscribe", id="1", subscription="s", heartbeat_timeout_ms=200)
    recording = Recording(
        {"t": 1, COMMANDS.topic: 1, DELIVERIES.topic: 1},
        [Recorded(*MESSAGES, 0, 15, 1, None, b"{}", ()), subscribe, command(1, 250, TICK_KEY), began(0, 1)],
    )
    lives = Lives(recording)
    lives.take_over(1, 0, 5)
    lives.step([subscribe, *recording.log(*MESSAGES)[:]], delivered_ms=LEASED_MS)
    lives.step([*recording.log(*COMMANDS)[1:]], crashes=True)
    lives.take_over(2, 240, 245)
    lives.step([*recording.log(*COMMANDS)[1:]])
    assert [one.event for one in lives.events][-2:] == ["lease_returned", "unsubscribed"]
    events = list(
        ReplayedShard("q", {0: Serving(CONFIG, None, None)}, 0, recording, RecordedJournal(lives.journal)).events()
    )
    assert events == lives.events
