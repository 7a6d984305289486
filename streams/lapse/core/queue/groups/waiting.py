"""Waiting: the waiting groups of a shard, as lines or in columns, whichever delivery needs (Q20, Q25).

Each of the two is derived from the segments when it is first needed, and dropped when the other one is. Only the tags
of the turn go over.
"""

from __future__ import annotations

from lapse.core.queue.groups.group_turn import GroupTurn
from lapse.core.queue.groups.turn_columns import TurnColumns
from lapse.core.queue.groups.waiting_groups import WaitingGroups
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.state import QueueState


class Waiting:
    """Keeps the turn of a shard, and makes its waiting groups.

    Args:
        settings: the queue's settings.
    """

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._turn = GroupTurn(settings.group_weights)
        self._columns: TurnColumns | None = None
        self._lines: WaitingGroups | None = None

    def columns(self, state: QueueState) -> TurnColumns:
        """Return the waiting groups in columns."""
        index = state.index
        if self._columns is None or index.columns is not self._columns:
            self._begin(state, self._lines is not None and index.lines is self._lines)
            index.codes.keep_columns(True)
            self._columns = index.columns = TurnColumns(
                state.look,
                state.outline,
                index.codes,
                self._turn,
                self._settings.group_limit,
                state.first_available_segment(),
            )
        return self._columns

    def lines(self, state: QueueState) -> WaitingGroups:
        """Return the waiting groups as lines."""
        index = state.index
        if self._lines is None or index.lines is not self._lines:
            self._begin(state, self._columns is not None and index.columns is self._columns)
            ranked = self._settings.traits.priority is not None
            self._lines = index.lines = WaitingGroups(
                state.look, state.outline, self._turn, ranked, state.first_available_segment()
            )
        return self._lines

    def _begin(self, state: QueueState, goes_on: bool) -> None:
        """Drop what there is. Unless the turn of this shard `goes_on`, all groups begin with equal tags."""
        index = state.index
        if not goes_on:
            self._turn = GroupTurn(self._settings.group_weights)
        elif self._columns is not None:
            self._columns.export_tags()
        index.codes.keep_columns(False)
        index.columns = index.lines = self._columns = self._lines = None
