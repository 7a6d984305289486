"""Goals: what a queue must achieve, as people write it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from lapse.core.duration import duration_ms, in_words
from lapse.simulation.outcome import Outcome

FORMS: Final = '"99% served", "wait 99% < 2s" or "stay median < 500ms", several with commas between them'
_SERVED: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%\s*served\Z")
_TIME: Final = re.compile(r"(wait|stay)\s+(median|90%|99%|mean|most)\s*<=?\s*(\S+)\Z")
_FIELDS: Final = {"90%": "p90", "99%": "p99"}


@dataclass(frozen=True, slots=True)
class Goal:
    """One goal.

    Attributes:
        what: `served`, `wait` or `stay`.
        which: for a time, `mean`, `median`, `p90`, `p99` or `most`.
        bound: the least share, from 0 to 1, or the longest time, ms.
    """

    what: str
    which: str
    bound: float

    def is_met(self, outcome: Outcome) -> bool:
        """Return whether the goal is met. A goal for a time is not met if no message has that time."""
        if outcome.endless:
            return False
        if self.what == "served":
            return outcome.served_share >= self.bound
        times = outcome.waits if self.what == "wait" else outcome.stays
        return times is not None and getattr(times, self.which) <= self.bound

    def __str__(self) -> str:
        if self.what == "served":
            return f"{100 * self.bound:g}% served"
        shown = {field: name for name, field in _FIELDS.items()}.get(self.which, self.which)
        return f"{self.what} {shown} < {in_words(int(self.bound))}"


def goals(text: str) -> tuple[Goal, ...]:
    """Parse goals.

    Raises:
        ValueError: one of them is not a goal.
    """
    return tuple(_goal(part.strip()) for part in text.split(","))


def _goal(text: str) -> Goal:
    if (served := _SERVED.match(text)) and float(served[1]) <= _ALL:
        return Goal("served", "", float(served[1]) / _ALL)
    if time := _TIME.match(text):
        try:
            return Goal(time[1], _FIELDS.get(time[2], time[2]), duration_ms(time[3]))
        except ValueError as error:
            raise ValueError(f"{text!r} is no goal ({error}); expected {FORMS}") from error
    raise ValueError(f"{text!r} is no goal; expected {FORMS}")


_ALL: Final = 100.0
