"""The deliveries that count in a rate's window (Q25, C71). They are part of the state, so a crash forgets none.

The deliveries of one call are counted, journaled and forgotten together, as a batch. A batch counts from its decision,
or from when it was written if that is reported, since consumers see deliveries when they are written.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from lapse.core.lifetime import NEVER
from lapse.core.queue.arrival.trait import OWN_GROUP
from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.rates.rate import Rate

Of = tuple[int, int]
"""The key under which deliveries are counted: (hash of a group, -1), or (0, place) for a message without a group."""

EVERYTHING: Final[Of] = (-1, -2)
"""The key of all messages together."""


class Batch(NamedTuple):
    """Deliveries that were decided together.

    Attributes:
        at_ms: the instant of the decision, ms since the epoch.
        total: number of deliveries.
        groups: hashes of the groups that had any, if there is a rate of groups.
        counts: number of deliveries of each of them.
        places: places of the delivered messages without a group, if there is a rate of groups.
        before_ms: when the batch before it was written, ms since the epoch; None = not known.
    """

    at_ms: int
    total: int
    groups: Sequence[int] = ()
    counts: Sequence[int] = ()
    places: Sequence[int] = ()
    before_ms: int | None = None

    def facts(self) -> dict[str, Any]:
        """Return the batch as the facts of a change, which the journal holds."""
        facts: dict[str, Any] = {"at_ms": self.at_ms, "total": self.total}
        if self.groups:
            facts["groups"], facts["of_groups"] = self.groups, self.counts
        if self.places:
            facts["places"] = self.places
        if self.before_ms is not None:
            facts["before_ms"] = self.before_ms
        return facts


def parse_batch(facts: dict[str, Any]) -> Batch:
    """Return the batch of a change's or a journal record's facts."""
    before_ms = facts.get("before_ms")
    if "counts" not in facts:
        groups, counts = facts.get("groups", []), facts.get("of_groups", [])
        return Batch(facts["at_ms"], facts["total"], groups, counts, facts.get("places", []), before_ms)
    # Journals of older versions hold (hash, -1, count) for a group, and (0, place, 1) for a message without one.
    by_key = {(group, place): count for group, place, count in facts["counts"]}
    total = by_key.pop(EVERYTHING)
    groups = [group for group, place in by_key if place < 0]
    counts = [count for (_, place), count in by_key.items() if place < 0]
    return Batch(facts["at_ms"], total, groups, counts, [place for _, place in by_key if place >= 0], before_ms)


class _Line:
    """The counted deliveries of one group, or of all messages.

    Attributes:
        numbers: numbers of the batches with deliveries, ascending.
        sums: running total of deliveries up to each of these batches, forgotten ones included.
        before: total of the forgotten deliveries.
    """

    __slots__ = ("before", "numbers", "sums")

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.sums: list[int] = []
        self.before = 0

    def add(self, number: int, count: int) -> None:
        """Add the deliveries of the newest batch."""
        self.sums.append((self.sums[-1] if self.sums else self.before) + count)
        self.numbers.append(number)

    def forget_to(self, number: int) -> None:
        """Forget batches up to a number."""
        gone = bisect_right(self.numbers, number)
        if gone:
            self.before = self.sums[gone - 1]
            del self.numbers[:gone], self.sums[:gone]


class Counted:
    """The counted deliveries of a shard.

    What all remembered batches count of a group is known at any time, and mostly shows that there is room. The batches
    are entered into the lines of their groups when an exact answer is first needed.

    Attributes:
        batches: the batches by number, ascending.
        newest_ms: the latest instant of a decision or write, ms since the epoch. No later batch counts from before it.
    """

    def __init__(self) -> None:
        self.batches: dict[int, Batch] = {}
        self.next_number = 0
        self.newest_ms = 0
        self._everything = _Line()
        self._totals: dict[int, int] = {}
        """By hash of the group, the number of its remembered deliveries."""
        self._lines: dict[Of, _Line] = {}
        """The lines of groups, and of messages without one, of the batches up to `_entered`."""
        self._entered = -1
        self._written_ms: dict[int, int] = {}

    def apply(self, change: Change) -> None:
        """Carry out a change: count a batch, or forget one."""
        if change.kind is ChangeKind.COUNTED:
            self.add(change.offset, parse_batch(change.facts))
        else:
            self._forget(change.offset)

    def add(self, number: int, batch: Batch) -> None:
        """Add a batch, unless it is there already: an interrupted take-over may have journaled it twice."""
        if number in self.batches:
            return
        self.batches[number] = batch
        self.next_number = max(self.next_number, number + 1)
        self.newest_ms = max(self.newest_ms, batch.at_ms)
        self._everything.add(number, batch.total)
        totals = self._totals
        for group, count in zip(batch.groups, batch.counts, strict=True):
            totals[group] = totals.get(group, 0) + count

    def _enter(self) -> None:
        """Enter the batches into the lines that are not entered yet."""
        first = bisect_right(self._everything.numbers, self._entered)
        for number in self._everything.numbers[first:]:
            for of, count in _by_line(self.batches[number]):
                line = self._lines.get(of)
                if line is None:
                    line = self._lines[of] = _Line()
                line.add(number, count)
            self._entered = number

    def _forget(self, number: int) -> None:
        batch = self.batches.pop(number, None)
        self._written_ms.pop(number, None)
        if batch is None:
            return
        self._everything.forget_to(number)
        totals = self._totals
        for group, count in zip(batch.groups, batch.counts, strict=True):
            totals[group] -= count
            if not totals[group]:
                del totals[group]
        for of, _ in _by_line(batch) if number <= self._entered else ():
            line = self._lines[of]
            line.forget_to(number)
            if not line.numbers:
                del self._lines[of]

    def _line(self, of: Of) -> _Line | None:
        """Return the line of a key; None if none of its deliveries is remembered."""
        if of == EVERYTHING:
            return self._everything
        if of[0] != OWN_GROUP and of[0] not in self._totals:
            return None
        if self._everything.numbers and self._everything.numbers[-1] > self._entered:
            self._enter()
        return self._lines.get(of)

    def room_for(self, of: Of, rate: Rate, now_ms: int, enough: int = 1 << 62) -> int:
        """Return how many more messages may be delivered at `now_ms`, which is not before `newest_ms`.

        The result may be less than that if it is `enough`: most often all that is remembered leaves room.
        """
        line = self._line(of)
        if line is None or not line.numbers:
            return rate.count
        least = rate.count - line.sums[-1] + line.before
        if least >= enough:
            return least
        past = bisect_right(line.numbers, now_ms - rate.per_ms, key=self.counts_ms)
        return max(0, rate.count - line.sums[-1] + (line.sums[past - 1] if past else line.before))

    def rooms_for(self, groups: Sequence[int], rate: Rate, now_ms: int, enough: int) -> list[tuple[int, int]]:
        """Return `room_for` of those groups for which it may be less than `enough`, each with its index."""
        totals, room, every = self._totals, rate.count - enough, self._everything
        if (every.sums[-1] - every.before if every.numbers else 0) <= room:
            return []  # no group has more than all together
        return [
            (at, self.room_for((group, -1), rate, now_ms, enough))
            for at, group in enumerate(groups)
            if totals.get(group, 0) > room
        ]

    def frees_ms(self, of: Of, rate: Rate) -> int:
        """Return when an exhausted rate permits a delivery again, ms since the epoch; `NEVER` = not known yet."""
        line = self._line(of)
        assert line is not None
        at_ms = self.counts_ms(line.numbers[bisect_right(line.sums, line.sums[-1] - rate.count)])
        return NEVER if at_ms >= NEVER else at_ms + rate.per_ms

    def counts_ms(self, number: int) -> int:
        """Return the instant from which a batch counts, ms since the epoch; `NEVER` while it is being written."""
        written_ms = self._written_ms.get(number)
        return self.batches[number].at_ms if written_ms is None else written_ms

    def outdated(self, rates: Iterable[Rate], now_ms: int) -> list[int]:
        """Return the numbers of batches that are outside every window that ends at `now_ms` or later."""
        longest_ms = max((rate.per_ms for rate in rates), default=0)
        found: list[int] = []
        for number in self.batches:
            if self.counts_ms(number) + longest_ms > now_ms:
                break
            found.append(number)
        return found

    # Instants of writing, which are part of the state once a later batch is counted

    def note_writing(self, number: int) -> None:
        """Note that a batch is being written. It counts in every window until `note_written` says when it was."""
        self._written_ms[number] = NEVER

    def note_written(self, to: int, at_ms: int) -> bool:
        """Note that batches up to a number were written by `at_ms`, ms since the epoch. Return whether any was new."""
        found = False
        for number in reversed(self._written_ms):
            if number <= to:
                if self._written_ms[number] < NEVER:
                    break
                self._written_ms[number] = max(at_ms, self.batches[number].at_ms)
                found = True
        self.newest_ms = max(self.newest_ms, at_ms) if found else self.newest_ms
        return found

    def set_back(self, now_ms: int) -> None:
        """Count what was decided or written in the future as of now, because the broker's clock was set back.

        So the windows that begin now include all of it (C71), and the rate is not used up until the clock is there.
        """
        self.newest_ms = min(self.newest_ms, now_ms)
        counts_ms = 0
        for number in self.batches:
            counts_ms = max(counts_ms, min(self.counts_ms(number), now_ms))  # no batch counts from before the last one
            self._written_ms[number] = counts_ms

    def written_ms(self, number: int) -> int | None:
        """Return when a batch was written, ms since the epoch; None = not known."""
        written_ms = self._written_ms.get(number, NEVER)
        return None if written_ms >= NEVER else written_ms

    def take_over(self, by_ms: int, within_ms: int, unwritten: bool) -> None:
        """Note the latest instants from which a former owner's batches count.

        Each batch says when the one before it was written. Only when the last one was written is not known.

        Args:
            by_ms: the instant by which all batches were written, ms since the epoch.
            within_ms: the longest duration of a write, ms.
            unwritten: whether this owner wrote the last batch, at `by_ms`.
        """
        counts_ms = 0
        for number, batch in self.batches.items():
            # If the broker's clock was set back meanwhile, none counts from before the last one, as `room_for` needs.
            counts_ms = max(counts_ms, batch.at_ms, self._written_by_ms(number, min(by_ms, batch.at_ms + within_ms)))
            self._written_ms[number] = counts_ms
        self.newest_ms = max(self.newest_ms, by_ms) if self.batches else self.newest_ms
        if unwritten and self.batches:
            last = next(reversed(self.batches))
            self._written_ms[last] = max(by_ms, self.batches[last].at_ms)

    def _written_by_ms(self, number: int, latest_ms: int) -> int:
        """Return when a batch was written at the latest, given another such instant, ms since the epoch."""
        following = self.batches.get(number + 1)
        if following is None:
            return latest_ms
        # Journals of older versions lack the instant. A batch is decided after the one before it was written.
        return min(latest_ms, following.at_ms) if following.before_ms is None else following.before_ms


def _by_line(batch: Batch) -> Iterator[tuple[Of, int]]:
    """Yield the keys of a batch's groups, and of its messages without one, with their numbers of deliveries."""
    for group, count in zip(batch.groups, batch.counts, strict=True):
        yield (group, -1), count
    for place in batch.places:
        yield (OWN_GROUP, place), 1
