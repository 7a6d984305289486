"""What a transfer is to hand over, and what became of it (Q17)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from lapse.protocol.bookmark import BookmarkRange


@dataclass(frozen=True, slots=True)
class Choice:
    """The messages to hand over.

    Attributes:
        bookmarks: these; if empty, all that were published before the transfer began.
        filter: only those of them that match this expression; empty for all.
    """

    bookmarks: tuple[BookmarkRange, ...] = ()
    filter: str = ""


@dataclass(slots=True)
class Outcome:
    """The result of a transfer.

    Attributes:
        transferred: messages that left, and are in the other queue.
        expired: messages whose deadline passed between put and confirm.
        left: messages that stayed, by reason: leased, transferring, unknown, stale, lost, too_large.
        discarded: records there that were put by an earlier attempt, or for messages that did not leave.
        given_up: messages that have left, and whose records the other queue has no longer, as of `cancel`.
        stale: messages that were named as they were before a rewind brought them back (C61).
    """

    transferred: int = 0
    expired: int = 0
    left: Counter[str] = field(default_factory=Counter)
    discarded: int = 0
    given_up: list[BookmarkRange] = field(default_factory=list)
    stale: list[BookmarkRange] = field(default_factory=list)
