"""How much a run measures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured.

    Attributes:
        messages: through a queue; other rows take their part of it.
        burst: messages due in one second.
        recovered: messages, or SOW records, of the recovery.
        deepest: messages of the core alone.
        seconds: of steady publishing.
        ledger: messages of the greater ledger.
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
"""Shows that everything runs; too little for figures that one would quote."""
