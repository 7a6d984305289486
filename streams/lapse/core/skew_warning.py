"""Skew warning: when a difference between two clocks is reported (L13, C74)."""

from __future__ import annotations

from typing import Final

AGAIN_S: Final = 3_600.0
"""How often a difference is reported while it lasts, s. A log that was rotated must not hide it for ever."""

_MUCH_GREATER: Final = 2.0


class SkewWarning:
    """Tells a difference when it begins to exceed a limit, when it has doubled since, and once an hour while it lasts.

    Args:
        most_ms: the limit, ms.
    """

    def __init__(self, most_ms: int) -> None:
        self._most_ms = most_ms
        self._last: tuple[float, float] | None = None

    def is_due(self, skew_ms: float, now_s: float) -> bool:
        """Return whether a difference is to be reported now. The caller reports it then.

        Args:
            skew_ms: the difference, ms.
            now_s: the present instant of a monotonic clock, s.
        """
        size_ms = abs(skew_ms)
        if size_ms <= self._most_ms:
            self._last = None
            return False
        if self._last is not None:
            last_at_s, last_ms = self._last
            if now_s - last_at_s < AGAIN_S and size_ms < _MUCH_GREATER * last_ms:
                return False
        self._last = now_s, size_ms
        return True
