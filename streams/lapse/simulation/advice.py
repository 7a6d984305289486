"""Advice: the smallest lifetime, lease, backlog and number of consumers that meet a goal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from lapse.config.definition import Definition
from lapse.core.duration import in_words
from lapse.simulation.arrival import Arrivals
from lapse.simulation.goal import Goal
from lapse.simulation.scenario import Run, Scenario, Setting, simulate, with_settings

MOST: Final = 1_024
"""The greatest number of consumers, and the largest backlog, to try."""

_S: Final = 1_000
_M: Final = 60 * _S
_H: Final = 60 * _M
DURATIONS_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(_S, 2 * _S, 3 * _S, 5 * _S, 10 * _S, 15 * _S, 20 * _S, 30 * _S, 45 * _S),
    *(_M, 2 * _M, 3 * _M, 5 * _M, 10 * _M, 15 * _M, 20 * _M, 30 * _M),
    *(_H, 2 * _H, 3 * _H, 6 * _H, 12 * _H, 24 * _H, 7 * 24 * _H, 30 * 24 * _H),
)
"""Lifetimes and leases to try, ms."""


class Try(NamedTuple):
    """The result of one value.

    Attributes:
        value: the value.
        served_share: the share of messages that were served, from 0 to 1.
        wait_p99_ms: the wait for a consumer that 99 % of the messages did not exceed, ms; None if none got one.
    """

    value: str
    served_share: float
    wait_p99_ms: float | None


@dataclass(frozen=True, slots=True)
class Advice:
    """The value that one knob needs.

    Attributes:
        what: the knob: a setting, `subscribers` or `backlog`.
        now: its present value.
        smallest: the smallest value that meets the goal; None if none of those tried does.
        run: the result of that value; None without one.
        tried: the results of the values that were tried, in ascending order.
    """

    what: str
    now: str
    smallest: str | None
    run: Run | None
    tried: tuple[Try, ...]

    def facts(self) -> dict[str, Any]:
        """Return the facts for JSON."""
        figures = None if self.run is None else self.run.facts()
        return {
            "what": self.what,
            "now": self.now,
            "smallest": self.smallest,
            "tried": len(self.tried),
            "figures": figures,
        }


class Adviser:
    """Tries one knob at a time, with all others unchanged.

    Args:
        definition: the queue's definition in `lapse.toml`, with the changed settings.
        beside: directory of the files that its settings name.
        base: the scenario to begin with.
        arrivals: the arriving messages.
        seed: the seed of random values.
        goals: the goals to meet.
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
        """Yield the advice for each knob."""
        crew, config = self._base.crew, self._base.config
        counts = [str(count) for count in range(1, MOST + 1)]
        times = [in_words(one) for one in DURATIONS_MS]
        consumers = lambda text: replace(self._base, crew=replace(crew, subscribers=int(text)))  # noqa: E731
        backlogs = lambda text: replace(self._base, crew=replace(crew, backlog=int(text)))  # noqa: E731
        yield self._smallest("subscribers", str(crew.subscribers), counts, consumers)
        yield self._smallest("backlog", str(crew.backlog), counts, backlogs)
        lease = in_words(config.lease_period)
        yield self._smallest("lease_period", lease, times, lambda text: self._with_setting("lease_period", text))
        lifetime = str(self._settings.get("expiration", "disabled"))
        yield self._smallest("expiration", lifetime, times, lambda text: self._with_setting("expiration", text))

    @property
    def _settings(self) -> dict[str, Any]:
        return dict(self._definition.settings)

    def _with_setting(self, key: str, text: str) -> Scenario:
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
        course = tuple(_try_of(values[at], run) for at, run in sorted(tried.items()))
        if found is None:
            return Advice(what, now, None, None, course)
        return Advice(what, now, values[found], tried[found], course)


def _try_of(value: str, run: Run) -> Try:
    waits = run.outcome.waits
    return Try(value, run.outcome.served_share, None if waits is None else waits.p99)


def smallest(count: int, is_met: Callable[[int], bool]) -> int | None:
    """Return the smallest number below `count` for which `is_met` holds; None if no tried number meets it.

    The search goes up in steps that double, and then halves the last step. It assumes that a condition that holds for a
    number holds for all greater ones.
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
