"""How messages left a queue's shard, by its journal alone (D8).

The journal records of each message that left whether its lifetime had ended. An event that contradicts the journal was
not written by the worker. Only messages with a place count: others were never in the queue.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from lapse.core.generation import offset_of
from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.journal.journal_record import changes_of, sources_of
from lapse.core.queue.life.movement import ENDS_LIFE
from lapse.core.shard.changelog import EPOCH_HEADER, Changelog

_STEP: Final = b"d"


class JournaledFate(NamedTuple):
    """Messages of one partition that left in the same way.

    Attributes:
        topic: their underlying topic.
        partition: its partition.
        first: position of the first one; it names the generation, too.
        last: that of the last one.
        epoch: who journaled it.
        in_time: whether they left before their lifetimes had ended; else since these had.
    """

    topic: str
    partition: int
    first: int
    last: int
    epoch: int
    in_time: bool


@dataclass(slots=True)
class _Run:
    """Messages with consecutive positions at consecutive places, and how many of them are still there."""

    place: int
    count: int
    topic: str
    partition: int
    position: int
    left: int


class JournaledFates:
    """Reads the journal of one shard, record by record. Messages that arrived before its first record are left out."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self._claims = Changelog()

    def take(self, key: bytes | None, value: bytes | None, epoch: bytes | None) -> Iterator[JournaledFate]:
        """Take in the next record; returns what left by it.

        Args:
            key: its key.
            value: its value; None = the key is gone.
            epoch: its header that says who wrote it, as it stands there; None = it has none.
        """
        headers = [] if epoch is None else [(EPOCH_HEADER, epoch)]
        counts = self._claims.take(key, None, headers)  # without the value: only whether the epoch counts matters
        self._claims.void.clear()
        if not counts or key is None or value is None or key[:1] != _STEP:
            return
        sources = sources_of(value)
        for change in changes_of(value):
            if change.kind is ChangeKind.ARRIVED:
                source = sources[change.source]
                self._arrive(change, source.topic, source.partition)
            elif change.kind in ENDS_LIFE:
                for topic, partition, first, last in self._leave(change):
                    if change.kind is not ChangeKind.RELEASED:
                        in_time = change.kind is ChangeKind.SETTLED
                        yield JournaledFate(topic, partition, first, last, self._claims.epoch, in_time)
            elif change.kind is ChangeKind.REPLACED:
                gone = sources[change.source]
                replaced = gone.topic, gone.partition
                self._runs = [run for run in self._runs if (run.topic, run.partition) != replaced]

    def _arrive(self, change: Change, topic: str, partition: int) -> None:
        ((place, count),) = change.places
        runs = self._runs
        while runs and runs[-1].place >= place:  # journaled by an owner that had lost the shard
            runs.pop()
        last = runs[-1] if runs else None
        if (
            last is not None
            and last.place + last.count == place
            and (last.topic, last.partition, last.position + last.count) == (topic, partition, change.offset)
        ):
            last.count += count
            last.left += count
        else:
            runs.append(_Run(place, count, topic, partition, change.offset, count))

    def _leave(self, change: Change) -> Iterator[tuple[str, int, int, int]]:
        """The messages of a change's places: topic, partition, first and last position."""
        for place, count in change.places:
            end = place + count
            at = max(0, bisect_right(self._runs, place, key=lambda run: run.place) - 1)
            while at < len(self._runs) and self._runs[at].place < end:
                run = self._runs[at]
                first, stop = max(place, run.place), min(end, run.place + run.count)
                if first < stop:
                    begin = run.position + first - run.place
                    yield run.topic, run.partition, begin, begin + stop - first - 1
                    run.left -= stop - first
                if run.left <= 0:
                    del self._runs[at]
                else:
                    at += 1


def joined(some: Iterable[JournaledFate]) -> list[JournaledFate]:
    """The same, with neighbours that left in the same way as one: consumers acknowledge in any order."""
    found: list[JournaledFate] = []
    for one in sorted(some, key=lambda each: (each.topic, each.partition, each.epoch, each.in_time, each.first)):
        last = found[-1] if found else None
        if last is not None and last._replace(first=one.first, last=one.last) == one and last.last + 1 == one.first:
            found[-1] = last._replace(last=one.last)
        else:
            found.append(one)
    return found


def offsets(one: JournaledFate) -> tuple[int, int]:
    """The offsets of the first and the last record of a fate's messages."""
    return offset_of(one.first), offset_of(one.last)
