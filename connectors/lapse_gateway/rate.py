"""How many requests a second one user may send: a bucket of tokens for each."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from lapse_gateway.fault import Fault

_MOST: Final = 10_000
"""Buckets that are kept; the one that was used least lately goes first."""


class RateLimit:
    """A bucket of tokens for each user, or each address where there are no users.

    Args:
        rate: tokens a second; a bucket holds as many as come in a second, and one at least. None = no limit.
        now: seconds on a clock that only runs forward.
    """

    def __init__(self, rate: float | None, now: Callable[[], float]) -> None:
        self._rate = rate
        self._now = now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, who: str) -> None:
        """Take a token.

        Raises:
            Fault: there is none.
        """
        if self._rate is None:
            return
        now, most = self._now(), max(1.0, self._rate)
        left, since = self._buckets.pop(who, (most, now))
        left = min(most, left + (now - since) * self._rate)
        self._buckets[who] = (left - 1 if left >= 1 else left, now)
        if len(self._buckets) > _MOST:
            self._buckets.popitem(last=False)
        if left < 1:
            wait_s = max(1, math.ceil((1 - left) / self._rate))
            raise Fault(
                "too_many_requests",
                f"more than {self._rate:g} requests a second: wait {wait_s} s, or send batches",
                {"Retry-After": str(wait_s)},
            )
