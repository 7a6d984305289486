"""Sweeps: commands about all messages of a shard, such as a purge; what arrives behind one has to stay (C1).

A worker that is behind finds a sweep in the log together with messages that arrived before it, and later. It waits for
the former, as far as they are here, and the latter wait for it. Otherwise messages are taken in before commands, so
that no command comes before what it names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from lapse.core.lifetime import NEVER
from lapse.protocol import command as commands

_SETTLEMENTS: Final = frozenset({"acknowledge", "cancel", "expire", "renew"})
_PURGE: Final = b"purge"


class Sweeps:
    """The sweeps among the commands that wait in an inbox.

    Args:
        catch_up: offset behind the commands that were in the log at take-over.
    """

    def __init__(self, catch_up: int) -> None:
        self._catch_up = catch_up
        self._latest_ms = -1
        self._waiting: deque[tuple[int, int]] = deque()
        """Offset and instant of each: no earlier than those of the commands before it, whatever clock stamped them."""

    def note(self, records: Iterable[Any]) -> None:
        """Know commands that have come. Once all is read that the log held, only purges are looked for: it is cheap."""
        for record in records:
            value = record.value
            if record.timestamp > self._latest_ms:
                self._latest_ms = record.timestamp
            if value and (record.offset < self._catch_up or _PURGE in value) and _sweeps(value):
                self._waiting.append((record.offset, self._latest_ms))

    def is_next(self, offset: int) -> bool:
        """Whether a command that was not carried out yet is the sweep whose turn it is."""
        while self._waiting and self._waiting[0][0] < offset:
            self._waiting.popleft()
        return bool(self._waiting) and self._waiting[0][0] == offset

    def until_ms(self, received: int, processed: int) -> int:
        """Up to which instant messages may be taken in now, ms since the epoch; `NEVER` = all, -1 = none.

        Args:
            received: next offset of the commands that is not here yet.
            processed: next offset of the commands that was not carried out yet.
        """
        if received < self._catch_up:
            return -1  # a sweep may be among those that are still to come
        self.is_next(processed)
        return self._waiting[0][1] if self._waiting else NEVER


def _sweeps(value: bytes) -> bool:
    """Whether a command is about all messages, or all that match a filter."""
    if len(value) > commands.MOST_BYTES:
        return False
    try:
        name, by_filter = commands.outline(value)
    except ValueError:  # what is wrong with it is said where it is carried out
        return False
    return name == "purge" or (bool(by_filter) and isinstance(name, str) and name in _SETTLEMENTS)


def earlier(records: Sequence[Any], until_ms: int) -> int:
    """How many records of a batch may be taken: those before the first one behind an instant."""
    return next((at for at, record in enumerate(records) if record.timestamp > until_ms), len(records))
