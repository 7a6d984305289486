"""Tenures: since when this worker has had a partition; records fetched before do not count."""

from __future__ import annotations

from collections.abc import Iterable

from faust.types import TP


class Tenures:
    """Since when partitions are this worker's, in turns: a number that grows each time some come or go.

    Attributes:
        turn: the present turn; what is fetched notes it before.
    """

    def __init__(self) -> None:
        self.turn = 0
        self._all_since = 0
        self._since: dict[TP, int] = {}

    def begin(self, tps: Iterable[TP]) -> None:
        """Partitions come, or are taken over anew: what was fetched of them until now is void."""
        self.turn += 1
        self._since.update(dict.fromkeys(tps, self.turn))

    def begin_all(self) -> None:
        """What was fetched of any partition until now is void."""
        self.turn += 1
        self._all_since = self.turn
        self._since.clear()

    def covers(self, tp: TP, turn: int) -> bool:
        """Whether what was fetched of a partition in that turn still counts."""
        return turn >= self._all_since and turn >= self._since.get(tp, 0)
