"""What a queue's step leaves in Kafka before its deliveries: its events, and its journal (D4, Q16)."""

from __future__ import annotations

from lapse.core.portions import Portions
from lapse.core.queue.journal.queue_journal import QueueJournal
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.core.shard.changelog import Items
from lapse.runtime.queue.in_flight import EMITTED, QueueStepInFlight
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.queue.parts_journal import PartsJournal
from lapse.runtime.shard.effects import Effects


class StepRecords:
    """Turns the decisions of a shard's steps into the records of their events and of its journal.

    Args:
        shard: the shard.
        journal: encodes the changes.
        parts: encodes what the parts of a long command have done.
        output: turns events into records.
    """

    def __init__(self, shard: QueueShard, journal: QueueJournal, parts: PartsJournal, output: QueueOutput) -> None:
        self._shard = shard
        self._journal = journal
        self._parts = parts
        self._output = output

    def beginning(self) -> Portions[Items]:
        """See `QueueJournal.beginning`."""
        return self._journal.beginning()

    def lost(self, step: Step) -> Items:
        """See `QueueJournal.lost`."""
        return self._journal.lost(step) if step.lost else []

    def put(self, flight: QueueStepInFlight, effects: Effects) -> None:
        """Put the records of a step into its effects, and say in them how its deliveries are written."""
        step, allowance = flight.core, self._shard.allowance
        emitted = flight.unread + self._output.events(step.events, step.removals)
        effects.before += emitted
        if emitted:
            flight.instants[EMITTED] = len(emitted)
        effects.step = self._shard.state.sequence
        effects.delivers = bool(step.deliveries)
        if step.deliveries and allowance.is_bounded:
            effects.must_arrive, effects.counted_to = True, allowance.counted_to
        if step.changes or step.removals:
            effects.journal = self._journal.encode(step)
        effects.journal += self._parts.items()

    def ahead(self) -> Items:
        """Return the segments to write whole with the next step; see `QueueJournal.maintain`."""
        return self._journal.maintain()
