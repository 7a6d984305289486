"""Scheduled updates, as commands list and withdraw them (L5, C47, C82)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any, Final

from lapse.core.lifetime import NEVER
from lapse.core.shard.refused import CommandRefused
from lapse.core.sow.deletion import Bookmarks
from lapse.core.sow.record_updates import RecordUpdates
from lapse.core.sow.state import SowState
from lapse.core.sow.step import Step
from lapse.core.sow.subscription import Predicate
from lapse.core.sow.version import Version
from lapse.core.sow.version import journal_key as version_name
from lapse.protocol.answer import ScheduledUpdate
from lapse.protocol.command import MOST_UPDATES, Command

SCHEDULED: Final = "scheduled"
"""The only state that commands of a SOW topic name."""

_TAKE_IT: Final = frozenset({"sow", "sow_delete"})


def check_state(command: Command) -> None:
    """Do nothing for a command that may name a state.

    Raises:
        CommandRefused: it may not, or not this one.
    """
    if command.state and (command.command not in _TAKE_IT or command.state != SCHEDULED):
        raise CommandRefused(
            f"{command.command} of a SOW topic takes no state {command.state!r}: its records have none. sow and "
            'sow_delete take "scheduled", for updates whose instant has not come'
        )


class ScheduledUpdates:
    """Looks at the scheduled updates of one shard, and withdraws them.

    Args:
        state: the shard's memory.
        updates: what withdraws them.
    """

    __slots__ = ("_state", "_updates")

    def __init__(self, state: SowState, updates: RecordUpdates) -> None:
        self._state = state
        self._updates = updates

    def listed(self, command: Command, predicates: tuple[Predicate, ...]) -> dict[str, Any]:
        """What is answered to `sow` of scheduled updates: the next ones first.

        Raises:
            CommandRefused: the command asks for what there is of records only.
        """
        if command.keys or command.bookmarks or command.data or command.order_by is not None or command.select:
            raise CommandRefused("sow of scheduled updates takes a filter, top_n and skip, and nothing else")
        skip = command.skip or 0
        most = MOST_UPDATES if command.top_n is None else min(command.top_n, MOST_UPDATES)
        seen = [version for version in self._all() if self.is_seen(version, predicates)]
        first = heapq.nsmallest(skip + most, seen, key=self._turn)
        return {"updates": tuple(map(self._shown, first[skip:])), "counts": {SCHEDULED: len(seen)}}

    def withdraw(self, is_meant: Callable[[Version], bool], at_ms: int, step: Step, most: int | None = None) -> int:
        """Withdraw those that are meant, the next ones first where there is a limit; returns how many."""
        meant = [version for version in self._all() if is_meant(version)]
        if most is not None and most < len(meant):
            meant = heapq.nsmallest(most, meant, key=self._turn)
        for version in meant:
            self._updates.withdraw(version_name(version.source, version.offset), at_ms, step)
        return len(meant)

    def withdraw_some(
        self,
        command: Command,
        bookmarks: Bookmarks | None,
        predicates: tuple[Predicate, ...],
        at_ms: int,
        step: Step,
    ) -> dict[str, int | None]:
        """Do what `sow_delete` of scheduled updates asks for, a bounded number of times; records stay as they are.

        Returns:
            How many were `removed`, and 1 as `more` if others are meant as well.

        Raises:
            CommandRefused: the command names them in another way.
        """
        if command.keys or command.data:
            raise CommandRefused("sow_delete of scheduled updates takes a filter or bookmarks, neither keys nor data")

        def is_meant(version: Version) -> bool:
            named = bookmarks is None or bookmarks.have(version.source, version.offset)
            return named and self.is_seen(version, predicates)

        removed = self.withdraw(is_meant, at_ms, step, MOST_UPDATES)
        return {"removed": removed, "more": int(removed == MOST_UPDATES)}

    def is_seen(self, version: Version, predicates: tuple[Predicate, ...]) -> bool:
        """Whether filters let one through; one that deletes says nothing that a filter could match."""
        if not predicates:
            return True
        if version.payload is None:
            return False
        view = self._state.view_of_version(version)
        return all(predicate(view) is True for predicate in predicates)

    def _all(self) -> Iterator[Version]:
        return (version for _, version in self._state.schedule)

    def _turn(self, version: Version) -> tuple[int, str, int, int]:
        return version.enqueue_at_ms, *self._state.sources[version.source], version.offset

    def _shown(self, version: Version) -> ScheduledUpdate:
        return ScheduledUpdate(
            bookmark=str(self._state.bookmark(version.source, version.offset)),
            key=version.key.decode("utf-8", "replace"),
            change="delete" if version.payload is None else "delta" if version.delta else "publish",
            enqueue_at_ms=version.enqueue_at_ms,
            expires_at_ms=None if version.deadline_ms == NEVER else version.deadline_ms,
        )
