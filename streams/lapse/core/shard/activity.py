"""Activity: when an entity was last used, to find out whether a temporary one is idle (Q18, C39).

Arrivals, commands and a changed configuration are use. So are a scheduled or delayed message that becomes available,
and every removal (C50). An entity is never idle while something protects it: an open subscription, a scheduled or
delayed message or update, or an unfinished transfer (C77). Use is journaled only from time to time, so after a restart
the last use counts as a little later than it was, never as earlier.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final, Generic, Protocol, TypeVar

from lapse.core.lifetime import NEVER
from lapse.core.shard.agreement import Agreement, AgreementStep

USED: Final = b"u"
"""First byte of the journal key of a shard's last use, for queues and SOW topics."""

_PARTS: Final = 60
"""Use is journaled at most this many times within the idle time."""


@dataclass(frozen=True, slots=True)
class LastUse:
    """The journaled last use of a temporary entity.

    Attributes:
        at_ms: instant of the use, ms since the epoch.
        configured: fingerprint of the configuration at that time.
    """

    at_ms: int
    configured: str

    def encode(self) -> bytes:
        """Return the journal's bytes."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> LastUse:
        """Read the journal's bytes."""
        return cls(**json.loads(data))


S = TypeVar("S", bound=AgreementStep, contravariant=True)
"""The shard's kind of step."""


class UsableShard(Protocol[S]):
    """The interface of a shard that its activity uses."""

    @property
    def last_use(self) -> LastUse | None:
        """The journaled last use; None = none yet."""

    def journal_use(self, used: LastUse, step: S) -> None:
        """Journal a use."""

    def is_protected(self) -> bool:
        """Return whether something, such as a subscription, keeps the shard from being idle."""


class Activity(Generic[S]):
    """The last use of one shard.

    Args:
        idle_ms: time without use after which the entity deletes itself, ms; 0 = never.
        configured: fingerprint of the configuration, whose change counts as use.
        usable: the shard.
    """

    def __init__(self, idle_ms: int, configured: str, usable: UsableShard[S]) -> None:
        self._idle_ms = idle_ms
        self._configured = configured
        self._usable = usable
        self._slack_ms = idle_ms // _PARTS
        self._last_ms = 0
        self.restore()

    @property
    def is_temporary(self) -> bool:
        """Whether the entity is temporary."""
        return self._idle_ms > 0

    @property
    def idle_ms(self) -> int:
        """Time without use after which the shard counts as idle, ms; 0 = it never does."""
        return self._idle_ms

    @property
    def last_ms(self) -> int:
        """The last use of the shard, ms since the epoch; after a restart it may be a little too late."""
        return self._last_ms

    def restore(self) -> None:
        """Set the last use from the journal."""
        journaled = self._usable.last_use
        # A later use that was not journaled is at most this much later.
        self._last_ms = 0 if journaled is None else journaled.at_ms + self._slack_ms

    def begin(self, now_ms: int, step: S, agreement: Agreement[S]) -> None:
        """Begin an epoch. A new shard, or a changed configuration, counts as used now.

        So it vetoes an end for idleness that is not decided yet. A configuration may also say that the entity is not
        temporary any more.
        """
        known = self._usable.last_use
        if not self.is_temporary:
            agreement.note_use(now_ms, step)
        elif known is None or known.configured != self._configured:
            self._last_ms = max(self._last_ms, now_ms)
            self._journal(step)
            agreement.note_use(now_ms, step)

    def note_use(self, now_ms: int, step: S, agreement: Agreement[S]) -> None:
        """Note a use of the shard, which postpones the end of a temporary entity."""
        if self.is_temporary:
            self._note(now_ms, step)
            agreement.note_use(now_ms, step)

    def set_back(self, now_ms: int) -> None:
        """Let a use in the future count as now, because the broker's clock was set back (C3)."""
        self._last_ms = min(self._last_ms, now_ms)

    def idle_at_ms(self) -> int:
        """Return when the shard will be idle unless it is used, ms since the epoch; `NEVER` if it is protected."""
        if not self.is_temporary or self._usable.is_protected():
            return NEVER
        return self._last_ms + self._idle_ms

    def _note(self, now_ms: int, step: S) -> None:
        if now_ms <= self._last_ms:
            return
        self._last_ms = now_ms
        known = self._usable.last_use
        if known is None or now_ms - known.at_ms >= self._slack_ms:
            self._journal(step)

    def _journal(self, step: S) -> None:
        self._usable.journal_use(LastUse(self._last_ms, self._configured), step)
