"""Claims that differ in their offsets only, in columns: those of most commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import overload

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.settlement.settlement import Claim


class AlikeClaims(Sequence[Claim]):
    """Claims of one source with equal tokens. An object for one is made only if it is accessed.

    Attributes:
        topic: their topic.
        partition: its partition.
        firsts: the first offset of each.
        lasts: its last offset.
        delivery_count: the fencing token of all, None if not sent (C13).
        epoch: the same (C42).
    """

    __slots__ = ("delivery_count", "epoch", "firsts", "lasts", "partition", "topic")

    def __init__(
        self,
        topic: str,
        partition: int,
        firsts: NDArray[np.int64],
        lasts: NDArray[np.int64],
        delivery_count: int | None,
        epoch: int | None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.firsts = firsts
        self.lasts = lasts
        self.delivery_count = delivery_count
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.firsts)

    @overload
    def __getitem__(self, at: int) -> Claim: ...

    @overload
    def __getitem__(self, at: slice) -> AlikeClaims: ...

    def __getitem__(self, at: int | slice) -> Claim | AlikeClaims:
        if isinstance(at, slice):
            return self._with(self.firsts[at], self.lasts[at])
        return Claim(
            self.topic, self.partition, int(self.firsts[at]), int(self.lasts[at]), self.delivery_count, self.epoch
        )

    def __iter__(self) -> Iterator[Claim]:
        return map(
            Claim,
            repeat(self.topic),
            repeat(self.partition),
            self.firsts.tolist(),
            self.lasts.tolist(),
            repeat(self.delivery_count),
            repeat(self.epoch),
        )

    def take(self, order: NDArray[np.intp]) -> AlikeClaims:
        """Return the claims at some indexes."""
        return self._with(self.firsts[order], self.lasts[order])

    def _with(self, firsts: NDArray[np.int64], lasts: NDArray[np.int64]) -> AlikeClaims:
        return AlikeClaims(self.topic, self.partition, firsts, lasts, self.delivery_count, self.epoch)

    def joined(self, others: AlikeClaims) -> AlikeClaims | None:
        """Return these claims and others behind them; None if they differ in more than their offsets."""
        mine = self.topic, self.partition, self.delivery_count, self.epoch
        if mine != (others.topic, others.partition, others.delivery_count, others.epoch):
            return None
        return self._with(np.concatenate((self.firsts, others.firsts)), np.concatenate((self.lasts, others.lasts)))


def joined(claims: Sequence[Claim], others: Sequence[Claim]) -> Sequence[Claim]:
    """Return claims and others behind them, in columns if possible."""
    if not len(claims):
        return others
    if isinstance(claims, AlikeClaims) and isinstance(others, AlikeClaims):
        found = claims.joined(others)
        if found is not None:
            return found
    known: list[Claim] = claims if isinstance(claims, list) else list(claims)
    known.extend(others)
    return known
