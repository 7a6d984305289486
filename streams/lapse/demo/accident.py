"""Accidents: which process is killed when, drawn with the seed before anything starts."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from lapse.demo.plan import Plan

_EVERY_S: Final = 14.0
_MOST: Final = 14
_LEAST: Final = 2
_QUIET: Final = 0.08
"""The share of the run at its beginning and at its end without accidents."""

_WORKER_FROM_S: Final = 45.0
"""Runs of at least this length, s, lose a worker, too."""

SUBSCRIBER: Final = "subscriber"
WORKER: Final = "worker"


@dataclass(frozen=True, slots=True)
class Accident:
    """The end of a process by SIGKILL.

    Attributes:
        after_s: when, s after the first announcement.
        kind: a subscriber or a worker.
        number: its number.
        absent_s: after how long it is started again, s.
    """

    after_s: float
    kind: str
    number: int
    absent_s: float


@dataclass(frozen=True, slots=True)
class Death:
    """An accident that has happened.

    Attributes:
        at_ms: when, ms since the epoch.
        name: name of the process.
        back_ms: when it was started again, ms since the epoch; 0 if not yet.
    """

    at_ms: int
    name: str
    back_ms: int = 0


def accidents(plan: Plan) -> list[Accident]:
    """Draw the accidents of a run, in the order of their instants."""
    chance = random.Random(f"{plan.seed}/accidents")  # noqa: S311  # accidents, not secrets
    length_s = plan.duration_ms / 1000
    count = min(_MOST, max(_LEAST, round(length_s / _EVERY_S)))
    drawn = [
        Accident(
            after_s=length_s * chance.uniform(_QUIET, 1 - _QUIET),
            kind=SUBSCRIBER,
            number=chance.randrange(plan.subscribers),
            absent_s=chance.uniform(0.5, min(4.0, length_s / 8)),
        )
        for _ in range(count)
    ]
    if length_s >= _WORKER_FROM_S and plan.workers > 1:
        drawn.append(Accident(length_s * chance.uniform(0.5, 0.7), WORKER, chance.randrange(plan.workers), 1.0))
    return sorted(drawn, key=lambda accident: accident.after_s)
