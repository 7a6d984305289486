"""Deletions, in portions: a look at every record for a filter or bookmarks, or at those of some keys (S3).

One counts as of its command's instant: a record whose last update is later stays. Updates that come between two
portions are later, so it makes no difference how far it has come when they do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

from lapse.core.error_code import ErrorCode, Refusal
from lapse.core.shard.answer import CommandAnswer
from lapse.core.sow import journal
from lapse.core.sow.arrival import Refused, key_in
from lapse.core.sow.key import NoKey, of_text
from lapse.core.sow.record import facts_of
from lapse.core.sow.record_names import Walk
from lapse.core.sow.removal import Removals
from lapse.core.sow.state import SowState
from lapse.core.sow.step import Step
from lapse.core.sow.subscription import Predicate
from lapse.protocol.command import Command

PORTION: Final = 500
"""How many records are looked at, and may leave, before others have a turn."""


class Bookmarks:
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


class Deletion(ABC):
    """One deletion at work.

    Args:
        state: the shard's memory.
        removals: how its records leave.
        command: which asks for it.
        at_ms: as of when it counts, ms since the epoch.
        walk: the names of the records that may be meant.
        row_filter: of the records, those that are there for the user at all (X4); empty = all are.

    Attributes:
        removed: how many records have left.
        skipped: how many have not, although they were named.
    """

    __slots__ = ("_at_ms", "_command", "_refusal", "_removals", "_row_filter", "_state", "_walk", "removed", "skipped")

    def __init__(
        self,
        state: SowState,
        removals: Removals,
        command: Command,
        at_ms: int,
        walk: Walk,
        row_filter: tuple[Predicate, ...] = (),
    ) -> None:
        self._state = state
        self._removals = removals
        self._command = command
        self._at_ms = at_ms
        self._walk = walk
        self._row_filter = row_filter
        self._refusal: Refusal | None = None
        self.removed = 0
        self.skipped = 0

    @property
    def finished(self) -> bool:
        """Whether every record was looked at, or the deletion is refused."""
        return self._refusal is not None or self._walk.is_over

    @property
    def left(self) -> int:
        """How many names are left to be looked at."""
        return self._walk.left

    @property
    def is_answered(self) -> bool:
        """Whether its end is to be answered."""
        wanted = self._command.answer
        return wanted == "all" or (wanted == "errors" and self._refusal is not None)

    @property
    def answer(self) -> CommandAnswer:
        """Its answer, with the figures so far."""
        command = self._command
        return CommandAnswer(
            command.id, command.command, command.subscription, self._at_ms, self._refusal, counts=self.counts
        )

    @property
    def counts(self) -> tuple[tuple[str, int], ...]:
        """The figures of its answer so far."""
        return (("removed", self.removed), ("skipped", self.skipped))

    def refuse(self, refusal: Refusal) -> None:
        """Do no more of it."""
        self._refusal = refusal

    def go_on(self, step: Step, portion: int = PORTION) -> None:
        """Look at the next records, so many of them, and let leave which are meant."""
        for journal_key in self._walk.take(portion):
            self._look_at(journal_key, step)

    @abstractmethod
    def _look_at(self, journal_key: bytes, step: Step, /) -> None:
        """Let one record leave, if it is meant."""

    def _matches(self, predicates: tuple[Predicate, ...], journal_key: bytes, entry: bytes) -> bool:
        if not predicates:
            return True
        view = self._state.view(journal_key, entry)
        return all(predicate(view) is True for predicate in predicates)


class Selection(Deletion):
    """A deletion by a filter, or by bookmarks.

    Args:
        state: the shard's memory.
        removals: how its records leave.
        command: which asks for it.
        at_ms: as of when it counts, ms since the epoch.
        walk: the names of the records that may be meant.
        row_filter: of the records, those that are there for the user at all (X4); empty = all are.
        predicates: which records are meant, all of them true.
        bookmarks: which updates; None = any.
        withdrawal: of the scheduled updates that the same command names; it goes first.
    """

    __slots__ = ("_bookmarks", "_predicates", "_withdrawal")

    def __init__(
        self,
        state: SowState,
        removals: Removals,
        command: Command,
        at_ms: int,
        walk: Walk,
        row_filter: tuple[Predicate, ...] = (),
        *,
        predicates: tuple[Predicate, ...] = (),
        bookmarks: Bookmarks | None = None,
        withdrawal: Deletion | None = None,
    ) -> None:
        super().__init__(state, removals, command, at_ms, walk, row_filter)
        self._predicates = predicates
        self._bookmarks = bookmarks
        self._withdrawal = withdrawal

    @property
    def finished(self) -> bool:
        """Whether every update and record was looked at, or the deletion is refused."""
        return self._refusal is not None or (self._withdrawal is None and self._walk.is_over)

    def go_on(self, step: Step, portion: int = PORTION) -> None:
        """Look at the next scheduled updates; after the last one, at the next records."""
        withdrawal = self._withdrawal
        if withdrawal is None:
            super().go_on(step, portion)
            return
        before, left = withdrawal.removed, withdrawal.left
        withdrawal.go_on(step, portion)
        self.removed += withdrawal.removed - before
        if withdrawal.finished:
            self._withdrawal = None
            super().go_on(step, portion - left)  # a few are done at once

    def _look_at(self, journal_key: bytes, step: Step, /) -> None:
        entry = self._state.entries.get(journal_key)
        if entry is None or self._state.is_due(entry, self._at_ms):
            return
        facts = facts_of(entry)
        if self._bookmarks is not None and not self._bookmarks.have(facts.source, facts.offset):
            return
        if not self._matches(self._row_filter, journal_key, entry):
            return
        if facts.timestamp_ms <= self._at_ms and self._matches(self._predicates, journal_key, entry):
            self._removals.delete(journal_key, entry, self._at_ms, step)
            self.removed += 1
        else:
            self.skipped += 1


class ByKeys(Deletion):
    """A deletion of some keys, whether or not there are records of them; it begins with reading keys and payloads.

    Nothing leaves before all of them are read: one that is or has no key refuses the whole command.

    Args:
        state: the shard's memory.
        removals: how its records leave.
        command: which asks for it, by `keys` or `data`.
        at_ms: as of when it counts, ms since the epoch.
        row_filter: of the records, those that are there for the user at all (X4); empty = all are.
    """

    __slots__ = ("_keys", "_read", "_unread")

    def __init__(
        self,
        state: SowState,
        removals: Removals,
        command: Command,
        at_ms: int,
        row_filter: tuple[Predicate, ...] = (),
    ) -> None:
        keys = [] if state.settings.key else list(dict.fromkeys(command.keys))
        super().__init__(state, removals, command, at_ms, Walk(keys), row_filter)
        self._unread: Sequence[bytes] = (command.data or command.keys) if state.settings.key else ()
        self._keys: list[bytes] = keys
        self._read = 0

    @property
    def finished(self) -> bool:
        """Whether every key was looked at, or what names one cannot be read."""
        return super().finished and (self._refusal is not None or self._read == len(self._unread))

    def go_on(self, step: Step, portion: int = PORTION) -> None:
        """Read the next keys or payloads; after the last one, delete the next keys."""
        if self._read < len(self._unread):
            self._read_some(portion)
        else:
            super().go_on(step, portion)

    def _read_some(self, portion: int) -> None:
        settings, unread, by_data = self._state.settings, self._unread, bool(self._command.data)
        for at in range(self._read, min(self._read + portion, len(unread))):
            try:
                self._keys.append(key_in(unread[at], settings) if by_data else of_text(unread[at], settings.key))
            except (Refused, NoKey) as error:
                where = f"data: data.{at}" if by_data else f"keys: keys.{at}"
                self.refuse(Refusal(ErrorCode.INVALID_ARGUMENT, f"sow_delete by {where}: {error}"))
                return
            self._read = at + 1
        if self._read == len(unread):
            self._walk = Walk(list(dict.fromkeys(self._keys)))

    def _look_at(self, key: bytes, step: Step, /) -> None:
        if not self._state.settings.home.holds(key):
            return  # another shard's (C46)
        journal_key = journal.RECORD + key
        entry = self._state.entries.get(journal_key)
        if entry is None or self._state.is_due(entry, self._at_ms):
            self.skipped += 1
            if not self._row_filter:  # with a row filter, what may still come could be another's
                self._delete_unseen(journal_key, entry, step)
        elif facts_of(entry).timestamp_ms > self._at_ms or not self._matches(self._row_filter, journal_key, entry):
            self.skipped += 1
        else:
            self._removals.delete(journal_key, entry, self._at_ms, step)
            self.removed += 1

    def _delete_unseen(self, journal_key: bytes, entry: bytes | None, step: Step) -> None:
        """Delete a key that is not there, or has expired: updates stamped before may not have been read yet (C1)."""
        if entry is not None:
            self._removals.expire(journal_key, entry, self._at_ms, step)
        self._removals.retain(journal_key, self._at_ms, step)
