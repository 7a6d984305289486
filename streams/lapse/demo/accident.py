"""Accidents: when which process is killed, drawn from the seed before anything starts."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from lapse.demo.plan import Plan

_EVERY_S: Final = 14.0
_MOST: Final = 14
_LEAST: Final = 2
_QUIET: Final = 0.08
"""Nobody dies in the first and the last part of the run."""

_WORKER_FROM_S: Final = 45.0
"""Runs this long lose a worker, too."""

SUBSCRIBER: Final = "subscriber"
WORKER: Final = "worker"


@dataclass(frozen=True, slots=True)
class Accident:
    """One death by SIGKILL.

    Attributes:
        after_s: when, in seconds from the first announcement.
        kind: a subscriber or a worker.
        number: which one.
        absent_s: after how many seconds it is started again.
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
        name: of the process.
        back_ms: when it was started again, ms since the epoch; 0 = not yet.
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
