"""Row filters: they limit a command to the messages that its user may see and settle (X4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lapse.core.entitlement import combine_filters
from lapse.core.error_code import ErrorCode, Refusal
from lapse.core.expression import ExpressionError, compile_filter
from lapse.protocol.command import Command

_ABOUT_ALL: Final = frozenset({"subscribe", "sow", "depth", "rewind"})
"""Commands that concern all messages unless they name a filter."""


def chooses_spare_messages(command: Command) -> bool:
    """Return whether a transfer selects spare messages by itself, all or those that match its filter."""
    return command.command == "transfer" and command.spare


def peeks_by_bookmarks(command: Command) -> bool:
    """Return whether a command is a peek that names messages by bookmarks."""
    return command.command == "sow" and bool(command.bookmarks)


def with_row_filter(command: Command, row_filter: str | None) -> Command:
    """Return a command whose filter is narrowed by its user's row filter.

    A command without a filter gets the row filter if it concerns all messages, else it stays as it is (X4).

    Raises:
        ExpressionError: the command's own filter is invalid.
    """
    about_all = command.command in _ABOUT_ALL and not peeks_by_bookmarks(command)
    if row_filter is None or not (command.filter or about_all or chooses_spare_messages(command)):
        return command
    return replace(command, filter=combine_filters(command.filter, row_filter, compile_filter))


def invalid_filter_refusal(command: Command, error: ExpressionError) -> Refusal:
    """Return the refusal of a command with an invalid filter."""
    return Refusal(ErrorCode.INVALID_EXPRESSION, f"{command.command}: filter: {error}")
