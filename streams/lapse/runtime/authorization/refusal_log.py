"""Logs refused commands: a few lines per user and minute, and the number of the others (X7).

The limit is needed because anybody who can write to a commands topic can cause refusals at any rate.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Final

logger = logging.getLogger(__name__)

_LINES: Final = 10
_PERIOD_S: Final = 60.0
_SLACK_S: Final = 0.01
_MOST_CHARACTERS: Final = 500
_MOST_USERS: Final = 1_000
"""Further users are counted together as one. Names come from outside, so their number must be bounded."""


@dataclass(slots=True)
class _Period:
    began_s: float
    logged: int = 0
    untold: int = 0


class RefusalLog:
    """Logs the refusals of one shard.

    Args:
        shard: entity and partition, for log messages.
    """

    def __init__(self, shard: str) -> None:
        self._shard = shard
        self._periods: dict[str, _Period] = {}
        self._next_s = 0.0

    def log(self, user: str, offset: int, why: str) -> None:
        """Log a refusal, or only count it if its user has had enough lines in this minute.

        Args:
            user: the user that the command names as its sender, empty if none.
            offset: offset of the command on the commands topic.
            why: the reason of the refusal.
        """
        self.sum_up()
        if user not in self._periods and len(self._periods) >= _MOST_USERS:
            user = "others"
        period = self._periods.setdefault(user, _Period(time.monotonic()))
        if period.logged >= _LINES:
            period.untold += 1
            if period.untold == 1:
                self._sum_up_later(period)
            return
        period.logged += 1
        cut = why if len(why) <= _MOST_CHARACTERS else f"{why[:_MOST_CHARACTERS]}…"
        more = "; further ones are only counted for a minute" if period.logged == _LINES else ""
        logger.warning("%s, offset %d: command%s refused: %s%s", self._shard, offset, _of(user), cut, more)

    def _sum_up_later(self, period: _Period) -> None:
        """Log the number once the minute is over, also if nothing happens in the shard until then."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # without an event loop, as in a replay, the next refusal tells it
        loop.call_later(max(0.0, period.began_s + _PERIOD_S - time.monotonic()) + _SLACK_S, self._sum_up_now)

    def _sum_up_now(self) -> None:
        self._next_s = 0.0
        self.sum_up()

    def sum_up(self) -> None:
        """Log how many refusals were only counted, for each user whose minute is over."""
        now_s = time.monotonic()
        if now_s < self._next_s or not self._periods:
            return
        self._next_s = now_s + 1
        for user, period in list(self._periods.items()):
            if now_s - period.began_s < _PERIOD_S:
                continue
            del self._periods[user]
            if period.untold:
                logger.warning(
                    "%s: %d more commands%s were refused within %.0f s",
                    self._shard,
                    period.untold,
                    _of(user),
                    now_s - period.began_s,
                )


def _of(user: str) -> str:
    return f" of {user[:64]!r}" if user else ""
