"""The row filter of a command's user: the messages that they may see and settle (X4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lapse.core.entitlement import narrowed
from lapse.core.error_code import ErrorCode, Refusal
from lapse.core.expression import ExpressionError, compile_filter
from lapse.protocol.command import Command

_ABOUT_ALL: Final = frozenset({"subscribe", "sow", "depth", "rewind"})
"""Commands that are about all messages, unless they name a filter."""


def finds_spare(command: Command) -> bool:
    """Whether a transfer selects spare messages by itself, or with a filter those that match it."""
    return command.command == "transfer" and command.spare


def peeks_at_some(command: Command) -> bool:
    """Whether a peek names messages by their bookmarks."""
    return command.command == "sow" and bool(command.bookmarks)


def with_row_filter(command: Command, row_filter: str | None) -> Command:
    """A command with what its user may see at most in its filter, where it has one or is about all messages (X4).

    Raises:
        ExpressionError: its own filter is none.
    """
    about_all = command.command in _ABOUT_ALL and not peeks_at_some(command)
    if row_filter is None or not (command.filter or about_all or finds_spare(command)):
        return command
    return replace(command, filter=narrowed(command.filter, row_filter, compile_filter))


def no_filter(command: Command, error: ExpressionError) -> Refusal:
    """Why a command is refused whose filter cannot be read."""
    return Refusal(ErrorCode.INVALID_EXPRESSION, f"{command.command}: filter: {error}")
