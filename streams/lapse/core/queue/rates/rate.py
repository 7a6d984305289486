"""A rate: the greatest number of deliveries in any window of a given length (Q25, C71)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` deliveries in every window of `per_ms`.

    Attributes:
        count: the greatest number of deliveries.
        per_ms: length of the window, ms.
    """

    count: int
    per_ms: int
