"""Advice: the smallest lifetime, lease, backlog and number of consumers with which a goal is met."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from lapse.config.definition import Definition
from lapse.config.duration import in_words
from lapse.simulation.arrival import Arrivals
from lapse.simulation.goal import Goal
from lapse.simulation.scenario import Run, Scenario, Setting, simulate, with_settings

MOST: Final = 1_024
"""The greatest number of consumers, and the largest backlog, that are tried."""

_S: Final = 1_000
_M: Final = 60 * _S
_H: Final = 60 * _M
DURATIONS_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(_S, 2 * _S, 3 * _S, 5 * _S, 10 * _S, 15 * _S, 20 * _S, 30 * _S, 45 * _S),
    *(_M, 2 * _M, 3 * _M, 5 * _M, 10 * _M, 15 * _M, 20 * _M, 30 * _M),
    *(_H, 2 * _H, 3 * _H, 6 * _H, 12 * _H, 24 * _H, 7 * 24 * _H, 30 * 24 * _H),
)
"""Lifetimes and leases that are tried."""


class Try(NamedTuple):
    """What came of a value.

    Attributes:
        value: the value.
        served_share: which share of the messages was served, from 0 to 1.
        wait_p99_ms: 99 of 100 waited no longer for a consumer, ms; None = nobody got any.
    """

    value: str
    served_share: float
    wait_p99_ms: float | None


@dataclass(frozen=True, slots=True)
class Advice:
    """What one knob has to be.

    Attributes:
        what: the knob: a setting, `subscribers` or `backlog`.
        now: what it is.
        smallest: the smallest value with which the goal is met; None = with none that was tried.
        run: what came of that; None without one.
        tried: what came of the values that were tried, from the smallest on.
    """

    what: str
    now: str
    smallest: str | None
    run: Run | None
    tried: tuple[Try, ...]

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        figures = None if self.run is None else self.run.facts()
        return {
            "what": self.what,
            "now": self.now,
            "smallest": self.smallest,
            "tried": len(self.tried),
            "figures": figures,
        }


class Adviser:
    """Tries one knob at a time, all others as they are.

    Args:
        definition: the queue as `lapse.toml` has it, with what was set instead.
        beside: where the files are that its settings name.
        base: the scenario to begin with.
        arrivals: what comes in.
        seed: of the draws.
        goals: what has to hold.
    """

    def __init__(
        self, definition: Definition, beside: Path, base: Scenario, arrivals: Arrivals, seed: int, goals: Sequence[Goal]
    ) -> None:
        self._definition = definition
        self._beside = beside
        self._base = base
        self._arrivals = arrivals
        self._seed = seed
        self._goals = goals

    def advice(self) -> Iterator[Advice]:
        """What each knob has to be."""
        crew, config = self._base.crew, self._base.config
        counts = [str(count) for count in range(1, MOST + 1)]
        times = [in_words(one) for one in DURATIONS_MS]
        consumers = lambda text: replace(self._base, crew=replace(crew, subscribers=int(text)))  # noqa: E731
        backlogs = lambda text: replace(self._base, crew=replace(crew, backlog=int(text)))  # noqa: E731
        yield self._smallest("subscribers", str(crew.subscribers), counts, consumers)
        yield self._smallest("backlog", str(crew.backlog), counts, backlogs)
        lease = in_words(config.lease_period)
        yield self._smallest("lease_period", lease, times, lambda text: self._with("lease_period", text))
        lifetime = str(self._settings.get("expiration", "disabled"))
        yield self._smallest("expiration", lifetime, times, lambda text: self._with("expiration", text))

    @property
    def _settings(self) -> dict[str, Any]:
        return dict(self._definition.settings)

    def _with(self, key: str, text: str) -> Scenario:
        changed = [Setting(key, text, {key: text})]
        if key == "lease_period":
            changed.append(Setting("max_lease_period", text, {"max_lease_period": None}))
        return replace(self._base, config=with_settings(self._definition, self._beside, changed))

    def _smallest(self, what: str, now: str, values: Sequence[str], of: Callable[[str], Scenario]) -> Advice:
        tried: dict[int, Run] = {}

        def is_met(at: int) -> bool:
            if at not in tried:
                tried[at] = simulate(self._definition.name, of(values[at]), self._arrivals, self._seed)
            return all(goal.is_met(tried[at].outcome) for goal in self._goals)

        found = smallest(len(values), is_met)
        course = tuple(_told(values[at], run) for at, run in sorted(tried.items()))
        if found is None:
            return Advice(what, now, None, None, course)
        return Advice(what, now, values[found], tried[found], course)


def _told(value: str, run: Run) -> Try:
    waits = run.outcome.waits
    return Try(value, run.outcome.served_share, None if waits is None else waits.p99)


def smallest(count: int, is_met: Callable[[int], bool]) -> int | None:
    """The smallest number below `count` for which something holds; None if it holds for none that is tried.

    It goes up in steps that double, and then halves the last one: what holds for a number is taken to hold for those
    above it.
    """
    below, at = -1, 0
    while not is_met(at):
        if at == count - 1:
            return None
        below, at = at, min(count - 1, 2 * at + 1)
    while at - below > 1:
        middle = (below + at) // 2
        if is_met(middle):
            at = middle
        else:
            below = middle
    return at
