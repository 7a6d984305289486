"""The recorded journal of a shard: its epochs, with read positions of each step, and instants from the clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from lapse.core.queue.journal.inherited import Inherited, inherited
from lapse.core.shard.changelog import CLAIM, PROGRESS, Changelog, Items
from lapse.core.shard.compaction import Compaction
from lapse.core.shard.growth import Growth
from lapse.runtime.queue.growing import KEY as GROWTH
from lapse.runtime.queue.in_flight import TAKEN
from lapse.runtime.shard.sent_log import INSTANTS, PROGRESS_KEY, READ, STEPS
from lapse.runtime.tp import TP


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step of a shard.

    Attributes:
        at_ms: when it was journaled, ms since the epoch.
        positions: next offset of each source, including the commands, behind the step.
        instants: the instants that it took from the clock, by name, ms since the epoch.
        batches: first offset, and offset behind the last, of records that arrived together, as far as recorded.
        arrived_ms: by topic, partition and first offset, when some of these arrived, ms since the epoch.
        takes: the next offsets after each take from several partitions, before the end of the step.
        noted: its note about deliveries (C55); None without one.
    """

    at_ms: int
    positions: Mapping[TP, int]
    instants: Mapping[str, int]
    noted: Mapping[str, Any] | None
    batches: Mapping[TP, Sequence[tuple[int, int]]] = field(default_factory=dict)
    arrived_ms: Mapping[tuple[str, int, int], int] = field(default_factory=dict)
    takes: Sequence[Mapping[TP, int]] = ()


@dataclass(slots=True)
class RecordedEpoch:
    """The steps of one owner.

    Attributes:
        number: the epoch.
        begin: the positions where it begins.
        steps: its steps.
        taken_over: whether it begins with its take-over. Otherwise the replay begins within it.
        taken_over_ms: when it was taken over, if the replay begins within it, ms since the epoch; None if not recorded.
        definition: version of the queue's definition that its owner used; 0 for that of its `lapse.toml` (C66).
        growth: the note about the shards of the queue, where it has several (C81).
        inherited: what a new shard has taken over from older ones, where it begins to read (C81).
        lost: what the owner before has journaled ahead of its last step: the consumers that were lost in it (C5).
    """

    number: int
    begin: RecordedStep
    steps: list[RecordedStep] = field(default_factory=list)
    taken_over: bool = True
    taken_over_ms: int | None = None
    definition: int = 0
    growth: Growth | None = None
    inherited: Inherited | None = None
    lost: Items = field(default_factory=list)


class RecordedJournal:
    """A shard's changelog, from the point on from which it can be replayed.

    Args:
        records: the changelog's records, by their offsets.
        since_ms: where to begin, ms since the epoch; None for as early as possible.
        until_ms: where to end, ms since the epoch; None for its end.

    Attributes:
        before: the contents of the journal at that point, which are the first state.
        epochs: the epochs from there on.
    """

    def __init__(self, records: Sequence[Any], since_ms: int | None = None, until_ms: int | None = None) -> None:
        self.before = Changelog()
        self.epochs: list[RecordedEpoch] = []
        changelog, begins = Changelog(), _first_whole(records)
        claimed, definition = False, 0
        known: Mapping[TP, int] = {}
        lost, left = Items(), Items()
        for at, record in enumerate(records):
            if until_ms is not None and record.timestamp > until_ms:
                break
            is_before = at < begins or (since_ms is not None and record.timestamp < since_ms)
            if not changelog.take(record.key, record.value, record.headers):
                continue
            if is_before:
                self.before.take(record.key, record.value, record.headers)
            if record.key.startswith(CLAIM):
                claimed, definition = True, _definition(record.value)
                lost, left = [], lost
            elif _is_of_lost(record):
                lost.append((record.key, record.value))
            elif record.key.startswith(PROGRESS) and record.value is not None:
                *alone, step = _steps(record)
                lost = []
                if claimed or not self.epochs:
                    taken_over = claimed and not is_before
                    began_ms = step.at_ms if claimed and is_before else None
                    epoch = RecordedEpoch(
                        changelog.epoch, step, [], taken_over, began_ms, definition, _growth(changelog)
                    )
                    epoch.lost = left
                    epoch.inherited = _inherited(changelog, epoch.growth, step.positions, known)
                    self.epochs.append(epoch)
                    claimed = False
                elif is_before:
                    epoch = self.epochs[-1]
                    epoch.begin, epoch.taken_over = step, False
                    all_began_ms = (one.instants["began"] for one in (*alone, step) if "began" in one.instants)
                    epoch.taken_over_ms = next(all_began_ms, epoch.taken_over_ms)
                else:
                    self.epochs[-1].steps += [*alone, step]
                if is_before:
                    self.epochs = self.epochs[-1:]
                known = step.positions

    @property
    def began_ms(self) -> int | None:
        """When the replay can begin, ms since the epoch; None if the journal is empty."""
        return self.epochs[0].begin.at_ms if self.epochs else None


def _first_whole(records: Sequence[Any]) -> int:
    """Return the index of the record behind which nothing is missing; 0 if nothing was ever removed."""
    compaction, first = Compaction(), 0
    for at, record in enumerate(records):
        was_whole = compaction.whole
        compaction.take(record.offset, record.key)
        if not (was_whole and compaction.whole):
            first = at + 1
    return first


def _is_of_lost(record: Any) -> bool:
    """Return whether a record says that a subscription has lost its consumer, ahead of the step that ends it (C5)."""
    return record.key[:1] == b"c" and record.value is not None and bool(orjson.loads(record.value).get("lost"))


def _growth(journal: Changelog) -> Growth | None:
    """Return a journal's note about the shards of the queue; None if it has one shard."""
    note = journal.runtime.get(GROWTH)
    return None if note is None else Growth.decode(note)


def _inherited(
    journal: Changelog, note: Growth | None, positions: Mapping[TP, int], known: Mapping[TP, int]
) -> Inherited | None:
    """Return what a shard has taken over from older ones, from the beginning of its epoch (C81).

    Args:
        journal: its journal up to that beginning.
        note: the note about the shards.
        positions: the read positions there.
        known: the read positions before.
    """
    read = {} if note is None else note.read
    begun = {
        (tp.topic, tp.partition): offset
        for tp, offset in positions.items()
        if tp not in known and f"{tp.topic}:{tp.partition}" in read
    }
    return inherited(journal.latest.items(), begun) if begun else None


def _definition(claim: bytes | None) -> int:
    """Return the version of the definition that a claim names (C66)."""
    _, _, version = (claim or b"").rpartition(b", definition ")
    return int(version) if version.isdigit() else 0


def _steps(record: Any) -> list[RecordedStep]:
    """Return the step in a record, preceded by earlier steps without changes that must be replayed alone."""
    known: dict[str, Any] = orjson.loads(record.value)
    noted = known.pop(PROGRESS_KEY, None)
    facts = noted or {}
    alone = [_step(record, noted, one[READ], one[INSTANTS]) for one in facts.get(STEPS, ())]
    return [*alone, _step(record, noted, known, facts.get(INSTANTS, {}))]


def _step(
    record: Any, noted: Mapping[str, Any] | None, read: Mapping[str, Any], stamps: Mapping[str, int]
) -> RecordedStep:
    """Return one step from its read positions and its instants."""
    positions: dict[TP, int] = {}
    for source_key, offset in read.items():
        topic, colon, partition = source_key.rpartition(":")
        if colon and partition.isdigit():
            positions[TP(topic, int(partition))] = int(offset)
    instants: dict[str, int] = {}
    batches: dict[TP, list[tuple[int, int]]] = {}
    arrived_ms: dict[tuple[str, int, int], int] = {}
    takes: dict[str, dict[TP, int]] = {}
    for name, value in stamps.items():
        match name.split(":"):  # topic names have no colon
            case [topic, partition, first]:
                batches.setdefault(TP(topic, int(partition)), []).append((int(first), value))
            case [kind, take, topic, partition] if kind == TAKEN:
                takes.setdefault(take, {})[TP(topic, int(partition))] = value
            case [_, topic, partition, first]:
                arrived_ms[topic, int(partition), int(first)] = value
            case _:
                instants[name] = value
    return RecordedStep(record.timestamp, positions, instants, noted, batches, arrived_ms, [*takes.values()])
