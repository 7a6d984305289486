"""Ending: a queue shard's memory of its last use and of its end (C4, C39, Q18)."""

from __future__ import annotations

from collections.abc import Iterator

from lapse.core.queue.change import Change, ChangeKind
from lapse.core.shard.activity import USED, Used
from lapse.core.shard.retirement import RETIREMENT, Retirement


class Ending:
    """Two facts, each under a key of its own in the journal.

    Attributes:
        retirement: how far the queue's end is; None = in service.
        used: when the shard was last used, as far as that is journaled.
    """

    def __init__(self) -> None:
        self.retirement: Retirement | None = None
        self.used: Used | None = None

    def apply(self, change: Change) -> None:
        """Carry out a change."""
        self.restore(*entry(change))

    def restore(self, kind: bytes, value: bytes | None) -> None:
        """Take over the journal's record of this kind."""
        if kind == RETIREMENT:
            self.retirement = None if value is None else Retirement.decode(value)
        elif kind == USED and value is not None:
            self.used = Used.decode(value)

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """The records of the journal: kind of the key, and value."""
        if self.retirement is not None:
            yield RETIREMENT, self.retirement.encode()
        if self.used is not None:
            yield USED, self.used.encode()


def entry(change: Change) -> tuple[bytes, bytes | None]:
    """Kind of the key, and value, that a change leaves in the journal."""
    if change.kind is ChangeKind.USED:
        return USED, Used(change.until_ms, change.facts["configured"]).encode()
    text = change.facts.get("retirement")
    return RETIREMENT, None if text is None else text.encode()
