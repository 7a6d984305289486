"""Limits how many messages a shard handles in one turn of the event loop, so that others need not wait (C60).

A plain message costs half a microsecond of CPU, a scheduled one twenty times as much.
"""

from __future__ import annotations

from typing import Final

_FIRST: Final = 2_000
_LEAST: Final = 100
_SHORT_S: Final = 0.004
_LONG_S: Final = 0.008
STEP_S: Final = 0.02
"""CPU that a step may spend on taking in messages, s. Its journal and events need about as much again."""


class TurnLimit:
    """Adjusts the number of messages per turn to the CPU time that they take.

    Attributes:
        at_once: how many messages may be taken in per turn.
    """

    def __init__(self) -> None:
        self.at_once = _FIRST

    def note_time(self, messages: int, cpu_s: float) -> None:
        """Adjust the number after some messages took `cpu_s` seconds of CPU."""
        if cpu_s > _LONG_S:
            self.at_once = max(_LEAST, int(messages * _SHORT_S / cpu_s))
        elif cpu_s < _SHORT_S and messages >= self.at_once:
            self.at_once *= 2
