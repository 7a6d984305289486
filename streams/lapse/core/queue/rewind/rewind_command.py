"""Rewind commands: where a rewind begins, and which commands are refused (Q22)."""

from __future__ import annotations

from typing import Final, Literal

from lapse.core.error_code import ErrorCode, Refusal
from lapse.core.expression import ExpressionError, compile_filter
from lapse.core.queue.rewind.rewinding import REWOUND, UNREAD
from lapse.core.queue.rewind.rewinds import Rewind
from lapse.core.queue.shard import QueueShard
from lapse.core.shard.refused import CommandRefused
from lapse.core.shard.untaken_fields import UNTAKEN_BY_QUEUES, fields_refusal
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.command import Command

Point = Literal["beginning"] | int | tuple[Bookmark, ...]
"""The point from which messages come back. An int is an instant, ms since the epoch."""

_EXPECTED: Final = "expected beginning, an instant in ms since the epoch, or a bookmark such as orders:0:1200"
_MOST_BOOKMARKS: Final = 1_000
_MOST_DIGITS: Final = 18


def parse_rewind_point(to: str) -> Point:
    """Parse the point from which messages come back. Commas separate several bookmarks, one for each partition.

    Raises:
        ValueError: the text is no such point; the message says what is expected.
    """
    if to == "beginning":
        return "beginning"
    if to.isascii() and to.isdigit() and len(to) <= _MOST_DIGITS:
        return int(to)
    try:
        bookmarks = [Bookmark.parse(text) for text in to.split(",", _MOST_BOOKMARKS)]
    except ValueError as error:
        raise ValueError(f"{_EXPECTED}, not {to[:60]!r}") from error
    return tuple(bookmark._replace(offset=bookmark.log_offset) for bookmark in bookmarks)


def rewind_refusal(command: Command, shard: QueueShard, at_ms: int) -> CommandRefused | None:
    """Return the refusal of a rewind command; None if it can be carried out.

    Args:
        command: the command.
        shard: the shard that it was sent to.
        at_ms: the command's instant, ms since the epoch.
    """
    if not command.id:
        return CommandRefused("rewind: field id is required: by it a rewind is resumed, and never done twice")
    if (refusal := fields_refusal(command, UNTAKEN_BY_QUEUES)) is not None:
        return refusal
    if command.bookmarks or command.keys:
        return CommandRefused("rewind takes a filter, neither bookmarks nor keys; field to says from where on")
    try:
        point = parse_rewind_point(command.to)
    except ValueError as error:
        return CommandRefused(f"rewind: field to: {error}")
    if isinstance(point, int) and point > at_ms:
        return CommandRefused(
            f"rewind: field to: {point} is {point - at_ms} ms after the command, {at_ms}: nothing has arrived since. "
            "Name an earlier instant, or a bookmark if publishers stamp records ahead of the clock"
        )
    for bookmark in point if isinstance(point, tuple) else ():
        there = [one for one in shard.state.sources.current() if one.is_read and one.topic == bookmark.topic]
        most = max(shard.settings.shards, *(source.partition + 1 for source in there)) if there else 0
        if bookmark.partition >= most:
            return CommandRefused(f"rewind: field to: {bookmark} is of none of the queue's partitions")
    try:
        compile_filter(command.filter or "TRUE")
    except ExpressionError as error:
        return CommandRefused(f"rewind: filter: {error}", ErrorCode.INVALID_EXPRESSION)
    return None


def stopped(rewind: Rewind) -> Refusal | None:
    """Return the refusal of a rewind that was stopped because its filter costs too much; None if it was not (X7)."""
    if UNREAD not in rewind.counts:
        return None
    back, unread = rewind.counts[REWOUND], rewind.counts[UNREAD]
    return Refusal(
        ErrorCode.TOO_COSTLY,
        f"rewind: stopped, because its filter takes more work than others can spare. {back:,} messages matched and "
        f"are back, unless it only counted. {unread:,} records were not looked at. Simplify the filter (LIKE and "
        "functions on long texts cost most), or begin at a later point",
    )
