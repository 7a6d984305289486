"""Ending: the journaled last use and retirement of a queue shard (C4, C39, Q18)."""

from __future__ import annotations

from collections.abc import Iterator

from lapse.core.queue.change import Change, ChangeKind
from lapse.core.shard.activity import USED, LastUse
from lapse.core.shard.retirement import RETIREMENT, Retirement


class Ending:
    """The last use and the retirement of a shard, each under its own key in the journal.

    Attributes:
        retirement: the state of the queue's retirement; None = in service.
        used: the journaled last use; None = none yet.
    """

    def __init__(self) -> None:
        self.retirement: Retirement | None = None
        self.used: LastUse | None = None

    def apply(self, change: Change) -> None:
        """Carry out a change."""
        self.restore(*entry(change))

    def restore(self, kind: bytes, value: bytes | None) -> None:
        """Set the value that the journal holds under a kind of key."""
        if kind == RETIREMENT:
            self.retirement = None if value is None else Retirement.decode(value)
        elif kind == USED and value is not None:
            self.used = LastUse.decode(value)

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the journal's records as kind of key and value."""
        if self.retirement is not None:
            yield RETIREMENT, self.retirement.encode()
        if self.used is not None:
            yield USED, self.used.encode()


def entry(change: Change) -> tuple[bytes, bytes | None]:
    """Return the kind of key, and the value, that a change leaves in the journal."""
    if change.kind is ChangeKind.USED:
        return USED, LastUse(change.until_ms, change.facts["configured"]).encode()
    text = change.facts.get("retirement")
    return RETIREMENT, None if text is None else text.encode()
