"""Replays a recorded stretch: the worker's own machine gets the same input as in the recording (X10).

Records, commands and ticks come at their instants in the log. The journal has all instants that a worker takes from its
clock and not from the log, such as that of a delivery. So the machine makes the same decisions, and emits the same
events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from lapse.core.shard.changelog import Changelog, Items, claim_key, epoch_header
from lapse.protocol import event, header
from lapse.protocol import topic as names
from lapse.protocol.event import Event
from lapse.runtime.authorization.authorizer_memory import remembering
from lapse.runtime.authorization.command_authorizer import CommandAuthorizer
from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.letters.refusal import Refusal
from lapse.runtime.queue.in_flight import SET_BACK
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.queue.rewind import PART
from lapse.runtime.queue.unwritten import parse_noted, read_written
from lapse.runtime.shard.effects import Effects
from lapse.runtime.shard.inbox import Inbox
from lapse.runtime.shard.long_command import UNFINISHED, WAITING
from lapse.runtime.shard.machine import Machine
from lapse.runtime.shard.sent_log import AT_START, BEGIN, BEHIND
from lapse.runtime.tp import TP
from lapse.simulation import epoch_start
from lapse.simulation.arriving import ArrivingAsRecorded, cuts
from lapse.simulation.recorded_journal import RecordedEpoch, RecordedJournal, RecordedStep
from lapse.simulation.recording import Recording
from lapse.simulation.serving import Serving
from lapse.testing.memory_entity import QueueEntity
from lapse.testing.memory_log import MemoryLog, at_once
from lapse.testing.memory_reader import MemoryReader
from lapse.testing.unpacking import outputs_of

_MANY: Final = 1 << 40


class NotReplayable(Exception):
    """A recording lacks something that a replay needs; the text says what."""


class ReplayedShard:
    """One replayed shard.

    Args:
        name: name of the queue.
        servings: how the queue was served, by the version of its definition.
        partition: the shard's number.
        recording: the topics.
        journal: the shard's journal.
    """

    def __init__(
        self,
        name: str,
        servings: Mapping[int, Serving],
        partition: int,
        recording: Recording,
        journal: RecordedJournal,
    ) -> None:
        self._name = name
        self._servings = servings
        self._recording = recording
        self._partition = partition
        self._journal = journal
        self._own = Changelog(dict(journal.before.latest), journal.before.epoch, runtime=dict(journal.before.runtime))
        self._commands = TP(names.commands(name), partition)
        self._events = names.events(name)
        self._noted: Mapping[str, Any] | None = None
        self._reached_ms = 0

    def events(self) -> Iterator[Event]:
        """Yield the shard's events, in order.

        Raises:
            NotReplayable: something is missing.
        """
        for epoch in self._journal.epochs:
            yield from self._epoch(epoch)

    # An epoch

    def _epoch(self, epoch: RecordedEpoch) -> Iterator[Event]:
        self._check(epoch)
        serving = self._find_serving(epoch)
        if epoch.taken_over:
            for key, value in epoch.lost:
                self._own.take(key, value, epoch_header(self._own.epoch))
            self._own.take(claim_key(epoch.number), b"", epoch_header(epoch.number))
        positions = dict(epoch.begin.positions)
        of_messages = {tp: offset for tp, offset in positions.items() if offset and self._reads(serving, tp)}
        began_ms = epoch_start.began_ms(epoch)
        entity = QueueEntity(self._name, serving.config, self._recording, serving.forward)
        if epoch.growth is not None:
            entity.shards = epoch.growth.shards
        machine = entity.machine(self._partition, epoch.number, self._own, of_messages)
        assert isinstance(machine, QueueMachine)
        epoch_start.grow(machine, epoch)
        deliveries = [names.deliveries(self._name)]
        if serving.guard is not None:
            log, position = MemoryLog(self._recording), positions[self._commands]
            machine.guarded(at_once(remembering(serving.guard, self._commands, position, log, began_ms)))
            deliveries += serving.guard.deliveries
        arriving = ArrivingAsRecorded(machine, self._recording)
        taking = cast("Machine", arriving)  # it has everything that an inbox needs
        inbox = Inbox(MemoryReader(self._recording), taking, self._commands, positions, None, lambda: None)
        machine.begin_topics([], {})
        for tp in positions:
            if self._reads(serving, tp):
                machine.shard.state.sources.number(*tp)  # its records came, perhaps without room for them (Q13)
        self._find_unwritten(machine, epoch, deliveries)
        self._noted = epoch.begin.noted
        # If the replay begins within an epoch, keep what the epoch itself has written under the same keys.
        self._take(epoch.number, sorted(machine.take_over(began_ms), key=lambda item: item[1] is not None))
        machine.arrivals_are_in(0)
        self._reached_ms = 0
        if not epoch.taken_over:
            self._restore_unjournaled(machine, epoch, serving)
        counted: Effects | None = None
        for step in epoch.steps:
            if counted is not None:
                machine.written(counted, step.instants.get("written", step.at_ms))
            arriving.arrived_ms, arriving.batches = step.arrived_ms, step.batches
            effects = self._step(machine, inbox, step)
            self._take(epoch.number, [*effects.ahead, *effects.journal])
            counted = effects if effects.counted_to >= 0 else None
            self._noted = step.noted
            for output in outputs_of(effects.before):
                if output.topic == self._events and output.value is not None:
                    yield event.decode(output.value)

    def _reads(self, serving: Serving, tp: TP) -> bool:
        """Return whether the queue reads a topic; a journal also keeps the positions of topics that were taken away."""
        return tp.topic in serving.config.underlying(self._name) or serving.config.reads(tp.topic)

    def _restore_unjournaled(self, machine: QueueMachine, epoch: RecordedEpoch, serving: Serving) -> None:
        """Restore what the owner had read before, where its journal does not say it."""
        log = self._recording.log(*self._commands)
        read = log[: epoch.begin.positions.get(self._commands, 0)]
        self._reached_ms = epoch_start.reached_ms(read)
        authorizer = None if serving.guard is None else CommandAuthorizer(serving.guard, self._partition)
        # If Kafka has removed some of the commands, a subscription may have been heard since.
        unheard_ms = epoch_start.latest_known_ms(epoch) if log.begins else epoch_start.began_ms(epoch)
        epoch_start.restore_last_seen(machine, read, authorizer, unheard_ms)

    def _check(self, epoch: RecordedEpoch) -> None:
        """Check that everything that the epoch read is in the recording.

        Raises:
            NotReplayable: something is missing.
        """
        for tp, offset in epoch.begin.positions.items():
            last = max((step.positions.get(tp, 0) for step in epoch.steps), default=0)
            log = self._recording.log(*tp)
            if last > offset and log.begins > offset:
                raise NotReplayable(
                    f"{tp.topic}:{tp.partition} begins at offset {log.begins} now, and epoch {epoch.number} "
                    f"read it from {offset} on; begin later, with --since"
                )

    def _find_serving(self, epoch: RecordedEpoch) -> Serving:
        """Return how the owner served the queue.

        Raises:
            NotReplayable: the topic no longer has that version of the definition.
        """
        found = self._servings.get(epoch.definition)
        if found is None:
            there = ", ".join(map(str, sorted(self._servings))) or "none"
            raise NotReplayable(
                f"epoch {epoch.number} was served by version {epoch.definition} of the definition of {self._name}. "
                f"Its topic has version {there} by now: Kafka compacts it. Begin later, with --since"
            )
        return found

    def _find_unwritten(self, machine: QueueMachine, epoch: RecordedEpoch, deliveries: Sequence[str]) -> None:
        """Handle deliveries that the previous owner journaled and did not write as in the recording (C55)."""
        noted = parse_noted(self._noted)
        if noted is None:
            return
        ends: dict[TP, int] = {}
        for tp in (TP(topic, self._partition) for topic in deliveries):
            log = self._recording.log(*tp)
            since = log[noted.floors.get(tp.topic, 0) :]
            ends[tp] = next((one.offset for one in since if _epoch(one) >= epoch.number), len(log))
        reader = MemoryLog(self._recording.cut(ends))
        read = lambda: read_written(reader, noted, deliveries, self._partition)  # noqa: E731
        at_once(machine.unwritten(noted, read, epoch_start.unwritten_search_ms(epoch)))
        for step in epoch.steps[:1]:
            machine.unsent.repeat(step.instants, AT_START)

    def _take(self, epoch: int, items: Items) -> None:
        """Keep what the shard journals, which is the beginning of the next epoch's state."""
        headers = epoch_header(epoch)
        for key, value in items:
            self._own.take(key, value, headers)

    # A step

    def _step(self, machine: QueueMachine, inbox: Inbox, step: RecordedStep) -> Effects:
        """Do one step, in the order of a worker's (`Runner._step`)."""
        instants = step.instants
        self._recording.now_ms = instants.get("arrived", step.at_ms)
        machine.now_ms = max(machine.now_ms, instants.get("from", 0))
        machine.crowd.give(instants.get("room", _MANY))
        machine.rewinder.give(instants.get("part", PART), "stopped" in instants)
        machine.begin_step()
        if SET_BACK in instants:
            machine.set_back(instants[SET_BACK])
            self._reached_ms = min(self._reached_ms, instants[SET_BACK])
        at_once(machine.hand_on(_write))
        machine.unsent.repeat(instants, BEGIN)
        for take in step.takes:
            self._feed_records(inbox, step, take)
            self._take_messages(machine, inbox)
        self._feed_records(inbox, step, step.positions)
        self._take_messages(machine, inbox)
        if machine.unfinished is not None:
            machine.continue_command()
        if machine.unfinished is None:
            inbox.take_commands(_MANY, None, self._tick)
            while inbox.held_ms is not None:
                machine.arrivals_are_in(inbox.held_ms)
                inbox.take_commands(_MANY, None, self._tick)
        if "in" in instants:  # a worker knows only then that no older message comes (C76)
            machine.arrivals_are_in(instants["in"])
        machine.unsent.repeat(instants, BEHIND)
        if machine.is_due(self._reached_ms):
            machine.advance(self._reached_ms)
        if "delivered" in instants:
            machine.deliver(instants["delivered"])
        return at_once(machine.finish(_write))

    def _feed_records(self, inbox: Inbox, step: RecordedStep, positions: Mapping[TP, int]) -> None:
        """Bring the records that the step read up to these positions, batch by batch as recorded."""
        begun = max((step.instants[name] for name in (UNFINISHED, WAITING) if name in step.instants), default=-1)
        for tp, end in positions.items():
            if tp not in inbox.received:
                inbox.adopt(tp, 0)
            # The noted position of a command that was begun and not finished is that of the command itself. Later ones
            # may have been taken in with it, and wait for its end.
            stop = end if tp != self._commands else max(end, begun + 1)
            batches = step.batches.get(tp, ())
            # If there was too little room for a batch, all of it had come, and its last record has the instant (C60).
            # There may be offsets without a record before it. What a later take of the step took in comes then.
            log, taken = self._recording.log(*tp), step.positions.get(tp, end)
            came = [(first, last) for first, last in batches if first < end or taken <= first]
            stop = max([stop, *(last for first, last in came if end < last and not log[end:first])])
            ends = {one for one in cuts(batches) if inbox.received[tp] < one < stop}
            for one in sorted(ends | {stop}):
                records = log[inbox.received[tp] : one]
                if records:
                    inbox.receive(tp, records)

    def _take_messages(self, machine: QueueMachine, inbox: Inbox) -> None:
        taken = 1
        while taken:
            taken = inbox.take_messages(machine.step_records)

    def _tick(self, record: Any) -> None:
        self._reached_ms = max(self._reached_ms, record.timestamp)


async def _write(letters: Sequence[Output | Packed]) -> dict[int, Refusal]:
    """Accept all dead letters."""
    return {}


def _epoch(record: Any) -> int:
    """Return the epoch of a record of a deliveries topic; 0 if it has none."""
    stated = dict(record.headers).get(header.EPOCH, b"")
    return int(stated) if stated.isdigit() else 0
