"""Repetition: which commands clients repeat after a take-over, because their answers may be lost (C55)."""

from __future__ import annotations

from typing import Final

from lapse.protocol.command import Command

_REPEATABLE: Final = frozenset({"depth", "sow", "subscriptions", "pause", "resume", "rewind"})
"""Commands that change nothing, at least not the second time. A rewind is recognized by its id."""


def bears_repetition(command: Command) -> bool:
    """Return whether a command has the same effect if it is carried out twice.

    A message that was acknowledged or expired by bookmark does not return. A cancelled message does, so the command
    must name the delivery. The same holds for renewals.
    """
    if command.command in _REPEATABLE:
        return True
    if not command.bookmarks:
        return False
    if command.command in ("acknowledge", "expire"):
        return True
    return command.command in ("cancel", "renew") and all("#" in bookmarks for bookmarks in command.bookmarks)
