"""Writes the effects of a step in the order on which every guarantee rests.

Dead letters and events come first, then the journal, then deliveries, then the acknowledgment of the source offsets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

import orjson

from lapse.core.shard.changelog import Items, progress_key
from lapse.runtime.journal.store import JournalStore
from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.kafka.producer import BatchProducer
from lapse.runtime.letters.letter_writer import LetterWriter
from lapse.runtime.letters.refusal import Refusal
from lapse.runtime.shard.deliveries_under_way import DeliveriesUnderWay
from lapse.runtime.shard.effects import Effects
from lapse.runtime.shard.figures import ShardFigures
from lapse.runtime.shard.quiet_steps import QuietSteps
from lapse.runtime.shard.sent_log import INSTANTS, PROGRESS_KEY, STEPS
from lapse.runtime.shard.timeline import Stage
from lapse.runtime.timers.clock import WorkerClock
from lapse.runtime.topics.topic_id import KnownTopics
from lapse.runtime.tp import TP
from lapse.runtime.watch import Watch


class EffectWriter:
    """Writes the effects of one shard's steps.

    Args:
        partition: the shard's number.
        epoch: the shard's epoch.
        store: keeps the journal.
        producer: writes the outputs.
        letters: writes the dead letters.
        deliveries: sends deliveries and answers to clients.
        topics: the topics to which the read positions belong.
        clock: the broker's clock, measured by each journal write.
        watch: notices a frozen process.
        figures: counts what the shard has done.

    Attributes:
        wrote: whether the last step had anything to write.
    """

    def __init__(
        self,
        *,
        partition: int,
        epoch: int,
        store: JournalStore,
        producer: BatchProducer,
        letters: LetterWriter,
        deliveries: DeliveriesUnderWay,
        topics: KnownTopics,
        clock: WorkerClock,
        watch: Watch,
        figures: ShardFigures,
    ) -> None:
        self.wrote = False
        self._partition = partition
        self._epoch = epoch
        self._store = store
        self._producer = producer
        self._letters = letters
        self._deliveries = deliveries
        self._topics = topics
        self._clock = clock
        self._watch = watch
        self._figures = figures
        self._journaled_at = 0.0
        self._instants: dict[str, int] = {}
        """Instants taken from the clock since the last journal, or since the last quiet step that was noted."""

        self._quiet = QuietSteps()
        self._in_order = asyncio.Lock()
        """Held until the events of a step are sent, so that those of the next step come behind them."""

    async def begin(self, began: Items, processed: Mapping[TP, int]) -> None:
        """Make the epoch's beginning durable."""
        self._quiet.begin(_source_keys(processed))
        await self._store.commit(self._partition, self._epoch, began, [self._progress(processed, 0)])
        self._journaled_at = time.monotonic()

    async def write(
        self,
        effects: Effects,
        processed: Mapping[TP, int],
        decided: float | None,
        after: asyncio.Task[None] | None = None,
    ) -> None:
        """Write the effects of one step.

        Args:
            effects: the effects.
            processed: next offset of each source after the step.
            decided: when its deliveries were decided, on the monotonic clock, s; None if there are none.
            after: the task that writes the step before. This journal waits for it.
        """
        self.wrote = bool(effects.before or effects.journal or effects.after or effects.ahead)
        self._deliveries.expect(effects.step, decided if effects.leased else None)
        if effects.before:
            async with self._in_order:
                await self.confirm()
                sent = await self._producer.send(effects.before)
            for future in sent:
                await future
        if after is not None:
            await after  # journals are written one by one
        self._instants |= effects.instants  # the journal of the step before has taken its own by now
        must_last = effects.journal or effects.ahead or effects.has_acted
        if must_last or time.monotonic() - self._journaled_at > 1:
            await self._write_journal(effects, processed)
        elif self._quiet.add(_source_keys(processed), self._instants, alone=effects.stands_alone):
            self._instants = {}
        if effects.after:
            delivered = decided if effects.delivers else None
            await self._deliveries.send(effects.step, effects.after, delivered, effects.kept, effects.leased)
            if effects.must_arrive:
                await self._deliveries.arrive()

    async def note(self, items: Items) -> None:
        """Journal items ahead of their step, without read positions."""
        self._watch.check()
        await self._store.commit(self._partition, self._epoch, [], items)
        self._journaled_at = time.monotonic()

    async def _write_journal(self, effects: Effects, processed: Mapping[TP, int]) -> None:
        self._watch.check()
        sent = time.monotonic()
        await self._deliveries.collect(effects.step)
        journal = [*effects.journal, self._progress(processed, effects.step)]
        written = await self._store.commit(self._partition, self._epoch, effects.ahead, journal)
        self._journaled_at = time.monotonic()
        self._figures.journal_bytes += written
        self._figures.stages[Stage.JOURNAL].add(self._journaled_at - sent)
        timestamp_ms = self._store.last_timestamp_ms
        if timestamp_ms is not None:
            self._clock.measured(sent, self._journaled_at, timestamp_ms)

    async def confirm(self) -> None:
        """Check that this process still owns the shard, before a write that cannot be undone."""
        self._watch.check()
        if time.monotonic() - self._journaled_at > self._watch.session_s / 2:
            await self._store.confirm(self._partition)

    async def write_letters(self, letters: Sequence[Output | Packed]) -> dict[int, Refusal]:
        """Write a step's dead letters; return those that Kafka refuses, by their indexes."""
        await self.confirm()
        return await self._letters.write(letters)

    async def write_letters_again(self, letters: Sequence[Output | Packed]) -> dict[int, Refusal]:
        """Write refused letters again, beside the steps; return those refused again. Their ids stay the same (D3)."""
        self._watch.check()
        return await self._letters.write(letters)

    def _progress(self, processed: Mapping[TP, int], step: int) -> tuple[bytes, bytes]:
        sent = self._deliveries.progress(step)
        if self._instants and PROGRESS_KEY in sent:
            sent[PROGRESS_KEY][INSTANTS] = self._instants
            self._instants = {}
        offsets = _source_keys(processed)
        if (quiet := self._quiet.take(offsets)) and PROGRESS_KEY in sent:
            sent[PROGRESS_KEY][STEPS] = quiet
        known = {**self._topics.absent, **offsets, **self._topics.facts, **sent}
        return progress_key(self._epoch), orjson.dumps(known)


def _source_keys(processed: Mapping[TP, int]) -> dict[str, int]:
    """Return the next offset of each source, in the journal's form."""
    return {f"{tp.topic}:{tp.partition}": offset for tp, offset in processed.items()}
