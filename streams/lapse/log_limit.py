"""A limit on a log: the same error is logged once in a minute, however often something is tried again."""

from __future__ import annotations

import re
from typing import Final

_EACH_S: Final = 60.0
_DURATION: Final = re.compile(r" \(after \d+ ?ms[^()]*\)")
"""The parts of an error that librdkafka adds, or that differ at every try."""


class LogLimit:
    """Remembers which errors were logged within the last minute."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}

    def allows(self, error: object, now_s: float) -> bool:
        """Return whether to log an error, and remember it if so.

        Args:
            error: the error, or its text.
            now_s: a monotonic clock, s.
        """
        text = _DURATION.sub("", str(error))
        self._logged = {one: at_s for one, at_s in self._logged.items() if now_s - at_s < _EACH_S}
        if text in self._logged:
            return False
        self._logged[text] = now_s
        return True
