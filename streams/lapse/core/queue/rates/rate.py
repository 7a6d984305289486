"""A rate: the greatest number of deliveries in any window of a given length (Q25, C71)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` deliveries from any instant on, before the instant `per_ms` later.

    Attributes:
        count: most deliveries.
        per_ms: length of the window, ms.
    """

    count: int
    per_ms: int
