"""Claims in columns, so that neighbouring ones on messages of one run are found and settled together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.settlement.alike_claims import AlikeClaims
from lapse.core.queue.settlement.settlement import NO_TOKEN, Claim

_MOST_TOKEN: Final = 1 << 32
"""A claim with a greater token is settled alone, since no delivery count is so great."""


class ClaimColumns:
    """The columns of one or more claims.

    Attributes:
        firsts: the first offset of each.
        lasts: its last offset.
        tokens: its delivery count, `NO_TOKEN` if not stated.
    """

    __slots__ = ("_edges", "firsts", "lasts", "tokens")

    def __init__(self, claims: Sequence[Claim]) -> None:
        others: NDArray[np.bool_] | None = None
        self.firsts: NDArray[np.int64]
        self.lasts: NDArray[np.int64]
        self.tokens: NDArray[np.int64]
        if isinstance(claims, AlikeClaims):
            self.firsts, self.lasts = claims.firsts, claims.lasts
            self.tokens = np.full(len(claims), _number(claims.delivery_count), np.int64)
        else:
            topics, partitions, firsts, lasts, tokens, epochs, _ = zip(*claims, strict=True)
            self.firsts, self.lasts = np.array(firsts, np.int64), np.array(lasts, np.int64)
            if tokens.count(tokens[0]) == len(tokens):
                self.tokens = np.full(len(claims), _number(tokens[0]), np.int64)
            else:
                self.tokens = np.array(list(map(_number, tokens)), np.int64)
            if any(column.count(column[0]) < len(column) for column in (topics, partitions, epochs)):
                sources = zip(topics, partitions, epochs, strict=True)
                others = np.array([one != other for one, other in pairwise(sources)], bool)
        apart = (self.firsts[1:] <= self.lasts[:-1]) | (self.lasts[1:] < self.firsts[1:])
        great = self.tokens >= _MOST_TOKEN
        if great.any():
            apart |= great[1:] | great[:-1]
        if others is not None:
            apart |= others
        self._edges = [*(np.flatnonzero(apart) + 1).tolist(), len(claims)]
        """The indexes of claims that are not on later messages of the source and epoch of the claim before."""
        self._edges.reverse()

    def end_of_ascending(self, at: int) -> int:
        """Return the index behind the claims from `at` on that ascend and have one source and epoch.

        `at` must not be less than in earlier calls.
        """
        while self._edges[-1] <= at:
            self._edges.pop()
        return int(self._edges[-1])

    def end_of_run(self, at: int, behind: int) -> int:
        """Return the index behind those of them that are on messages before an offset, at least `at` + 1."""
        stop = self.end_of_ascending(at)
        return max(at + int(np.searchsorted(self.lasts[at:stop], behind)), at + 1)


def _number(token: int | None) -> int:
    """Return a token as a number."""
    return NO_TOKEN if token is None else min(token, _MOST_TOKEN)
