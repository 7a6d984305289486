"""Rewinds: a shard's memory of its rewinds, and of messages that must not come back (Q22, C61 to C63).

A shard keeps a few ranges for each rewind, and ranges of messages that were handed over or never became visible. It
keeps nothing for single messages: a message has left if the rest of the state does not contain it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lapse.core.generation import generation_of, offset_of, position_of
from lapse.core.queue.arrival.offset_ranges import OffsetRanges, Range
from lapse.core.queue.arrival.sources import Sources
from lapse.core.queue.change import Change
from lapse.core.queue.rewind import packed_ranges
from lapse.core.queue.settlement.settlement import Outcome, Result

REMEMBERED: Final = 64
"""How many rewinds are remembered, so that a repeated command with the same id is answered again."""

MOST_LIVE: Final = 1_000
"""How many ranges of live messages a rewind remembers. Settlements of others may be answered `stale`."""

CHUNK_BITS: Final = packed_ranges.STRETCH_BITS
"""Notes of messages that do not come back are kept by stretches of 2 ** `CHUNK_BITS` offsets."""

_SUPERSEDED: Final = frozenset({Result.ALREADY_SETTLED, Result.TIME_LIMIT})


@dataclass(slots=True)
class Span:
    """The part of a rewind that concerns one source.

    Attributes:
        generation: the generation of the messages that it brings back.
        first: offset of the first record that it reads.
        cursor: offset of the record that it reads next.
        stop: offset after the last record that it reads; later ones had not arrived.
        live: ranges of messages that it found live and left unchanged.
        brought: how many messages it has brought back. If none, the source keeps its generation.
    """

    generation: int
    first: int
    cursor: int
    stop: int
    live: OffsetRanges = field(default_factory=OffsetRanges)
    brought: int = 0

    def facts(self) -> list[Any]:
        """Return the values that the journal holds."""
        return [self.generation, self.first, self.cursor, self.stop, list(self.live), self.brought]

    @classmethod
    def from_facts(cls, facts: list[Any]) -> Span:
        """Return the object of a journal record's values."""
        generation, first, cursor, stop, live, brought = facts
        return cls(generation, first, cursor, stop, OffsetRanges(live), brought)


@dataclass(slots=True)
class Rewind:
    """A rewind of a shard.

    Attributes:
        id: id of its command.
        number: its number among the shard's rewinds.
        at_ms: its command's instant, ms since the epoch, at which it takes effect.
        command: offset of its command.
        filter: the expression that records must match; empty = all match.
        keeps_lifetimes: whether lifetimes count from the records' arrival instead of from the rewind.
        handed_over: whether it brings back messages that were handed over or forwarded, too.
        spans: its spans by number of the source; once done, without sources of which nothing came back.
        counts: how many records it brought back or left out, by kind.
        done: whether it is finished.
    """

    id: str
    number: int
    at_ms: int
    command: int
    filter: str = ""
    keeps_lifetimes: bool = False
    handed_over: bool = False
    spans: dict[int, Span] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    done: bool = False

    def facts(self) -> dict[str, Any]:
        """Return the values that the journal holds."""
        return {
            "id": self.id,
            "number": self.number,
            "at_ms": self.at_ms,
            "command": self.command,
            "filter": self.filter,
            "keeps_lifetimes": self.keeps_lifetimes,
            "handed_over": self.handed_over,
            "spans": [[source, *span.facts()] for source, span in self.spans.items()],
            "counts": self.counts,
            "done": self.done,
        }

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Rewind:
        """Return the object of a journal record's values."""
        spans = {source: Span.from_facts(rest) for source, *rest in facts["spans"]}
        return cls(**{**facts, "spans": spans, "counts": dict(facts["counts"])})


@dataclass(slots=True)
class Departed:
    """Messages in a stretch of a source's offsets that a rewind does not bring back, or only on request.

    Attributes:
        elsewhere: offsets of messages that were handed over to another deployment, or forwarded.
        never: offsets of records that a transfer put here and never confirmed, so they were not messages of this queue.
    """

    elsewhere: OffsetRanges = field(default_factory=OffsetRanges)
    never: OffsetRanges = field(default_factory=OffsetRanges)

    def facts(self) -> dict[str, Any]:
        """Return the values that the journal holds."""
        return {"elsewhere": packed_ranges.pack(self.elsewhere), "never": packed_ranges.pack(self.never)}

    def add(self, facts: Mapping[str, Any]) -> None:
        """Add the offsets of a change, or of a journal record."""
        for name, known in (("elsewhere", self.elsewhere), ("never", self.never)):
            for first, last in packed_ranges.unpack(facts.get(name, ())):
                known.add(first, last)


class Rewinds:
    """The rewinds of a shard, and its notes of messages that must not come back.

    Args:
        sources: the shard's sources.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._by_number: dict[int, Rewind] = {}
        self.departed: dict[tuple[int, int], Departed] = {}
        """Notes by number of the source and number of the stretch, which is the offset >> `CHUNK_BITS`."""

    def __iter__(self) -> Iterator[Rewind]:
        return iter(self._by_number.values())

    def __bool__(self) -> bool:
        return bool(self._by_number)

    def get(self, rewind_id: str) -> Rewind | None:
        """Return the rewind with an id; None if it is not remembered."""
        return next((one for one in self._by_number.values() if one.id == rewind_id), None)

    @property
    def under_way(self) -> Rewind | None:
        """The rewind that is not done yet; None without one."""
        if not self._by_number:  # the usual case, checked for each message and command
            return None
        return next((one for one in self._by_number.values() if not one.done), None)

    @property
    def next_number(self) -> int:
        """The number for the next rewind."""
        return max(self._by_number, default=-1) + 1

    def outdated(self) -> list[int]:
        """Return the numbers of rewinds to forget: old ones whose effect is covered by later ones."""
        numbers = sorted(self._by_number)[:-REMEMBERED]
        return [number for number in numbers if self._is_covered(self._by_number[number])]

    def _is_covered(self, rewind: Rewind) -> bool:
        """Return whether, for each of a rewind's sources, a later rewind begins at the same offset or before."""
        return all(
            any(
                later.number > rewind.number and source in later.spans and later.spans[source].first <= span.first
                for later in self._by_number.values()
            )
            for source, span in rewind.spans.items()
        )

    def apply(self, change: Change) -> None:
        """Carry out a change: set or forget a rewind."""
        if change.facts:
            self.add(change.facts)
        else:
            self._by_number.pop(change.holder, None)

    def add(self, facts: dict[str, Any]) -> None:
        """Set a rewind from its journaled values."""
        rewind = Rewind.from_facts(facts)
        self._by_number[rewind.number] = rewind
        self.settle_generations()

    def settle_generations(self) -> None:
        """Set the generation of each source known so far to the highest of its rewinds."""
        highest: dict[int, int] = {}
        for rewind in self._by_number.values():
            for number, span in rewind.spans.items():
                highest[number] = max(highest.get(number, 0), span.generation)
        for number in range(len(self._sources)):
            self._sources[number].generation = highest.get(number, 0)

    def depart(self, change: Change) -> None:
        """Carry out a change: extend or forget the note about a stretch."""
        if change.facts:
            self.departed.setdefault((change.source, change.offset), Departed()).add(change.facts)
        else:
            self.departed.pop((change.source, change.offset), None)

    def departed_in(self, source: int, first: int, last: int) -> Iterator[Departed]:
        """Yield the notes about the stretches that contain some of the offsets from `first` to `last`."""
        for chunk in range(first >> CHUNK_BITS, (last >> CHUNK_BITS) + 1):
            found = self.departed.get((source, chunk))
            if found is not None:
                yield found

    def with_stale_results(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Return outcomes with the result STALE for messages of a generation that a rewind superseded (C61)."""
        if not self._by_number:
            return outcomes
        return [part for one in outcomes for part in self._split_stale(one)]

    def _split_stale(self, one: Outcome) -> Iterator[Outcome]:
        number = self._sources.find(one.topic, one.partition)
        if number is None or one.result not in _SUPERSEDED:
            yield one
            return
        at = one.first
        for first, last in self._superseded(number, one.first, one.last):
            if first > at:
                yield one._replace(first=at, last=first - 1)
            yield one._replace(first=first, last=last, result=Result.STALE)
            at = last + 1
        if at <= one.last:
            yield one._replace(first=at)

    def _superseded(self, source: int, first: int, last: int) -> Iterable[Range]:
        """Return the ranges of positions of one generation that a later rewind read and did not find live."""
        generation, found = generation_of(first), OffsetRanges()
        for rewind in self._by_number.values():
            span = rewind.spans.get(source)
            if span is None or span.generation <= generation:
                continue
            at, behind = max(offset_of(first), span.first), min(offset_of(last) + 1, span.cursor)
            for low, high in [*span.live.parts_between(at, behind - 1), (behind, behind)]:
                if low > at:
                    found.add(position_of(at, generation), position_of(low - 1, generation))
                at = max(at, high + 1)
        return found
