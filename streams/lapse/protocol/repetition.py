"""Which commands clients send again after a take-over, because it may have swallowed their answers (C55)."""

from __future__ import annotations

from typing import Final

from lapse.protocol.command import Command

_REPEATABLE: Final = frozenset({"depth", "sow", "subscriptions", "pause", "resume", "rewind"})
"""Commands that change nothing, or nothing the second time, and one whose id says that it is the same."""


def bears_repetition(command: Command) -> bool:
    """Whether a command does no more when it is carried out twice.

    What is acknowledged or expired by bookmark never comes back. A cancelled message does, so its delivery has to be
    named.
    """
    if command.command in _REPEATABLE:
        return True
    if not command.bookmarks:
        return False
    if command.command in ("acknowledge", "expire"):
        return True
    return command.command in ("cancel", "renew") and all("#" in bookmarks for bookmarks in command.bookmarks)
