"""Sweeps: commands about all messages of a shard, such as a purge or a rewind. They leave later ones alone (C1, C63).

A worker that is behind finds a sweep in the log together with messages from before and after it. The sweep waits for
the earlier messages that are here, and the later ones wait for the sweep. In all other cases messages are taken in
before commands, so that no command comes before the messages that it names. A later message that was taken in earlier
than the sweep was read is beyond the sweep's horizon (`runtime.queue.sweep_horizon`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from lapse.core.lifetime import NEVER
from lapse.core.queue.settlement.settlement import SETTLEMENTS
from lapse.protocol import command as commands

_WHOLE: Final = ("purge", "rewind")
"""Commands about all messages, with and without a filter."""

_PURGE, _REWIND = (name.encode() for name in _WHOLE)


class Sweeps:
    """The sweeps among the commands that wait in an inbox.

    Args:
        catch_up: offset behind the commands that were in the log at take-over.
    """

    def __init__(self, catch_up: int) -> None:
        self._catch_up = catch_up
        self._latest_ms = -1
        self._waiting: deque[tuple[int, int]] = deque()
        """Offset and instant of each sweep. Instants never decrease, whatever clock stamped the commands."""

    def note(self, records: Iterable[Any]) -> None:
        """Look for sweeps among received commands. After catching up, look for purges and rewinds only.

        That is cheap.
        """
        for record in records:
            value = record.value
            if record.timestamp > self._latest_ms:
                self._latest_ms = record.timestamp
            if not value:
                continue
            if (record.offset < self._catch_up or _PURGE in value or _REWIND in value) and sweeps(value):
                self._waiting.append((record.offset, self._latest_ms))

    def is_next(self, offset: int) -> bool:
        """Return whether the command at an offset is the next sweep."""
        while self._waiting and self._waiting[0][0] < offset:
            self._waiting.popleft()
        return bool(self._waiting) and self._waiting[0][0] == offset

    def until_ms(self, received: int, processed: int) -> int:
        """Return the instant up to which messages may be taken in, ms since the epoch; `NEVER` for all.

        While not all is received that was in the log, a sweep may follow. It counts as of no earlier instant than any
        command before it.

        Args:
            received: next offset of the commands that was not received yet.
            processed: next offset of the commands that was not carried out yet.
        """
        self.is_next(processed)
        if self._waiting:
            return self._waiting[0][1]
        return self._latest_ms if received < self._catch_up else NEVER

    @property
    def any(self) -> bool:
        """Whether a sweep waits, as far as is known."""
        return bool(self._waiting)


def sweeps(value: bytes | None) -> bool:
    """Return whether a command is about all messages, or about all that match a filter."""
    if not value or len(value) > commands.MOST_BYTES:
        return False
    try:
        name, by_filter = commands.decode_name_and_filter(value)
    except ValueError:  # the error is reported when it is carried out
        return False
    return name in _WHOLE or (bool(by_filter) and isinstance(name, str) and name in SETTLEMENTS)


def earlier(records: Sequence[Any], until_ms: int) -> int:
    """Return how many records of a batch may be taken: those before the first one behind an instant."""
    return next((at for at, record in enumerate(records) if record.timestamp > until_ms), len(records))
