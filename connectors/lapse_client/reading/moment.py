"""A moment of a message's life, and the record that shows it (D6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from lapse.protocol.bookmark import Bookmark
from lapse.protocol.event import TERMINAL, EventKind

DEAD_LETTER: Final = "dead letter"

END: Final = TERMINAL | {EventKind.DELETED}
"""Events after which a message or its entity is gone."""

Watcher = Callable[[str, int, int], None]
"""Told what is read, how many offsets are done with, and how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One thing that happened to a message.

    Attributes:
        at_ms: when it counts, ms since the epoch.
        entity: the queue or SOW topic; empty for the record itself.
        what: `arrived`, `aborted`, `delivered`, `dead letter`, the event's kind, or `waits`: what it waits for now.
        facts: what is known of it, by name.
        told: bookmark of the record that shows it.
        message: whose life it belongs to: the message itself, or one that it was before or has become (C59).
    """

    at_ms: int
    entity: str
    what: str
    facts: dict[str, Any]
    told: Bookmark
    message: Bookmark


def is_of(found: Bookmark, name: Bookmark) -> bool:
    """Whether a message is the one that is asked for: without a generation, all generations are (C61)."""
    same = (*found[:2], found.log_offset) == (*name[:2], name.log_offset)
    return same and name.generation in (0, found.generation)
