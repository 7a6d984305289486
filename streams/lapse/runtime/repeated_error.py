"""Logs an error that is repeated, such as a missing right of a worker, once a minute."""

from __future__ import annotations

import logging
import time
from typing import Final

_REPEAT_S: Final = 60.0


class RepeatedError:
    """Logs what is tried again, and why: at once if the reason is new, and then once a minute.

    Args:
        logger: the logger, which gets warnings.
        what: what could not be done, and is tried again.
    """

    def __init__(self, logger: logging.Logger, what: str) -> None:
        self._logger = logger
        self._what = what
        self._why = ""
        self._logged_s = 0.0
        self._silent = 0

    def note(self, error: BaseException, now_s: float | None = None) -> None:
        """Note another failure.

        Args:
            error: the error.
            now_s: the instant on the monotonic clock, s; None for now.
        """
        now_s = time.monotonic() if now_s is None else now_s
        why = str(error) or type(error).__name__
        if why == self._why and now_s - self._logged_s < _REPEAT_S:
            self._silent += 1
            return
        more = f" ({self._silent} times since this was logged)" if self._silent and why == self._why else ""
        self._logger.warning("%s: %s%s", self._what, why, more)
        self._why, self._logged_s, self._silent = why, now_s, 0
