"""Reasons: why a message left, the closed list of L14."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

UNCONFIRMED: Final = "put here by a transfer that was not confirmed"
"""The detail for the removal of an unconfirmed record (C84), whose message is or was at the other deployment."""


def unconfirmed(fault: str = "") -> str:
    """Return the detail for the removal of an unconfirmed record. `fault` is what else is wrong with it."""
    return f"{UNCONFIRMED}; {fault}" if fault else UNCONFIRMED


def is_unconfirmed(detail: str) -> bool:
    """Return whether the detail of a removal is that of an unconfirmed record (C84)."""
    return detail == UNCONFIRMED or detail.startswith(f"{UNCONFIRMED}; ")


class Reason(StrEnum):
    """A reason for a removal. A removal has one or more, in this order (L14, C22)."""

    TIME_LIMIT = "time_limit"
    FORCED_EXPIRE = "forced_expire"
    MAX_DELIVERIES = "max_deliveries"
    MAX_CANCELS = "max_cancels"
    INVALID_LIFETIME = "invalid_lifetime"
    UNDECODABLE = "undecodable"
    PURGED = "purged"
    AUTO_DELETED = "auto_deleted"
    WITHDRAWN = "withdrawn"
    LOG_TRUNCATED = "log_truncated"


_ORDER = {reason: place for place, reason in enumerate(Reason)}

QUEUE_DEAD_LETTER_REASONS = frozenset(Reason) - {Reason.PURGED, Reason.AUTO_DELETED, Reason.WITHDRAWN}
"""Reasons for which a queue writes a dead letter unless configured otherwise (C25)."""

SOW_DEAD_LETTER_REASONS = frozenset({Reason.INVALID_LIFETIME, Reason.UNDECODABLE})
"""Reasons for which a SOW topic writes a dead letter unless configured otherwise (C25)."""


def in_order(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """Return the distinct reasons in the order of L14 (C22)."""
    return tuple(sorted(set(reasons), key=_ORDER.__getitem__))
