"""Arrivals: the messages that arrive, with their instants."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from lapse.core.lifetime import TTL_MS
from lapse.simulation.distribution import Distribution, Pace, seeded
from lapse.uncollected import uncollected

BEGIN_MS: Final = 1_767_225_600_000
"""2026-01-01T00:00:00Z, ms since the epoch: when arrivals from a distribution begin."""

MOST: Final = 5_000_000
"""The greatest number of simulated messages, because memory is limited."""


class Record(NamedTuple):
    """A message as the core sees it; a `lapse.core.record.Record`."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class Arrival(NamedTuple):
    """A message that arrives.

    Attributes:
        at_ms: when it arrives, ms since the epoch. Its record's timestamp may be earlier: producers' clocks differ.
        topic: underlying topic.
        partition: its partition.
        record: the message.
    """

    at_ms: int
    topic: str
    partition: int
    record: Record | Any


class Arrivals:
    """Messages in the order of their arrival.

    Args:
        some: the messages, those of each partition in the order of their offsets.
        partitions: the greatest number of partitions of a topic.

    Attributes:
        partitions: the greatest number of partitions of a topic.
    """

    def __init__(self, some: Sequence[Arrival], partitions: int) -> None:
        self._some = sorted(some, key=lambda one: one.at_ms)  # stable: offsets stay in order
        self.partitions = partitions

    def __len__(self) -> int:
        return len(self._some)

    def __iter__(self) -> Iterator[Arrival]:
        return iter(self._some)

    def __getitem__(self, at: int) -> Arrival:
        return self._some[at]

    @property
    def first_ms(self) -> int:
        """Instant of the first message, ms since the epoch; 0 if there is none."""
        return self._some[0].at_ms if self._some else 0

    @property
    def last_ms(self) -> int:
        """Instant of the last message, ms since the epoch; 0 if there is none."""
        return self._some[-1].at_ms if self._some else 0


@uncollected()  # looking for garbage takes a quarter of the time, and all of this stays
def drawn(
    topic: str,
    partitions: int,
    gaps: Pace,
    most: int | None,
    for_ms: int | None,
    lifetimes: Distribution | None,
    seed: int,
) -> Arrivals:
    """Draw messages from distributions, one for each partition in turn.

    Args:
        topic: the underlying topic.
        partitions: its number of partitions.
        gaps: the time between two arrivals.
        most: the number of messages; None for as many as arrive in time.
        for_ms: the length of the time, ms; None until there are enough.
        lifetimes: the values of `lapse-ttl-ms`; None for none.
        seed: the seed of random values.

    Raises:
        ValueError: the messages are too many, or without end.
    """
    if most is None and for_ms is None:
        raise ValueError("say how many messages come in, or for how long")
    expected = min(most or math.inf, (for_ms or math.inf) / gaps.gap_ms.mean_ms)
    if expected > MOST:
        raise ValueError(f"these are more than {MOST:,} messages; shorten the time, or slow the pace")
    chance, of_lifetimes = seeded(f"{seed}:arrivals"), seeded(f"{seed}:lifetimes")
    draw_gap = gaps.gap_ms.drawing(chance)
    draw_lifetime = None if lifetimes is None else lifetimes.drawing(of_lifetimes)
    some: list[Arrival] = []
    at_ms = float(BEGIN_MS)
    end_ms = float("inf") if for_ms is None else BEGIN_MS + for_ms
    while most is None or len(some) < most:
        at_ms += draw_gap()
        if at_ms >= end_ms:
            break
        offset, partition = divmod(len(some), partitions)
        headers: Sequence[tuple[str, bytes]] = ()
        if draw_lifetime is not None:
            headers = ((TTL_MS, b"%d" % max(1, round(draw_lifetime()))),)
        some.append(Arrival(int(at_ms), topic, partition, Record(offset, int(at_ms), None, b"{}", headers)))
    return Arrivals(some, partitions)
