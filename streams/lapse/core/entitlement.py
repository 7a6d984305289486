"""Entitlements: a user's rights to an entity, and the filter of what they may see (X4)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Right(StrEnum):
    """A right that an entitlement grants."""

    READ = "read"  # to receive and query, and to settle visible messages
    PUBLISH = "publish"
    ADMIN = "admin"
    CREATE = "create"  # to create and alter an entity of this name (C67)


@dataclass(frozen=True, slots=True)
class Entitlement:
    """A user's entitlement to one entity.

    Attributes:
        rights: the rights granted.
        filter: an expression; messages and records that do not match it do not exist for the user. Empty = all match.
    """

    rights: frozenset[Right]
    filter: str = ""

    @property
    def row_filter(self) -> str | None:
        """The filter that limits what the user may see and change; None = no limit."""
        return self.filter or None


NOTHING: Final = Entitlement(frozenset())

_ANY: Final = frozenset({Right.READ, Right.PUBLISH, Right.ADMIN})
_READ: Final = frozenset({Right.READ})
_PUBLISH: Final = frozenset({Right.PUBLISH})
_ADMIN: Final = frozenset({Right.ADMIN})
_CREATE: Final = frozenset({Right.CREATE})

_OF_BOTH: Final = {
    "depth": _ANY,
    "subscriptions": frozenset({Right.READ, Right.ADMIN}),
    "sow": _READ,
    "subscribe": _READ,
    "unsubscribe": _READ,
    "heartbeat": _READ,
    "delete": _ADMIN,
}
QUEUE_RIGHTS: Final[Mapping[str, frozenset[Right]]] = _OF_BOTH | {
    **dict.fromkeys(("acknowledge", "cancel", "expire", "renew"), _READ),
    **dict.fromkeys(("pause", "resume", "purge", "rewind"), _ADMIN),
    **dict.fromkeys(
        (
            "transfer",
            "transfer_confirm",
            "transfer_finish",
            "transfer_cancel",
            "transfer_accept",
            "transfer_discard",
        ),
        _ADMIN,
    ),
}
"""By queue command: the rights of which the user needs one."""

SOW_RIGHTS: Final[Mapping[str, frozenset[Right]]] = _OF_BOTH | {
    "sow_and_subscribe": _READ,
    "delta_subscribe": _READ,
    "sow_and_delta_subscribe": _READ,
    "sow_delete": _PUBLISH,
}
"""By SOW command: the rights of which the user needs one."""

DEFINITION_RIGHTS: Final[Mapping[str, frozenset[Right]]] = dict.fromkeys(
    ("create_queue", "alter_queue", "create_sow", "alter_sow"), _CREATE
)
"""By definition command: the right that the user needs for some name. The name itself is checked later."""


def missing_right(command: str, entitlement: Entitlement, needed: Mapping[str, frozenset[Right]]) -> str:
    """Return which right a user lacks for a command, as text; empty = none. Unknown commands need no right."""
    rights = needed.get(command)
    if rights is None or rights & entitlement.rights:
        return ""
    return " or ".join(sorted(rights))


def find_entitlement(entity: str, entitlements: Mapping[str, Entitlement]) -> Entitlement:
    """Return the one of a user's entitlements that applies to an entity.

    It is the one with the entity's name, else the first whose name, as a regular expression, matches all of that name.
    """
    own = entitlements.get(entity)
    if own is not None:
        return own
    for pattern, entitlement in entitlements.items():
        if re.fullmatch(pattern, entity):
            return entitlement
    return NOTHING


def combine_filters(text: str | None, row_filter: str, compile_filter: Callable[[str], object]) -> str:
    """Return a filter that matches what both a user's filter and their row filter match.

    Args:
        text: the user's filter; None or empty = everything matches.
        row_filter: the user's row filter.
        compile_filter: compiles a filter. It must accept `text` alone, so that `text` cannot close its brackets.

    Raises:
        ValueError: `text` is not a filter; the message shows where.
    """
    if not text:
        return row_filter
    compile_filter(text)
    return f"({row_filter}) AND ({text})"
