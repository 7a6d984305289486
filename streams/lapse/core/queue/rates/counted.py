"""The deliveries that count in a rate's window (Q25, C71). Part of the state: a crash forgets none of them.

Those of one look at the queue are counted, journaled and forgotten together. They count as of their decision, or later
if somebody says when they were written: what a log shows is when it was written.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from lapse.core.lifetime import NEVER
from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.rates.rate import Rate

Of = tuple[int, int]
"""Hash of a group, and -1; of a message without one, 0 and its place."""

EVERYTHING: Final[Of] = (-1, -2)
"""All messages together."""


class Batch(NamedTuple):
    """Deliveries that were decided together.

    Attributes:
        at_ms: when, ms since the epoch.
        counts: how many of all messages, and of each group where there is a rate of groups.
    """

    at_ms: int
    counts: tuple[tuple[Of, int], ...]

    def facts(self) -> dict[str, Any]:
        """As a change and the journal have it."""
        return {"at_ms": self.at_ms, "counts": [[*of, count] for of, count in self.counts]}


def batch_of(facts: dict[str, Any]) -> Batch:
    """A batch from a change or from the journal."""
    return Batch(facts["at_ms"], tuple(((group, place), count) for group, place, count in facts["counts"]))


class _Line:
    """The deliveries of one group, or of all.

    Attributes:
        numbers: of the batches that have some, ascending.
        sums: how many there were up to each of them, forgotten ones included.
        before: how many were forgotten.
    """

    __slots__ = ("before", "numbers", "sums")

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.sums: list[int] = []
        self.before = 0

    def add(self, number: int, count: int) -> None:
        """Count deliveries of the newest batch."""
        self.sums.append((self.sums[-1] if self.sums else self.before) + count)
        self.numbers.append(number)

    def forget_to(self, number: int) -> None:
        """Forget batches up to a number."""
        gone = bisect_right(self.numbers, number)
        if gone:
            self.before = self.sums[gone - 1]
            del self.numbers[:gone], self.sums[:gone]


class Counted:
    """What a shard has counted.

    Attributes:
        batches: by number, in their order.
        newest_ms: when the last one was decided, ms since the epoch. No later one counts as earlier.
    """

    def __init__(self) -> None:
        self.batches: dict[int, Batch] = {}
        self.next_number = 0
        self.newest_ms = 0
        self._lines: dict[Of, _Line] = {}
        self._written_ms: dict[int, int] = {}

    def apply(self, change: Change) -> None:
        """Carry out a change: count a batch, or forget one."""
        if change.kind is ChangeKind.COUNTED:
            self.add(change.offset, batch_of(change.facts))
        else:
            self._forget(change.offset)

    def add(self, number: int, batch: Batch) -> None:
        """Count a batch; a take-over that was cut short may have put it down twice."""
        if number in self.batches:
            return
        self.batches[number] = batch
        self.next_number = max(self.next_number, number + 1)
        self.newest_ms = max(self.newest_ms, batch.at_ms)
        for of, count in batch.counts:
            self._lines.setdefault(of, _Line()).add(number, count)

    def _forget(self, number: int) -> None:
        batch = self.batches.pop(number, None)
        self._written_ms.pop(number, None)
        for of, _ in () if batch is None else batch.counts:
            line = self._lines[of]
            line.forget_to(number)
            if not line.numbers:
                del self._lines[of]

    def room(self, of: Of, rate: Rate, now_ms: int) -> int:
        """How many more may be delivered at an instant, not before `newest_ms`."""
        line = self._lines.get(of)
        if line is None:
            return rate.count
        past = bisect_right(line.numbers, now_ms - rate.per_ms, key=self.counts_ms)
        return max(0, rate.count - line.sums[-1] + (line.sums[past - 1] if past else line.before))

    def frees_ms(self, of: Of, rate: Rate) -> int:
        """When there is room again where there is none, ms since the epoch; `NEVER` while that is not known."""
        line = self._lines[of]
        at_ms = self.counts_ms(line.numbers[bisect_right(line.sums, line.sums[-1] - rate.count)])
        return NEVER if at_ms >= NEVER else at_ms + rate.per_ms

    def counts_ms(self, number: int) -> int:
        """As of when a batch counts, ms since the epoch; `NEVER` while it is being written."""
        written_ms = self._written_ms.get(number)
        return self.batches[number].at_ms if written_ms is None else written_ms

    def outdated(self, rates: Iterable[Rate], now_ms: int) -> list[int]:
        """Numbers of batches that count in no window any more that ends at an instant or later."""
        longest_ms = max((rate.per_ms for rate in rates), default=0)
        found: list[int] = []
        for number in self.batches:
            if self.counts_ms(number) + longest_ms > now_ms:
                break
            found.append(number)
        return found

    # When they were written; not part of the state

    def write(self, number: int) -> None:
        """Know that a batch is being written: it counts until somebody says when it was."""
        self._written_ms[number] = NEVER

    def written(self, to: int, at_ms: int) -> bool:
        """Know that batches up to a number are written, by an instant, ms since the epoch; whether any was not."""
        found = False
        for number in reversed(self._written_ms):
            if number <= to:
                if self._written_ms[number] < NEVER:
                    break
                self._written_ms[number] = max(at_ms, self.batches[number].at_ms)
                found = True
        self.newest_ms = max(self.newest_ms, at_ms) if found else self.newest_ms
        return found

    def take_over(self, by_ms: int, within_ms: int, unwritten: bool) -> None:
        """Know as of when batches of an owner before count at the latest; it did not put that down.

        Args:
            by_ms: the instant at which all are written, ms since the epoch.
            within_ms: how long a write takes, ms.
            unwritten: whether the last batch was written now.
        """
        self._written_ms = {
            number: max(batch.at_ms, min(by_ms, batch.at_ms + within_ms)) for number, batch in self.batches.items()
        }
        self.newest_ms = max(self.newest_ms, by_ms) if self.batches else self.newest_ms
        if unwritten and self.batches:
            last = next(reversed(self.batches))
            self._written_ms[last] = max(by_ms, self.batches[last].at_ms)
