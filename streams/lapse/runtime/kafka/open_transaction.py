"""Notices that a reader waits for the end of a transaction, because Kafka hides what is behind an open one."""

from __future__ import annotations

import logging
from typing import Final

logger = logging.getLogger(__name__)

_PATIENCE_S: Final = 10.0
"""How long a transaction may be open before that is logged, s. Most end within milliseconds."""


class OpenTransaction:
    """Logs once that a transaction hides records of a topic, and once that it has ended.

    Args:
        topic: the topic, for the log.
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._since: tuple[int, float] | None = None
        self._is_logged = False

    def look(self, stable: int | None, end: int | None, now_s: float) -> None:
        """Note the last answer of the broker.

        Args:
            stable: the offset up to which records can be read; None if unknown.
            end: the offset behind the last record; None if unknown.
            now_s: the instant on the monotonic clock, s.
        """
        if stable is None or end is None:
            return
        if stable >= end:
            if self._is_logged:
                logger.info("%s: the open transaction has ended, and reading goes on", self._topic)
            self._since, self._is_logged = None, False
        elif self._since is None or self._since[0] != stable:
            self._since = stable, now_s
        elif not self._is_logged and now_s - self._since[1] >= _PATIENCE_S:
            self._is_logged = True
            logger.warning(
                "%s: a transaction that begins at offset %d is neither committed nor aborted. What is behind it is "
                "read as soon as it ends; `lapse doctor` says what to do if it does not",
                self._topic,
                stable,
            )
