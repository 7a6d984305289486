"""A recording that begins in the middle of an epoch comes to the same events, by what the log said before (X10)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson
import pytest

from lapse.config import QueueConfig
from lapse.core.queue.schedule.schedule import WEIGHT
from lapse.core.shard.changelog import Changelog, Items, claim_key, epoch_header, progress_key
from lapse.protocol import topic as names
from lapse.protocol.event import Event, decode
from lapse.protocol.tick import TICK_KEY
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.shard.inbox import Inbox
from lapse.runtime.shard.sent_log import INSTANTS, PROGRESS_KEY
from lapse.runtime.tp import TP
from lapse.simulation.arriving import cuts
from lapse.simulation.recorded_journal import RecordedJournal
from lapse.simulation.recording import Recorded, Recording
from lapse.simulation.replay import ReplayedShard
from lapse.simulation.serving import Serving
from lapse.testing.memory_entity import QueueEntity
from lapse.testing.memory_log import at_once
from lapse.testing.memory_reader import MemoryReader
from lapse.testing.unpacking import outputs_of

CONFIG = QueueConfig(expiration="enabled", dead_letter=False, topics=("t",))
COMMANDS: Final = TP(names.commands("q"), 0)
MESSAGES: Final = TP("t", 0)
WRITTEN_MS: Final = 50
"""When the first step's journal was written: the shard went on meanwhile."""


def message(offset: int, at_ms: int, ttl: bytes) -> Recorded:
    return Recorded(*MESSAGES, offset, at_ms, 1, None, b"{}", (("lapse-ttl-ms", ttl),))


def scheduled(offset: int, at_ms: int, until: bytes) -> Recorded:
    return Recorded(*MESSAGES, offset, at_ms, 1, None, b"{}", (("lapse-enqueue-at-ms", until),))


def command(offset: int, at_ms: int, **fields: object) -> Recorded:
    return Recorded(*COMMANDS, offset, at_ms, 1, None, orjson.dumps({"id": f"c{offset}", **fields}), ())


def tick(offset: int, at_ms: int) -> Recorded:
    return Recorded(*COMMANDS, offset, at_ms, 1, TICK_KEY, b"", ())


class Life:
    """A shard that lives through a few steps, and what its journal says of them."""

    def __init__(self, recording: Recording, config: QueueConfig = CONFIG) -> None:
        machine = QueueEntity("q", config, recording, None).machine(0, 1, Changelog(), {})
        assert isinstance(machine, QueueMachine)
        self.machine = machine
        self.events: list[Event] = []
        self.journal: list[Recorded] = []
        self._inbox = Inbox(MemoryReader(recording), machine, COMMANDS, {MESSAGES: 0, COMMANDS: 0}, None, lambda: None)
        self._reached_ms = 0
        machine.begin_topics([], {})
        self._write([(claim_key(1), b"a worker"), *machine.take_over(0), self._progress({})], 1)

    def step(
        self, records: Sequence[Recorded], journaled_ms: int, *, acts: bool = True, delivered_ms: int | None = None
    ) -> None:
        """Go through a step that reads records, each by itself, and whose journal is written at an instant."""
        for one in records:
            self._inbox.receive(TP(one.topic, one.partition), [one])
        self._go_through(journaled_ms, acts, delivered_ms)

    def step_with(
        self, batch: Sequence[Recorded], room: int, journaled_ms: int, delivered_ms: int | None = None
    ) -> None:
        """Go through a step that reads records that came together, and has little room for what is due."""
        self._inbox.receive(TP(batch[0].topic, batch[0].partition), batch)
        self.machine.crowd.give(room)
        self._inbox.take_messages(100)  # while the step before is written; what is left over is offered once more
        self._go_through(journaled_ms, acts=False, delivered_ms=delivered_ms)

    def _go_through(self, journaled_ms: int, acts: bool, delivered_ms: int | None) -> None:
        machine, inbox = self.machine, self._inbox
        machine.begin_step()
        inbox.take_messages(100)
        inbox.take_commands(100, None, self._tick)
        if acts and machine.is_due(self._reached_ms):
            machine.advance(self._reached_ms)
        if delivered_ms is not None:
            machine.deliver(delivered_ms)
        effects = at_once(machine.finish(lambda _: pytest.fail("there are no letters")))
        self.events = [decode(one.value) for one in outputs_of(effects.before) if one.value is not None]
        self._write([*effects.ahead, *effects.journal, self._progress(effects.instants)], journaled_ms)

    def _tick(self, record: Recorded) -> None:
        self._reached_ms = record.timestamp

    def _progress(self, instants: dict[str, int]) -> tuple[bytes, bytes]:
        places = {f"{tp.topic}:{tp.partition}": offset for tp, offset in self._inbox.processed.items()}
        return progress_key(1), orjson.dumps({**places, PROGRESS_KEY: {INSTANTS: instants}})

    def _write(self, items: Items, at_ms: int) -> None:
        for key, value in items:
            self.journal.append(
                Recorded("changelog", 0, len(self.journal), at_ms, 1, key, value, tuple(epoch_header(1)))
            )


SUBSCRIBE = command(0, 10, command="subscribe", subscription="s", heartbeat_timeout_ms=5_000, max_backlog=0)


@pytest.mark.feature("X10")
@pytest.mark.parametrize(
    ("first", "acts", "second", "expected"),
    [
        ([SUBSCRIBE], True, [message(0, 15, b"soon")], [("expired", 15)]),
        ([SUBSCRIBE], True, [tick(1, 5_010)], [("unsubscribed", 5_010)]),
        ([message(0, 15, b"5"), tick(0, 20)], False, [message(1, 30, b"0")], [("expired", 20)]),
    ],
    ids=["a message came while the journal was written", "a consumer was silent", "what was due had not all left"],
)
def test_what_the_journal_before_does_not_say_is_known(
    first: Sequence[Recorded], acts: bool, second: Sequence[Recorded], expected: Sequence[tuple[str, int]]
) -> None:
    recording = Recording({"t": 1, COMMANDS.topic: 1}, [*first, *second])
    life = Life(recording)
    life.step(first, WRITTEN_MS, acts=acts)
    life.step(second, 6_000)
    journal = RecordedJournal(life.journal, since_ms=WRITTEN_MS + 1)
    assert [(one.taken_over, len(one.steps)) for one in journal.epochs] == [(False, 1)]
    events = list(ReplayedShard("q", {0: Serving(CONFIG, None, None)}, 0, recording, journal).events())
    assert [(one.event, one.at_ms) for one in life.events] == list(expected)
    assert events == life.events


@pytest.mark.feature("X10", "C1")
def test_a_command_has_its_own_instant_also_where_the_shard_has_heard_of_a_later_one() -> None:
    first, second = [message(0, 5, b"0")], [command(0, 30, command="expire", bookmarks=["t:0:0"])]
    recording = Recording({"t": 1, COMMANDS.topic: 1}, [*first, *second])
    life = Life(recording)
    life.step(first, WRITTEN_MS, delivered_ms=45)
    life.step(second, 6_000)
    journal = RecordedJournal(life.journal, since_ms=WRITTEN_MS + 1)
    events = list(ReplayedShard("q", {0: Serving(CONFIG, None, None)}, 0, recording, journal).events())
    assert [(one.event, one.at_ms) for one in life.events] == [("expired", 30)]
    assert events == life.events


@pytest.mark.feature("X10", "C60")
def test_a_batch_that_a_crowd_left_too_little_room_for_has_the_instant_at_which_it_came() -> None:
    """It was taken in up to a message that comes behind a second scheduled one; its last record was there already."""
    first = [scheduled(0, 5, b"1000"), scheduled(1, 6, b"2000")]
    batch = [message(2, 1_500, b"soon"), message(3, 2_500, b"0")]
    recording = Recording({"t": 1, COMMANDS.topic: 1}, [*first, *batch, tick(0, 5_000)])
    life = Life(recording)
    life.step(first, WRITTEN_MS)
    emitted = list(life.events)
    life.step_with(batch, WEIGHT, 3_000)
    emitted += life.events
    life.step([tick(0, 5_000)], 6_000)
    emitted += life.events
    journal = RecordedJournal(life.journal)
    assert [step.positions[MESSAGES] for step in journal.epochs[0].steps] == [2, 3, 4]
    assert [(one.event, one.at_ms) for one in emitted if one.event == "expired"] == [("expired", 2_500)]
    assert list(ReplayedShard("q", {0: Serving(CONFIG, None, None)}, 0, recording, journal).events()) == emitted


@pytest.mark.feature("X10", "C41", "C51")
@pytest.mark.parametrize("offset", [1, 5], ids=["the next offset", "behind an aborted transaction"])
def test_a_batch_that_found_no_room_let_a_scheduled_message_in(offset: int) -> None:
    config = QueueConfig(expiration="enabled", dead_letter=False, topics=("t",), target_queue_depth=1)
    first = [
        command(0, 10, command="subscribe", subscription="s", heartbeat_timeout_ms=90_000, max_backlog=1),
        scheduled(0, 5, b"1000"),
    ]
    batch = [message(offset, 2_500, b"0")]
    recording = Recording({"t": 1, COMMANDS.topic: 1}, [*first, *batch, tick(1, 40_000)])
    life = Life(recording, config)
    life.step(first, WRITTEN_MS)
    emitted = list(life.events)
    life.step_with(batch, 100, 3_000, delivered_ms=2_600)
    emitted += life.events
    life.step([tick(1, 40_000)], 41_000)
    emitted += life.events
    journal = RecordedJournal(life.journal)
    assert [step.positions[MESSAGES] for step in journal.epochs[0].steps] == [1, 1, 1]
    assert emitted[-1].event == "lease_returned"
    assert list(ReplayedShard("q", {0: Serving(config, None, None)}, 0, recording, journal).events()) == emitted


@pytest.mark.feature("X10", "C60")
@pytest.mark.parametrize(
    ("batches", "apart"),
    [([(0, 5), (5, 10)], {0, 5, 10}), ([(0, 10), (5, 10)], {0, 10}), ([(0, 10), (5, 10), (10, 12)], {0, 10, 12})],
    ids=["one after the other", "offered once more", "offered once more, and more came"],
)
def test_a_rest_that_is_offered_once_more_had_come_with_its_batch(
    batches: Sequence[tuple[int, int]], apart: set[int]
) -> None:
    assert cuts(batches) == apart
