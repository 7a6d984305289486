"""Scheduled updates: lists and withdraws them for commands, in portions (L5, C47, C60, C82)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Final

from lapse.core.lifetime import NEVER
from lapse.core.portions import JudgedBytes
from lapse.core.reason import Reason
from lapse.core.shard.answer import CommandAnswer
from lapse.core.shard.refused import CommandRefused
from lapse.core.sow.records.record_names import Walk
from lapse.core.sow.removal.deletion import Bookmarks, Deletion
from lapse.core.sow.removal.removal import Removals
from lapse.core.sow.state import SowState
from lapse.core.sow.step import Step
from lapse.core.sow.subscriptions.subscription import Predicate
from lapse.core.sow.updates.record_updates import RecordUpdates
from lapse.core.sow.updates.version import Version
from lapse.protocol.answer import ScheduledUpdate
from lapse.protocol.command import MOST_UPDATES, Command

SCHEDULED: Final = "scheduled"
"""The only state that commands to a SOW topic may name."""

_TAKE_IT: Final = frozenset({"sow", "sow_delete"})

_Ranked = tuple[tuple[int, str, int, int], Version]


def check_state(command: Command) -> None:
    """Check that a command's state, if any, is allowed, and that its other fields fit scheduled updates.

    Raises:
        CommandRefused: the command takes no state, or not this one, or has a field that concerns only records.
    """
    if not command.state:
        return
    if command.command not in _TAKE_IT or command.state != SCHEDULED:
        raise CommandRefused(
            f"{command.command} of a SOW topic takes no state {command.state!r}: its records have none. sow and "
            'sow_delete take "scheduled", for updates whose instant has not come'
        )
    if command.command == "sow_delete":
        if command.keys or command.data:
            raise CommandRefused("sow_delete of scheduled updates takes a filter or bookmarks, neither keys nor data")
    elif command.keys or command.bookmarks or command.data or command.order_by is not None or command.select:
        raise CommandRefused("sow of scheduled updates takes a filter, top_n and skip, and nothing else")


def is_seen(state: SowState, version: Version, predicates: tuple[Predicate, ...]) -> bool:
    """Return whether a scheduled version matches filters. A delete matches none, since it has no payload."""
    if not predicates:
        return True
    if version.payload is None:
        return False
    view = state.view_of_version(version)
    return all(predicate(view) is True for predicate in predicates)


def judged_bytes(version: Version, predicates: tuple[Predicate, ...]) -> int:
    """Return how many bytes filters see of a scheduled version."""
    return len(version.payload or b"") if predicates else 0


class Listing:
    """Lists scheduled updates in an answer, the next ones first, as they were at the command.

    Each lot is sorted when it is examined, and the lots are merged while they are read. So no portion takes longer than
    a lot.

    Args:
        state: the shard's state.
        command: the command.
        at_ms: the command's instant, ms since the epoch.
        predicates: compiled filters, all of which must match.

    Attributes:
        finished: whether the answer was given, or nobody waits for it.
    """

    __slots__ = (
        "_at_ms",
        "_command",
        "_left",
        "_lots",
        "_merged",
        "_passed",
        "_predicates",
        "_seen",
        "_shown",
        "_state",
        "finished",
    )

    def __init__(self, state: SowState, command: Command, at_ms: int, predicates: tuple[Predicate, ...]) -> None:
        self._state = state
        self._command = command
        self._at_ms = at_ms
        self._predicates = predicates
        self._left: Iterator[Version] = iter(state.schedule.versions())
        self._lots: list[list[_Ranked]] = []
        self._merged: Iterator[_Ranked] | None = None
        self._passed = 0
        self._seen = 0
        self._shown: list[ScheduledUpdate] = []
        self.finished = False

    @property
    def subscription(self) -> str:
        """Id of the subscription that sent the command; empty = none."""
        return self._command.subscription

    @property
    def command_id(self) -> str:
        """Id of the command."""
        return self._command.id

    @property
    def command(self) -> str:
        """Name of the command."""
        return self._command.command

    @property
    def at_ms(self) -> int:
        """The instant of the command, ms since the epoch."""
        return self._at_ms

    @property
    def is_answered(self) -> bool:
        """Whether the command wants an answer."""
        return self._command.answer == "all"

    @property
    def withholds_any(self) -> bool:
        """False, since a listing contains no records."""
        return False

    def abandon(self) -> None:
        """End the listing without an answer."""
        self.finished = True
        self._left, self._lots, self._merged = iter(()), [], None

    def pull(self, now_ms: int, step: Step, scan: int | None = None) -> None:
        """Examine some updates. Once all were examined, collect the matching ones, and finally answer."""
        left = self._state.settings.max_scan if scan is None else scan
        if self._merged is None:
            left -= self._examine_some(left)
        if self._merged is not None:
            self._collect_updates(self._merged, left, step)

    def _examine_some(self, most: int) -> int:
        """Examine at most `most` updates, fewer if filters see long ones. Return the part of `most` that is used up."""
        ranked: list[_Ranked] = []
        examined, judged = 0, JudgedBytes()
        for one in islice(self._left, most):
            examined += 1
            if is_seen(self._state, one, self._predicates):
                ranked.append((self._sort_key(one), one))
            if judged.add(judged_bytes(one, self._predicates)):
                break
        if ranked:
            self._lots.append(sorted(ranked))
            self._seen += len(ranked)
        if judged.is_full:
            return most
        if examined < most:
            self._merged = heapq.merge(*self._lots)
        return examined

    def _collect_updates(self, merged: Iterator[_Ranked], most: int, step: Step) -> None:
        """Skip or collect at most `most` updates, and answer at the end."""
        command = self._command
        skip = command.skip or 0
        end = skip + (MOST_UPDATES if command.top_n is None else min(command.top_n, MOST_UPDATES))
        for _, version in islice(merged, min(most, end - self._passed)):
            if self._passed >= skip:
                self._shown.append(self._listed_update(version))
            self._passed += 1
        if self._passed == min(end, self._seen):
            self._finish(step)

    def _finish(self, step: Step) -> None:
        if self._command.answer == "all":
            step.answers.append(
                CommandAnswer(
                    self.command_id,
                    self.command,
                    self.subscription,
                    self._at_ms,
                    counts=((SCHEDULED, self._seen),),
                    facts=(("updates", tuple(self._shown)),),
                )
            )
        self.abandon()

    def _sort_key(self, version: Version) -> tuple[int, str, int, int]:
        return version.enqueue_at_ms, *self._state.sources[version.source], version.offset

    def _listed_update(self, version: Version) -> ScheduledUpdate:
        return ScheduledUpdate(
            bookmark=str(self._state.bookmark(version.source, version.offset)),
            key=version.key.decode("utf-8", "replace"),
            change="delete" if version.payload is None else "delta" if version.delta else "publish",
            enqueue_at_ms=version.enqueue_at_ms,
            expires_at_ms=None if version.deadline_ms == NEVER else version.deadline_ms,
        )


class Withdrawal(Deletion):
    """A withdrawal of scheduled updates by a filter or by bookmarks. Records are not changed.

    An update that takes effect between two portions, because another update of its key arrived, stays as well.

    Args:
        state: the shard's state.
        removals: removes records.
        updates: withdraws scheduled updates.
        command: the command.
        at_ms: the command's instant, ms since the epoch.
        predicates: compiled filters, all of which must match.
        bookmarks: the updates that the command names; None = any.
    """

    __slots__ = ("_bookmarks", "_predicates", "_updates")

    def __init__(
        self,
        state: SowState,
        removals: Removals,
        updates: RecordUpdates,
        command: Command,
        at_ms: int,
        predicates: tuple[Predicate, ...],
        bookmarks: Bookmarks | None = None,
    ) -> None:
        none_named = bookmarks is not None and not bookmarks
        super().__init__(state, removals, command, at_ms, Walk(() if none_named else state.schedule.names()))
        self._updates = updates
        self._predicates = predicates
        self._bookmarks = bookmarks

    @property
    def counts(self) -> tuple[tuple[str, int], ...]:
        """The count of withdrawn updates so far."""
        return (("removed", self.removed),)

    def _examine(self, journal_key: bytes, step: Step, /) -> None:
        version = self._state.schedule.get(journal_key)
        if version is None:
            return
        if self._bookmarks is not None and not self._bookmarks.contains(version.source, version.offset):
            return
        self._judged.add(judged_bytes(version, self._predicates))
        if is_seen(self._state, version, self._predicates):
            self._updates.remove_version(journal_key, Reason.WITHDRAWN, self._at_ms, step)
            self.removed += 1
