"""The pace of a shard: how many messages it handles at once, so that others never wait long (C60).

A plain message costs a shard half a microsecond, one that is scheduled twenty times as much.
"""

from __future__ import annotations

from typing import Final

_FIRST: Final = 2_000
_LEAST: Final = 100
_SHORT_S: Final = 0.004
_LONG_S: Final = 0.008
STEP_S: Final = 0.02
"""How much CPU a step may spend on taking in: its journal and its events take about as long again."""


class Pace:
    """Learns how many messages may be taken in without a turn for others.

    Attributes:
        at_once: so many.
    """

    def __init__(self) -> None:
        self.at_once = _FIRST

    def took(self, messages: int, cpu_s: float) -> None:
        """Learn what some messages have cost, s of CPU."""
        if cpu_s > _LONG_S:
            self.at_once = max(_LEAST, int(messages * _SHORT_S / cpu_s))
        elif cpu_s < _SHORT_S and messages >= self.at_once:
            self.at_once *= 2
