"""Deletions by a filter or by bookmarks: a look at every record, in portions (S3).

It counts as of its command's instant: a record whose last update is later stays. Updates that come between two portions
are later, so it makes no difference how far it has come when they do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

from lapse.core.shard.answer import CommandAnswer
from lapse.core.sow.record import Facts, facts_of
from lapse.core.sow.record_names import Walk
from lapse.core.sow.removal import Removals
from lapse.core.sow.state import SowState
from lapse.core.sow.step import Step
from lapse.core.sow.subscription import Predicate

PORTION: Final = 500
"""So many records are looked at, and may leave, before others have their turn."""


class Places:
    """Bookmarks, as ranges of offsets by the number of their source.

    Args:
        ranges: first and last offset of each.
    """

    __slots__ = ("_ends", "_firsts")

    def __init__(self, ranges: Mapping[int, Sequence[tuple[int, int]]]) -> None:
        self._firsts: dict[int, list[int]] = {}
        self._ends: dict[int, list[int]] = {}
        for source, some in ranges.items():
            firsts, ends = self._firsts.setdefault(source, []), self._ends.setdefault(source, [])
            for first, last in sorted(some):
                if ends and first <= ends[-1]:
                    ends[-1] = max(ends[-1], last + 1)
                else:
                    firsts.append(first)
                    ends.append(last + 1)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def have(self, source: int, offset: int) -> bool:
        """Whether they name an offset of a source."""
        firsts = self._firsts.get(source)
        if firsts is None:
            return False
        at = bisect_right(firsts, offset) - 1
        return at >= 0 and offset < self._ends[source][at]


class Deletion:
    """One deletion at work.

    Args:
        state: the shard's memory.
        events: how its records leave.
        walk: the names of the records that may be meant.
        at_ms: as of when it counts, ms since the epoch.
        answer: its answer, without figures.
        predicates: which records are meant, all of them true.
        row_filter: of the records, those that are there for the user at all (X4); empty = all are.
        places: which updates, by their bookmarks; None = any.
        removed: what has left already by the same command.
    """

    __slots__ = (
        "_answer_of",
        "_at_ms",
        "_places",
        "_predicates",
        "_removals",
        "_row_filter",
        "_state",
        "_walk",
        "removed",
        "skipped",
    )

    def __init__(
        self,
        state: SowState,
        events: Removals,
        walk: Walk,
        at_ms: int,
        answer: CommandAnswer,
        *,
        predicates: tuple[Predicate, ...] = (),
        row_filter: tuple[Predicate, ...] = (),
        places: Places | None = None,
        removed: int = 0,
    ) -> None:
        self._state = state
        self._removals = events
        self._walk = walk
        self._at_ms = at_ms
        self._answer_of = answer
        self._predicates = predicates
        self._row_filter = row_filter
        self._places = places
        self.removed = removed
        self.skipped = 0

    @property
    def finished(self) -> bool:
        """Whether every record was looked at."""
        return self._walk.is_over

    @property
    def answer(self) -> CommandAnswer:
        """Its answer, with the figures so far."""
        return self._answer_of._replace(counts=(("removed", self.removed), ("skipped", self.skipped)))

    def go_on(self, step: Step, portion: int = PORTION) -> None:
        """Look at the next records, so many of them, and let leave which are meant."""
        state = self._state
        for name in self._walk.take(portion):
            entry = state.entries.get(name)
            if entry is None or state.is_due(entry, self._at_ms):
                continue
            facts = facts_of(entry)
            if self._places is not None and not self._places.have(facts.source, facts.offset):
                continue
            if not self._matches(self._row_filter, name, entry):
                continue
            if self._means(name, entry, facts):
                self._removals.delete(name, entry, self._at_ms, step)
                self.removed += 1
            else:
                self.skipped += 1

    def _means(self, name: bytes, entry: bytes, facts: Facts) -> bool:
        if facts.timestamp_ms > self._at_ms:
            return False
        return self._matches(self._predicates, name, entry)

    def _matches(self, predicates: tuple[Predicate, ...], name: bytes, entry: bytes) -> bool:
        if not predicates:
            return True
        view = self._state.view(name, entry)
        return all(predicate(view) is True for predicate in predicates)
