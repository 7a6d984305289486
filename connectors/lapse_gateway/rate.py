"""The limit of requests per second, by token buckets."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from lapse_gateway.fault import Fault

_MOST: Final = 10_000
"""The most buckets that are kept. The least recently used one is dropped first."""


class RateLimit:
    """A token bucket for each user, or for each address without users.

    Args:
        rate: tokens per second. A bucket holds the tokens of one second, at least one. None = no limit.
        now: a monotonic clock, in seconds.
    """

    def __init__(self, rate: float | None, now: Callable[[], float]) -> None:
        self._rate = rate
        self._now = now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, who: str) -> None:
        """Take a token from a user's or address's bucket.

        Raises:
            Fault: the bucket is empty.
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
