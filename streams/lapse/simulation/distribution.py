"""Distributions: durations drawn with a seed, so that a second run draws the same."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from lapse.core.duration import LONGEST_MS, duration_ms

FORMS: Final = '"200ms", "exponential:200ms", "uniform:100ms:300ms" or "lognormal:200ms:0.5"'
_PARTS: Final = {"exponential": 1, "uniform": 2, "lognormal": 2}


def seeded(seed: str) -> random.Random:
    """Return a generator of random values that are the same in every run with the same seed."""
    return random.Random(seed)  # noqa: S311  # no secrets are drawn


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution of durations, ms.

    Attributes:
        kind: `constant`, `exponential`, `uniform`, `lognormal` or `recorded`.
        first_ms: the constant; the mean of exponential durations, the least of uniform ones, the median of lognormal
            ones.
        second: the greatest of uniform durations, ms; the standard deviation of the logarithm of lognormal ones.
        recorded_ms: recorded durations, of which one is drawn.
    """

    kind: str
    first_ms: float = 0.0
    second: float = 0.0
    recorded_ms: Sequence[int] = ()

    @property
    def mean_ms(self) -> float:
        """The mean, ms."""
        match self.kind:
            case "recorded":
                return sum(self.recorded_ms) / len(self.recorded_ms)
            case "uniform":
                return (self.first_ms + self.second) / 2
            case "lognormal":
                return self.first_ms * math.exp(self.second**2 / 2)
        return self.first_ms

    def drawing(self, chance: random.Random) -> Callable[[], float]:
        """Return what draws a duration at each call, ms."""
        first, second, longest = self.first_ms, self.second, float(LONGEST_MS)
        match self.kind:
            case "constant":
                return lambda: first
            case "recorded":
                recorded_ms, draw = self.recorded_ms, chance.random
                return lambda: recorded_ms[int(draw() * len(recorded_ms))]
            case "exponential":
                draw_one, log = chance.random, math.log
                # The value of `expovariate(1.0)`, without a call of Python's for each.
                return lambda: one if (one := -log(1.0 - draw_one()) * first) < longest else longest
            case "uniform":
                return lambda: min(chance.uniform(first, second), longest)
        return lambda: min(first * chance.lognormvariate(0.0, second), longest)

    def __str__(self) -> str:
        first = f"{self.first_ms:g}ms"
        if self.kind == "constant":
            return first
        if self.kind == "recorded":
            return f"recorded ({len(self.recorded_ms)})"
        second = {"uniform": f":{self.second:g}ms", "lognormal": f":{self.second:g}"}.get(self.kind, "")
        return f"{self.kind}:{first}{second}"


def distribution(text: str) -> Distribution:
    """Parse a distribution.

    Raises:
        ValueError: it is not a distribution.
    """
    kind, *parts = text.strip().split(":")
    try:
        if not parts:
            return Distribution("constant", duration_ms(kind))
        if len(parts) != _PARTS.get(kind, -1):
            raise ValueError("no such form")
        first_ms = duration_ms(parts[0])
        if kind == "uniform":
            most_ms = duration_ms(parts[1])
            if most_ms < first_ms:
                raise ValueError("the second duration has to be the longer one")
            return Distribution(kind, first_ms, most_ms)
        if kind == "lognormal":
            spread = float(parts[1])
            if not 0 <= spread <= _WIDEST:
                raise ValueError(f"the spread has to be from 0 to {_WIDEST:g}")
            return Distribution(kind, first_ms, spread)
    except ValueError as error:
        raise ValueError(f"{text!r} is no distribution ({error}); expected {FORMS}") from error
    return Distribution(kind, first_ms)


_WIDEST: Final = 10.0
"""The greatest spread of lognormal durations: e to the tenth power either way."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often messages arrive.

    Attributes:
        gap_ms: the time between two arrivals, which need not be a whole number of ms.
    """

    gap_ms: Distribution

    def __str__(self) -> str:
        return str(self.gap_ms)


PACES: Final = f'"50/s", "poisson:50/s", or the time between two arrivals: {FORMS}'
_PER_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def pace(text: str) -> Pace:
    """Parse how often messages arrive.

    Raises:
        ValueError: it is not a rate.
    """
    stated = text.strip()
    regular = not stated.startswith("poisson:")
    number, slash, unit = stated.removeprefix("poisson:").partition("/")
    if slash:
        try:
            per_unit = float(number)
        except ValueError:
            per_unit = 0.0
        if unit not in _PER_MS or not 0 < per_unit < float("inf"):
            raise ValueError(f"{text!r} is no rate; expected {PACES}")
        return Pace(Distribution("constant" if regular else "exponential", _PER_MS[unit] / per_unit))
    if not regular:
        raise ValueError(f"{text!r} is no rate; expected {PACES}")
    try:
        gaps = distribution(text)
    except ValueError as error:
        why = f" ({error.__cause__})" if ":" in text else ""
        raise ValueError(f"{text!r} is no rate{why}; expected {PACES}") from error
    if not gaps.first_ms and not gaps.second:
        raise ValueError(f"{text!r}: with no time between two arrivals there is no end; expected {PACES}")
    return Pace(gaps)
