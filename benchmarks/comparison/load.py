"""The size of a run's measurements."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """The size of a run's measurements.

    Attributes:
        messages: messages through a queue; other rows take a part of this number.
        burst: messages due in one second.
        recovered: messages or SOW records that a recovery restores.
        deepest: messages in measurements of the core alone.
        seconds: the time of steady publishing, s.
        ledger: messages of the larger ledger.
        warming: messages that a broker serves before it counts as warm.
        entities: queues of one worker.
    """

    messages: int = 300_000
    burst: int = 1_000_000
    recovered: int = 1_000_000
    deepest: int = 10_000_000
    seconds: float = 6.0
    ledger: int = 20_000_000
    warming: int = 3_000_000
    entities: int = 1_000


QUICK = Load(
    messages=60_000,
    burst=100_000,
    recovered=100_000,
    deepest=1_000_000,
    seconds=3.0,
    ledger=500_000,
    warming=200_000,
    entities=50,
)
"""A load that shows that everything runs, too small for meaningful figures."""
