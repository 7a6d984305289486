"""Limits the work of one command, and divides it into portions with turns for others in between (X7).

The core has no clock, so it works in portions. The runtime measures their CPU time, and chooses the size of the next
one by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from lapse.core.error_code import ErrorCode, Refusal
from lapse.core.portions import JudgedBytes

TURN_S: Final = 0.005
"""CPU that a portion should take, s. Others then wait about twice as long at most."""

MOST_S: Final = 10.0
MOST_EACH_S: Final = 0.000_2
"""CPU that a command may take in all, s: the first value, plus the second one for each message that it looked at."""


class Portion:
    """The number of messages that are looked at before others have their turn.

    Args:
        most: the greatest number.
        first: the first number.
        least: the least number.
    """

    def __init__(self, most: int, first: int = 64, least: int = 1) -> None:
        self._most = most
        self._least = least
        self.size = min(most, first)

    def end(self, records: Sequence[Any | None], at: int) -> int:
        """Return the index behind the last record of a portion that begins at index `at`."""
        last, judged = min(len(records), at + self.size), JudgedBytes()
        for stop in range(at, last):
            record = records[stop]
            if record is not None and judged.add(len(record.value or b"")):
                return stop + 1
        return last

    def note_time(self, seconds: float, turn_s: float = TURN_S, fill: float = 0.5) -> None:
        """Choose the size of the next portion by the CPU time of the last one.

        Args:
            seconds: what it took, s.
            turn_s: what it should take, s.
            fill: the next one grows if this one took less than this part of `turn_s`.
        """
        if seconds > turn_s:
            self.size = max(self._least, int(self.size * turn_s / seconds))
        elif seconds < turn_s * fill:
            grown = 2 * self.size if 2 * seconds <= turn_s else int(self.size * turn_s / seconds)
            self.size = min(self._most, grown)


class CommandWork:
    """The CPU time that one command has taken so far, and its limit."""

    __slots__ = ("_each_s", "_most_s", "looked", "spent_s")

    def __init__(self, each_s: float = MOST_EACH_S, most_s: float | None = None) -> None:
        """Begin with nothing spent.

        Args:
            each_s: CPU allowed for each message that is looked at, s.
            most_s: CPU allowed in addition, s; None for `MOST_S`.
        """
        self._each_s = each_s
        self._most_s = most_s
        self.spent_s = 0.0
        self.looked = 0

    @contextmanager
    def portion_measured(self, count: int, portion: Portion | None = None) -> Iterator[None]:
        """Measure the work on `count` messages, and choose the next size of `portion` by it."""
        began = time.thread_time()
        yield
        seconds = time.thread_time() - began
        self.spent_s += seconds
        self.looked += count
        if portion is not None:
            portion.note_time(seconds)

    @contextmanager
    def measured(self) -> Iterator[Callable[[int], None]]:
        """Measure work. Call the yielded function with the number of messages that were looked at."""
        began = time.thread_time()
        yield self._look
        self.spent_s += time.thread_time() - began

    def _look(self, count: int) -> None:
        self.looked += count

    @property
    def is_spent(self) -> bool:
        """Whether the command has exceeded its limit."""
        most_s = MOST_S if self._most_s is None else self._most_s
        return self.spent_s > most_s + self.looked * self._each_s

    def refusal(self, command: str) -> Refusal:
        """Return the refusal for the sender of the command."""
        return Refusal(
            ErrorCode.TOO_COSTLY,
            f"{command}: stopped after {self.spent_s:.1f} s of work on {self.looked} messages, which others need. "
            "Simplify the filter (LIKE and functions on long texts cost most), or name less by it",
        )
