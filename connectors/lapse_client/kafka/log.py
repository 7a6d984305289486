"""The log of librdkafka. A line that it repeats while no broker answers is logged at most twice a minute."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Final

_EVERY_S: Final = 30.0
_MOST_KEPT: Final = 1_000
_NUMBER: Final = re.compile(r"\d+")


class Seldom(logging.Filter):
    """Passes a repeated warning or error at most once per interval, with the number of suppressed lines.

    While no broker answers, librdkafka tries all addresses again and again, and logs each attempt: twenty lines a
    second for each consumer. Lines that differ only in numbers count as the same.

    Args:
        every_s: interval in which a repeated line is logged once, in seconds.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, every_s: float = _EVERY_S, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._every_s = every_s
        self._clock = clock
        self._logged: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is logged."""
        if record.levelno < logging.WARNING:
            return True
        text, now_s = record.getMessage(), self._clock()
        alike = _NUMBER.sub("", text)
        with self._lock:
            logged_s, left_out = self._logged.get(alike, (None, 0))
            if logged_s is not None and now_s - logged_s < self._every_s:
                self._logged[alike] = logged_s, left_out + 1
                return False
            if len(self._logged) >= _MOST_KEPT:
                self._logged.clear()
            self._logged[alike] = now_s, 0
        if left_out:
            record.msg, record.args = f"{text} ({left_out:,} more like this since the last one)", None
        return True


log = logging.getLogger("lapse_client.kafka")
log.addHandler(logging.NullHandler())  # librdkafka's lines go to a configured log only, not to the terminal
log.addFilter(Seldom())
