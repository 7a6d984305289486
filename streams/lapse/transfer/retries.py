"""Retries: whether a process that follows tries again after an error (Q26, X7)."""

from __future__ import annotations

from typing import Final

from lapse.transfer.copier import NotRead, TakenOver, TransferError
from lapse_client.error import EntityDeleted, LapseError, UnknownEntity
from lapse_client.kafka.fault import LACKS_RIGHT

_GONE_S: Final = 10.0
"""For how long a queue must have been away until the process ends, s: longer than creating it anew takes."""


class Retries:
    """The tries of one process, which decides only from what it is told."""

    def __init__(self) -> None:
        self._begun = False
        self._gone_since_s: float | None = None

    def note_begun(self) -> None:
        """Note that both queues are there and messages can go."""
        self._begun = True
        self._gone_since_s = None

    def is_final(self, error: Exception, now_s: float) -> bool:
        """Return whether another try is useless.

        A right is missing, or a queue: at the start at once, and later if it has been away for a while. Or another
        process does the work.

        Args:
            error: a `LapseError`, a `KafkaException` or a `TransferError`.
            now_s: a monotonic clock, s.
        """
        if isinstance(error, TransferError):
            return isinstance(error, TakenOver) or not (self._begun or isinstance(error, NotRead))
        if not isinstance(error, LapseError):
            return error.args[0].code() in LACKS_RIGHT
        if not self._begun:
            return type(error) in (LapseError, UnknownEntity)
        if not isinstance(error, (EntityDeleted, UnknownEntity)):
            self._gone_since_s = None
            return False
        if self._gone_since_s is None:
            self._gone_since_s = now_s
        return isinstance(error, UnknownEntity) and now_s - self._gone_since_s >= _GONE_S
