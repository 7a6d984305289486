"""Options of `lapse simulate` that are refused: cases of test_distribution.py and of docs/bad-input.md (X7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from lapse.simulation.distribution import distribution, pace
from lapse.simulation.goal import goals


class Case(NamedTuple):
    """An option that is refused.

    Attributes:
        option: its name.
        read: reads it.
        given: what stands there.
    """

    option: str
    read: Callable[[str], Any]
    given: str

    @property
    def shown(self) -> str:
        """The option, as the page shows it."""
        return f"`{self.option} {self.given}`"

    @property
    def message(self) -> str:
        """What is told."""
        try:
            self.read(self.given)
        except ValueError as error:
            return str(error)
        return ""


CASES: Final = [
    Case("--service", distribution, "200"),
    Case("--service", distribution, "gauss:200ms"),
    Case("--service", distribution, "exponential:1s:2s"),
    Case("--service", distribution, "uniform:3s:1s"),
    Case("--lifetime", distribution, "lognormal:1s:nan"),
    Case("--arrivals", pace, "50/x"),
    Case("--arrivals", pace, "0/s"),
    Case("--arrivals", pace, "many"),
    Case("--arrivals", pace, "uniform:2s:1s"),
    Case("--arrivals", pace, "poisson:20ms"),
    Case("--arrivals", pace, "0ms"),
]
GOALS: Final = [
    Case("--goal", goals, "fast"),
    Case("--goal", goals, "101% served"),
    Case("--goal", goals, "wait 99% < 2"),
    Case("--goal", goals, "wait 75% < 2s"),
]
