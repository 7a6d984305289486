"""The answer to the command `subscriptions`, which lists the open subscriptions of a shard (Q15)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from lapse.core.error_code import ErrorCode
from lapse.core.shard.refused import CommandRefused
from lapse.protocol.answer import OpenSubscription
from lapse.protocol.command import MOST_SUBSCRIPTIONS, Command

SHOWN_FILTER: Final = 200
"""The greatest number of characters of a filter in an answer, so that it fits into a record."""


def subscriptions_fields(
    command: Command, subscriptions: Iterable[OpenSubscription], count: int, row_filter: str | None
) -> dict[str, Any]:
    """Return the fields of the answer to `subscriptions`.

    Args:
        command: the command.
        subscriptions: the open subscriptions, in the order in which they began.
        count: number of open subscriptions.
        row_filter: the user's row filter; a user with one may not see the names and filters of others (X4).

    Raises:
        CommandRefused: the user has a row filter, or the command selects messages or records.
    """
    if row_filter is not None:
        raise CommandRefused(
            "subscriptions: this user may see a part of the messages only, and the list names filters of others",
            ErrorCode.FORBIDDEN,
        )
    if command.filter is not None or command.bookmarks or command.keys or command.data:
        raise CommandRefused("subscriptions takes top_n and skip, and neither filter, bookmarks, keys nor data")
    skip, most = min(command.skip or 0, count), MOST_SUBSCRIPTIONS if command.top_n is None else command.top_n
    shown = tuple(islice(subscriptions, skip, skip + min(most, MOST_SUBSCRIPTIONS)))
    return {"subscriptions": shown, "counts": {"subscriptions": count}}
