"""Activity: when an entity was last used, so that a temporary one is known to be idle (Q18, C39).

Used is an entity by what arrives, by every command, and by a new configuration. A scheduled or delayed message that
becomes available is use, and so is every removal (C50). The entity is not idle at all while something protects it: a
subscription is open, a message or an update is scheduled or delayed, or what was handed over is unfinished (C77). The
journal learns of use now and then only: after a restart the entity counts as used a little later than it was, never
earlier.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final, Generic, Protocol, TypeVar

from lapse.core.lifetime import NEVER
from lapse.core.shard.agreement import Agreed, Agreement

USED: Final = b"u"
"""First byte of the key under which a shard's journal, of a queue or a SOW topic, holds when it was last used."""

_PARTS: Final = 60
"""Use is journaled once in so many parts of the idle time."""


@dataclass(frozen=True, slots=True)
class Used:
    """What the journal knows of a temporary entity's use.

    Attributes:
        at_ms: when, ms since the epoch.
        configured: by which configuration.
    """

    at_ms: int
    configured: str

    def encode(self) -> bytes:
        """Write it."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Used:
        """Read it back."""
        return cls(**json.loads(data))


S = TypeVar("S", bound=Agreed, contravariant=True)
"""A step of the shard."""


class UsableShard(Protocol[S]):
    """What the activity asks of the shard that it is about."""

    @property
    def used(self) -> Used | None:
        """What the journal says; None = nothing yet."""

    def keep_used(self, used: Used, step: S) -> None:
        """Journal it."""

    def is_protected(self) -> bool:
        """Whether something is there that keeps the shard from being idle, for as long as it is there."""


class Activity(Generic[S]):
    """When one shard was last used.

    Args:
        idle_ms: an entity that nobody uses for so long deletes itself, ms; 0 = never.
        configured: a mark of the configuration; another one is use.
        usable: the shard.
    """

    def __init__(self, idle_ms: int, configured: str, usable: UsableShard[S]) -> None:
        self._idle_ms = idle_ms
        self._configured = configured
        self._usable = usable
        self._slack_ms = idle_ms // _PARTS
        self._last_ms = 0
        self.restored()

    @property
    def watched(self) -> bool:
        """Whether the entity is a temporary one."""
        return self._idle_ms > 0

    @property
    def idle_ms(self) -> int:
        """How long it takes to count as idle, ms; 0 = for ever."""
        return self._idle_ms

    @property
    def last_ms(self) -> int:
        """When the shard was last used, ms since the epoch; after a restart perhaps a little later."""
        return self._last_ms

    def restored(self) -> None:
        """Take over what the journal says."""
        journaled = self._usable.used
        # What was not journaled any more may have been as late as this.
        self._last_ms = 0 if journaled is None else journaled.at_ms + self._slack_ms

    def begin(self, now_ms: int, step: S) -> None:
        """Begin an epoch: a shard that is new, or configured anew, is used now."""
        if not self.watched:
            return
        known = self._usable.used
        if known is None or known.configured != self._configured:
            self._last_ms = max(self._last_ms, now_ms)
            self._journal(step)

    def use(self, now_ms: int, step: S, agreement: Agreement[S]) -> None:
        """The shard is used, which puts off the end of a temporary entity."""
        if self.watched:
            self._note(now_ms, step)
            agreement.used(now_ms, step)

    def idle_at_ms(self) -> int:
        """From when on the shard is idle if nothing happens, ms since the epoch; `NEVER` if it cannot be."""
        if not self.watched or self._usable.is_protected():
            return NEVER
        return self._last_ms + self._idle_ms

    def _note(self, now_ms: int, step: S) -> None:
        if now_ms <= self._last_ms:
            return
        self._last_ms = now_ms
        known = self._usable.used
        if known is None or now_ms - known.at_ms >= self._slack_ms:
            self._journal(step)

    def _journal(self, step: S) -> None:
        self._usable.keep_used(Used(self._last_ms, self._configured), step)
