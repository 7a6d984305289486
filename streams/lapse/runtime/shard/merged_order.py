"""Total order over several partitions: timestamp, then topic, partition, offset (C33, C46).

Within a partition the order of the log holds. If a producer's clock stamps a record before its predecessor, the record
counts as if it had its predecessor's timestamp.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from lapse.core.lifetime import NEVER
from lapse.runtime.tp import TP

Inbox = Mapping[TP, deque[Sequence[Any]]]
Runs = Sequence[tuple[TP, Sequence[Any]]]
_Ranked = tuple[int, str, int, int, TP, Any]


class MergedOrder:
    """Merges the records of a shard's partitions."""

    __slots__ = ("_before", "_floors")

    def __init__(self) -> None:
        self._floors: dict[TP, int] = {}
        """Highest timestamp taken from each partition, ms since the epoch."""
        self._before: dict[TP, int] = {}
        """A copy of `_floors` from before the last `take`."""

    def take(self, inbox: Inbox, held: Sequence[TP], limit: int, until_ms: int = NEVER) -> list[tuple[TP, list[Any]]]:
        """Take records out of the inbox in total order.

        Args:
            inbox: batches of every partition, in the order of its log.
            held: partitions that are not read far enough yet. Records behind their last one must wait.
            limit: the greatest number of records.
            until_ms: take no record behind this instant, ms since the epoch.

        Returns:
            The records, in runs of one partition each.
        """
        self._before = self._floors.copy()
        bound = min((self._reached(tp, inbox[tp]) for tp in held), default=(NEVER, "", 0))
        taken: list[_Ranked] = []
        for ranked in heapq.merge(*(self._ranked(tp, batches) for tp, batches in inbox.items())):
            if len(taken) >= limit or ranked[0] > until_ms or ranked[:3] > bound:
                break
            taken.append(ranked)
        runs = []
        for tp, some in groupby(taken, key=lambda ranked: ranked[4]):
            run = list(some)
            self._floors[tp] = run[-1][0]
            _drop(inbox[tp], len(run))
            runs.append((tp, [ranked[5] for ranked in run]))
        return runs

    def instant(self, tp: TP, record: Any) -> int:
        """Return the instant as of which the next record of a partition counts, ms since the epoch."""
        return max(int(record.timestamp), self._floors.get(tp, -1))

    def put_back(self, inbox: Inbox, taken: Runs, done: int, rest: Runs) -> None:
        """Return records of the last `take` to the inbox for which there was no room.

        Args:
            inbox: where they came from.
            taken: the runs of which something was used.
            done: how many records of the last of these runs were used.
            rest: the last of these runs again, and those behind it.
        """
        (tp, records), *later = rest
        for source, some in reversed([(tp, records[done:]), *later]):
            inbox[source].appendleft(some)
        self._floors = floors = self._before
        for source, some in [*taken[:-1], (tp, records[:done])]:
            floors[source] = max(floors.get(source, -1), max((one.timestamp for one in some), default=-1))

    def _ranked(self, tp: TP, batches: deque[Sequence[Any]]) -> Iterator[_Ranked]:
        stamp = self._floors.get(tp, -1)
        for records in batches:
            for record in records:
                stamp = max(stamp, record.timestamp)
                yield stamp, tp.topic, tp.partition, record.offset, tp, record

    def _reached(self, tp: TP, batches: deque[Sequence[Any]]) -> tuple[int, str, int]:
        """Return the rank of the last record that a partition has."""
        last = max((record.timestamp for records in batches for record in records), default=-1)
        return max(last, self._floors.get(tp, -1)), tp.topic, tp.partition


def _drop(batches: deque[Sequence[Any]], count: int) -> None:
    while count:
        first = batches[0]
        if len(first) > count:
            batches[0] = first[count:]
            return
        batches.popleft()
        count -= len(first)
