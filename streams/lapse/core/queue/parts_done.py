"""What the parts of a long command have done so far: its answer is about all of them (C55, C60)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from lapse.core.queue.settlement.settlement import Outcome, Result


@dataclass(slots=True)
class PartsDone:
    """The parts of a purge, or of a settlement by filter, that are done.

    Attributes:
        purged: how many messages a purge has removed, by the state in which they were.
        settled: what a settlement has settled.
        skipped: how many messages it has left as they were.
        settled_to: the last segment in which it has settled; -1 = none.
    """

    purged: Counter[str] = field(default_factory=Counter)
    settled: list[Outcome] = field(default_factory=list)
    skipped: int = 0
    settled_to: int = -1

    @property
    def any(self) -> bool:
        """Whether anything is done."""
        return bool(self.purged) or self.settled_to >= 0

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Add what one part of a settlement has done."""
        for outcome in outcomes:
            if outcome.result is Result.SETTLED:
                self.settled.append(outcome)
            elif outcome.result is not Result.TIME_LIMIT:  # as if it had left
                self.skipped += outcome.last - outcome.first + 1

    def clear(self) -> None:
        """Begin anew, with another command."""
        self.purged.clear()
        self.settled, self.skipped, self.settled_to = [], 0, -1
