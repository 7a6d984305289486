"""Commands about a whole entity: they refuse a selection, as their sender may mean a part of it (X7)."""

from __future__ import annotations

from typing import Final

from lapse.core.error_code import ErrorCode, Refusal
from lapse.core.shard.untaken_fields import LIMITS, fields_refusal
from lapse.protocol.command import Command

_WHOLE: Final = {"pause": "the whole queue", "resume": "the whole queue", "delete": "the whole entity"}
"""By command that selects nothing: what it is about."""


_UNTAKEN: Final = dict.fromkeys(_WHOLE, LIMITS)


def selection_refusal(command: Command) -> Refusal | None:
    """Return why a command about a whole entity is refused if it selects messages or records; None if it is not."""
    about = _WHOLE.get(command.command)
    if (refusal := fields_refusal(command, _UNTAKEN)) is not None:
        return refusal.refusal
    if about is None or not (command.filter is not None or command.bookmarks or command.keys or command.data):
        return None
    return Refusal(
        ErrorCode.INVALID_ARGUMENT,
        f"{command.command} is about {about}, and takes neither filter, bookmarks, keys nor data; leave them out, or "
        "use purge, expire or sow_delete for a part",
    )
