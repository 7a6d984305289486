"""`raise Retry(after=…)`: a consumer returns its message, to be delivered again later (Q24)."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Final

_LONGEST_S: Final = 3_650_000 * 86_400
"""Ten thousand years, in seconds: an instant so far ahead still fits in 64 bits."""


class Retry(Exception):
    """An exception for handlers: the message is cancelled, and delivered again after a delay.

    ::

        with delivery:
            if rates.are_missing():
                raise Retry(after=30)

    The `with` block of the delivery catches it, and so does `run`, which logs nothing. The delay has precedence over
    those of the message's header and of the queue. The delivery and the cancel count as usual.

    Args:
        after: the delay, in seconds or as a `timedelta`; 0 = no delay; None = the delay of the message's header
            `lapse-retry-delay-ms`, or of the queue's `retry`.

    Attributes:
        delay_ms: the delay in ms, rounded up; None = as for `after`.

    Raises:
        ValueError: `after` is not between 0 and ten thousand years.
    """

    def __init__(self, after: float | timedelta | None = None) -> None:
        super().__init__(after)
        self.delay_ms = None if after is None else _delay_ms(after)

    def __str__(self) -> str:
        return "retry" if self.delay_ms is None else f"retry after {self.delay_ms} ms"


def _delay_ms(after: object) -> int:
    seconds = after.total_seconds() if isinstance(after, timedelta) else after
    if not isinstance(seconds, bool) and isinstance(seconds, int | float) and 0 <= seconds <= _LONGEST_S:
        return max(math.ceil(round(seconds * 1000, 3)), math.ceil(min(seconds, 1)))
    raise ValueError(f"Retry: after is {after!r}: expected a timedelta, or a number of seconds of 0 or more")
