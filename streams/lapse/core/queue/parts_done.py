"""Parts done: counts what the parts of a long command did. The command's answer covers all of them (C55, C60)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from lapse.core.queue.settlement.settlement import Outcome, Result


@dataclass(slots=True)
class PartsDone:
    """The results so far of a purge, or of a settlement by filter, that is carried out in parts.

    Attributes:
        purged: number of messages that the purge removed, by the state that they had.
        settled: the outcomes of the messages that the settlement settled.
        skipped: number of messages that the settlement did not settle.
        settled_to: the last segment that the settlement has covered; -1 = none.
    """

    purged: Counter[str] = field(default_factory=Counter)
    settled: list[Outcome] = field(default_factory=list)
    skipped: int = 0
    settled_to: int = -1

    @property
    def any(self) -> bool:
        """Whether any part removed a message or covered a segment."""
        return bool(self.purged) or self.settled_to >= 0

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Add the outcomes of one part of a settlement."""
        for outcome in outcomes:
            if outcome.result is Result.SETTLED:
                self.settled.append(outcome)
            elif outcome.result is not Result.TIME_LIMIT:  # counts as if it had left before
                self.skipped += outcome.last - outcome.first + 1

    def clear(self) -> None:
        """Forget the results, so that another command can begin."""
        self.purged.clear()
        self.settled, self.skipped, self.settled_to = [], 0, -1
