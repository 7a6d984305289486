"""A moment of a message's life, with the record that shows it (D6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from lapse.protocol.bookmark import Bookmark
from lapse.protocol.event import TERMINAL, EventKind

ARRIVED: Final = "arrived"
ABORTED: Final = "aborted"
DELIVERED: Final = "delivered"
DEAD_LETTER: Final = "dead letter"

END: Final = TERMINAL | {EventKind.DELETED}
"""Events after which a message or its entity is gone."""

ENDS_BEFORE_DELIVERY: Final = frozenset({EventKind.DELIVERED_AT_MOST_ONCE, EventKind.BARRIER_RELEASED})
"""Ends that are written before the delivery of the message (Q6, C35)."""

Watcher = Callable[[str, int, int], None]
"""Called with the kind of topics being read, the number of offsets read, and of all offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One thing that happened to a message.

    Attributes:
        at_ms: when it happened, ms since the epoch; -1 = the record has no timestamp.
        entity: the queue or SOW topic; empty for the record itself.
        what: `arrived`, `aborted`, `delivered`, `dead letter`, an event's kind, a kind of `Step`, or `waits` with
            what the message waits for now.
        facts: further facts by name.
        shown_by: bookmark of the record that shows the moment.
        message: bookmark of the message itself, or of one of its predecessors or successors (C59).
    """

    at_ms: int
    entity: str
    what: str
    facts: dict[str, Any]
    shown_by: Bookmark
    message: Bookmark


def is_about(found: Bookmark, name: Bookmark) -> bool:
    """Return whether a message is the wanted one. A wanted bookmark without a generation means all of them (C61)."""
    same = (*found[:2], found.log_offset) == (*name[:2], name.log_offset)
    return same and name.generation in (0, found.generation)
