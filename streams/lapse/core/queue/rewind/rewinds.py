"""Rewinds: which messages a shard has brought back, and which it must not bring back (Q22, C61 to C63).

A shard keeps a few ranges for each rewind, and the ranges of messages that were handed over or never became visible.
It keeps nothing of single messages: a message has left if the rest of the state does not have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from lapse.core.generation import generation_of, offset_of, position_of
from lapse.core.queue.arrival.offset_ranges import OffsetRanges, Range
from lapse.core.queue.arrival.sources import Sources
from lapse.core.queue.change import Change
from lapse.core.queue.settlement.settlement import Outcome, Result

REMEMBERED: Final = 64
"""How many rewinds are remembered: each can be asked for again by its id."""

MOST_LIVE: Final = 1_000
"""How many ranges of live messages a rewind remembers. Beyond that, a settlement may be answered `stale`."""

CHUNK_BITS: Final = 16
"""Messages that are not to be brought back are noted together if their offsets agree but for this many bits."""

_SUPERSEDED: Final = frozenset({Result.ALREADY_SETTLED, Result.TIME_LIMIT})


@dataclass(slots=True)
class Span:
    """What a rewind does with one source.

    Attributes:
        generation: of the messages that it brings back.
        first: offset of the first record that it looks at.
        cursor: the record that it looks at next.
        stop: it looks at no record from here on: these had not arrived.
        live: ranges of messages that it found live and left as they were.
        brought: how many messages it has brought back. A source of which it brings none keeps its generation.
    """

    generation: int
    first: int
    cursor: int
    stop: int
    live: OffsetRanges = field(default_factory=OffsetRanges)
    brought: int = 0

    def facts(self) -> list[Any]:
        """What the journal keeps of it."""
        return [self.generation, self.first, self.cursor, self.stop, list(self.live), self.brought]

    @classmethod
    def of(cls, facts: list[Any]) -> Span:
        """Read it from the journal's record."""
        generation, first, cursor, stop, live, brought = facts
        return cls(generation, first, cursor, stop, OffsetRanges(live), brought)


@dataclass(slots=True)
class Rewind:
    """One rewind of a shard.

    Attributes:
        id: of its command.
        number: its turn among the shard's rewinds.
        at_ms: its command's instant, ms since the epoch: it counts as of then.
        command: offset of its command.
        filter: expression that records have to match; empty = all do.
        keeps_lifetimes: whether lifetimes count from the records' arrival still, instead of from the rewind.
        handed_over: whether it brings back what was handed over or forwarded, too.
        spans: what it does, by number of the source; at its end without the sources of which it brought nothing back.
        counts: what it has done, by kind.
        done: whether it is at its end.
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
        """What the journal keeps of it."""
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
    def of(cls, facts: dict[str, Any]) -> Rewind:
        """Read it from the journal's record."""
        spans = {source: Span.of(rest) for source, *rest in facts["spans"]}
        return cls(**{**facts, "spans": spans, "counts": dict(facts["counts"])})


@dataclass(slots=True)
class Departed:
    """Messages of a stretch of a source that a rewind does not bring back, or only on request.

    Attributes:
        elsewhere: handed over to another deployment, or forwarded.
        never: put here by a transfer, and never confirmed: they were no messages of this queue.
    """

    elsewhere: OffsetRanges = field(default_factory=OffsetRanges)
    never: OffsetRanges = field(default_factory=OffsetRanges)

    def facts(self) -> dict[str, Any]:
        """What the journal keeps of it."""
        return {"elsewhere": list(self.elsewhere), "never": list(self.never)}

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Departed:
        """Read it from the journal's record."""
        return cls(OffsetRanges(facts["elsewhere"]), OffsetRanges(facts["never"]))


class Rewinds:
    """The rewinds of a shard, and what they have to know of messages that left.

    Args:
        sources: the shard's.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._by_number: dict[int, Rewind] = {}
        self.departed: dict[tuple[int, int], Departed] = {}
        """By number of the source, and of the stretch of `CHUNK_BITS` bits of offsets."""

    def __iter__(self) -> Iterator[Rewind]:
        return iter(self._by_number.values())

    def __bool__(self) -> bool:
        return bool(self._by_number)

    def get(self, rewind_id: str) -> Rewind | None:
        """The rewind of that id; None if none is remembered."""
        return next((one for one in self._by_number.values() if one.id == rewind_id), None)

    @property
    def under_way(self) -> Rewind | None:
        """The rewind that is not at its end; None without one."""
        if not self._by_number:  # as nearly always, and it is asked with each message and command
            return None
        return next((one for one in self._by_number.values() if not one.done), None)

    @property
    def next_number(self) -> int:
        """A number that no rewind had."""
        return max(self._by_number, default=-1) + 1

    def outdated(self) -> list[int]:
        """Numbers of rewinds to be forgotten: later ones say all that still counts of them."""
        numbers = sorted(self._by_number)[:-REMEMBERED]
        return [number for number in numbers if self._is_covered(self._by_number[number])]

    def _is_covered(self, rewind: Rewind) -> bool:
        """Whether later rewinds of each of its sources begin no later; their generations are higher, too."""
        return all(
            any(
                later.number > rewind.number and source in later.spans and later.spans[source].first <= span.first
                for later in self._by_number.values()
            )
            for source, span in rewind.spans.items()
        )

    def apply(self, change: Change) -> None:
        """Carry out a change: know a rewind as it is now, or forget it."""
        if change.facts:
            self.add(change.facts)
        else:
            self._by_number.pop(change.holder, None)

    def add(self, facts: dict[str, Any]) -> None:
        """Know a rewind as it is now."""
        rewind = Rewind.of(facts)
        self._by_number[rewind.number] = rewind
        self.settle_generations()

    def settle_generations(self) -> None:
        """Tell the sources how often they were rewound, as far as they are known by now."""
        highest: dict[int, int] = {}
        for rewind in self._by_number.values():
            for number, span in rewind.spans.items():
                highest[number] = max(highest.get(number, 0), span.generation)
        for number in range(len(self._sources)):
            self._sources[number].generation = highest.get(number, 0)

    def depart(self, change: Change) -> None:
        """Carry out a change: note messages of a stretch that must not come back, or forget them."""
        if change.facts:
            self.departed[change.source, change.offset] = Departed.of(change.facts)
        else:
            self.departed.pop((change.source, change.offset), None)

    def departed_in(self, source: int, first: int, last: int) -> Iterator[Departed]:
        """What is known of the stretches that some offsets lie in."""
        for chunk in range(first >> CHUNK_BITS, (last >> CHUNK_BITS) + 1):
            found = self.departed.get((source, chunk))
            if found is not None:
                yield found

    def seen_after_rewinds(self, outcomes: list[Outcome]) -> list[Outcome]:
        """What became of messages, where those of a generation that a rewind left behind are `stale` (C61)."""
        if not self._by_number:
            return outcomes
        return [part for one in outcomes for part in self._seen(one)]

    def _seen(self, one: Outcome) -> Iterator[Outcome]:
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
        """Ranges of positions of one generation that a later rewind went over, and did not find live."""
        generation, found = generation_of(first), OffsetRanges()
        for rewind in self._by_number.values():
            span = rewind.spans.get(source)
            if span is None or span.generation <= generation:
                continue
            at, behind = max(offset_of(first), span.first), min(offset_of(last) + 1, span.cursor)
            for low, high in [*span.live.within(at, behind - 1), (behind, behind)]:
                if low > at:
                    found.add(position_of(at, generation), position_of(low - 1, generation))
                at = max(at, high + 1)
        return found
