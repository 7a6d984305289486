"""Tenures: since when this worker has a partition. Records that were fetched earlier are void."""

from __future__ import annotations

from collections.abc import Iterable

from faust.types import TP


class Tenures:
    """Counts in turns since when partitions are this worker's. The turn grows each time some are added or removed.

    Attributes:
        turn: the current turn, which is noted before a fetch.
    """

    def __init__(self) -> None:
        self.turn = 0
        self._all_since = 0
        self._since: dict[TP, int] = {}

    def begin(self, tps: Iterable[TP]) -> None:
        """Begin with partitions that are added or taken over anew. What was fetched of them so far is void."""
        self.turn += 1
        self._since.update(dict.fromkeys(tps, self.turn))

    def begin_all(self) -> None:
        """Begin anew with all partitions. What was fetched of them so far is void."""
        self.turn += 1
        self._all_since = self.turn
        self._since.clear()

    def covers(self, tp: TP, turn: int) -> bool:
        """Return whether records of a partition that were fetched in a turn still count."""
        return turn >= self._all_since and turn >= self._since.get(tp, 0)
