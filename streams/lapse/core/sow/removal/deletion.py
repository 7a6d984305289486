"""Deletions in portions: they examine every record by a filter or bookmarks, or the records of some keys (S3).

A deletion takes effect at its command's instant, so a record with a later update stays. Updates that arrive between two
portions are later, so the progress of the deletion does not matter to them. Only a delta must find the record as the
deletion leaves it. So that record is examined first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

from lapse.core.error_code import ErrorCode, Refusal
from lapse.core.portions import JudgedBytes
from lapse.core.shard.answer import CommandAnswer
from lapse.core.sow import journal
from lapse.core.sow.arrival.arrival import Refused, key_in
from lapse.core.sow.keys.key import NoKey, canonical_key
from lapse.core.sow.records.record import facts_of, published_ms
from lapse.core.sow.records.record_names import Walk
from lapse.core.sow.removal.removal import Removals
from lapse.core.sow.state import SowState
from lapse.core.sow.step import Step
from lapse.core.sow.subscriptions.subscription import Predicate
from lapse.protocol.command import Command

PORTION: Final = 500
"""How many records are examined, and may leave, before other work is done."""


class Bookmarks:
    """A set of bookmarks, as ranges of offsets by source.

    Args:
        ranges: by number of the source, the ranges (first, last), both ends included.
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

    def contains(self, source: int, offset: int) -> bool:
        """Return whether the set contains an offset of a source."""
        firsts = self._firsts.get(source)
        if firsts is None:
            return False
        at = bisect_right(firsts, offset) - 1
        return at >= 0 and offset < self._ends[source][at]


class Deletion(ABC):
    """A deletion in progress.

    Args:
        state: the shard's state.
        removals: removes records.
        command: the command.
        at_ms: the command's instant, ms since the epoch.
        walk: iterates over the journal keys of the records that the command may name.
        row_filter: the compiled row filter of the user; other records do not exist for them (X4); empty = none.

    Attributes:
        removed: how many records were removed.
        skipped: how many keys and records were named but not removed: there is no record, or its update is later.
    """

    __slots__ = (
        "_at_ms",
        "_command",
        "_judged",
        "_reached",
        "_refusal",
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
        self._reached: set[bytes] = set()
        """What was examined out of turn."""
        self._judged = JudgedBytes()
        """How many bytes the filters have seen in this portion."""
        self.removed = 0
        self.skipped = 0

    @property
    def finished(self) -> bool:
        """Whether every record was examined, or the deletion is refused."""
        return self._refusal is not None or self._walk.is_over

    @property
    def left(self) -> int:
        """How many journal keys are left to examine."""
        return self._walk.left

    @property
    def is_answered(self) -> bool:
        """Whether the command wants an answer."""
        wanted = self._command.answer
        return wanted == "all" or (wanted == "errors" and self._refusal is not None)

    @property
    def answer(self) -> CommandAnswer:
        """The answer, with the counts so far."""
        command = self._command
        return CommandAnswer(
            command.id, command.command, command.subscription, self._at_ms, self._refusal, counts=self.counts
        )

    @property
    def counts(self) -> tuple[tuple[str, int], ...]:
        """The counts of the answer so far."""
        return (("removed", self.removed), ("skipped", self.skipped))

    def refuse(self, refusal: Refusal) -> None:
        """End the deletion with a refusal."""
        self._refusal = refusal

    def examine_next(self, step: Step, portion: int = PORTION) -> None:
        """Examine the next `portion` records, fewer if filters see long ones, and remove those that are named."""
        self._judged = JudgedBytes()
        names = self._walk.take(portion)
        for examined, journal_key in enumerate(names, 1):
            if journal_key not in self._reached:
                self._examine(journal_key, step)
            if self._judged.is_full:
                self._walk.put_back(len(names) - examined)
                return

    def reach(self, journal_key: bytes, at_ms: int, step: Step) -> None:
        """Examine a record out of turn, because a delta that takes effect at `at_ms` is to be merged into it (C1)."""
        entry = self._state.entries.get(journal_key)
        if entry is None or self.finished or not published_ms(entry, facts_of(entry)) <= self._at_ms < at_ms:
            return
        name = self._name_of(journal_key)
        if name is not None:
            self._reached.add(name)
            self._examine(name, step)

    def _name_of(self, journal_key: bytes) -> bytes | None:
        """Return the name by which the deletion examines a record; None if it is not examined."""
        return None

    @abstractmethod
    def _examine(self, journal_key: bytes, step: Step, /) -> None:
        """Remove one record, if the command names it."""

    def _matches(self, predicates: tuple[Predicate, ...], journal_key: bytes, entry: bytes) -> bool:
        if not predicates:
            return True
        self._judged.add(len(entry))
        view = self._state.view(journal_key, entry)
        return all(predicate(view) is True for predicate in predicates)


class SelectiveDeletion(Deletion):
    """A deletion by a filter or by bookmarks.

    Args:
        state: the shard's state.
        removals: removes records.
        command: the command.
        at_ms: the command's instant, ms since the epoch.
        walk: iterates over the journal keys of the records that the command may name.
        row_filter: the compiled row filter of the user; other records do not exist for them (X4); empty = none.
        predicates: compiled filters, all of which must match.
        bookmarks: the updates that the command names; None = any.
        withdrawal: the withdrawal of scheduled updates that the command names, which is done first.
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
        """Whether every scheduled update and record was examined, or the deletion is refused."""
        return self._refusal is not None or (self._withdrawal is None and self._walk.is_over)

    def examine_next(self, step: Step, portion: int = PORTION) -> None:
        """Examine the next scheduled updates, and after the last one the next records."""
        withdrawal = self._withdrawal
        if withdrawal is None:
            super().examine_next(step, portion)
            return
        before, left = withdrawal.removed, withdrawal.left
        withdrawal.examine_next(step, portion)
        self.removed += withdrawal.removed - before
        if withdrawal.finished:
            self._withdrawal = None
            super().examine_next(step, portion - left)  # the rest of the portion is used for records

    def _name_of(self, journal_key: bytes) -> bytes | None:
        return journal_key

    def _examine(self, journal_key: bytes, step: Step, /) -> None:
        entry = self._state.entries.get(journal_key)
        if entry is None or self._state.is_due(entry, self._at_ms):
            return
        facts = facts_of(entry)
        if self._bookmarks is not None and not self._bookmarks.contains(facts.source, facts.offset):
            return
        if not self._matches((*self._row_filter, *self._predicates), journal_key, entry):
            return
        if published_ms(entry, facts) <= self._at_ms:
            self._removals.delete(journal_key, entry, self._at_ms, step)
            self.removed += 1
        else:
            self.skipped += 1


class DeletionByKeys(Deletion):
    """A deletion of some keys, with or without records, which begins with reading keys or payloads.

    Nothing is removed before all of them are read, because an invalid one refuses the whole command.

    Args:
        state: the shard's state.
        removals: removes records.
        command: the command, with `keys` or `data`.
        at_ms: the command's instant, ms since the epoch.
        row_filter: the compiled row filter of the user; other records do not exist for them (X4); empty = none.
    """

    __slots__ = ("_keys", "_named", "_read", "_unread")

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
        self._named: frozenset[bytes] | None = None
        self._read = 0

    @property
    def finished(self) -> bool:
        """Whether every key was examined, or one is invalid."""
        return super().finished and (self._refusal is not None or self._read == len(self._unread))

    def examine_next(self, step: Step, portion: int = PORTION) -> None:
        """Read the next keys or payloads, and after the last one delete the next keys."""
        if self._read < len(self._unread):
            self._read_some(portion)
        else:
            super().examine_next(step, portion)

    def _read_some(self, portion: int) -> None:
        settings, unread, by_data = self._state.settings, self._unread, bool(self._command.data)
        for at in range(self._read, min(self._read + portion, len(unread))):
            try:
                self._keys.append(key_in(unread[at], settings) if by_data else canonical_key(unread[at], settings.key))
            except (Refused, NoKey) as error:
                where = f"data: data.{at}" if by_data else f"keys: keys.{at}"
                self.refuse(Refusal(ErrorCode.INVALID_ARGUMENT, f"sow_delete by {where}: {error}"))
                return
            self._read = at + 1
        if self._read == len(unread):
            self._walk = Walk(list(dict.fromkeys(self._keys)))

    def _name_of(self, journal_key: bytes) -> bytes | None:
        if self._read < len(self._unread):
            return None  # the command may still be refused
        if self._named is None:
            self._named = frozenset(self._keys)
        key = journal_key[len(journal.RECORD) :]
        return key if key in self._named else None

    def _examine(self, key: bytes, step: Step, /) -> None:
        if not self._state.settings.home.holds(key):
            return  # it belongs to another shard (C46)
        journal_key = journal.RECORD + key
        entry = self._state.entries.get(journal_key)
        if entry is None or self._state.is_due(entry, self._at_ms):
            self.skipped += 1
            if not self._row_filter:  # otherwise the tombstone could drop late updates that the user may not see
                self._delete_unseen(journal_key, entry, step)
        elif published_ms(entry, facts_of(entry)) > self._at_ms or not self._matches(
            self._row_filter, journal_key, entry
        ):
            self.skipped += 1
        else:
            self._removals.delete(journal_key, entry, self._at_ms, step)
            self.removed += 1

    def _delete_unseen(self, journal_key: bytes, entry: bytes | None, step: Step) -> None:
        """Delete a missing or expired key, since updates with earlier timestamps may not have been read yet (C1)."""
        if entry is not None:
            self._removals.expire(journal_key, entry, self._at_ms, step)
        self._removals.retain(journal_key, self._at_ms, step)
