"""Entitlements: what a user may do with an entity, and which messages they may see (X4)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Right(StrEnum):
    """What an entitlement grants."""

    READ = "read"  # to receive and query, and to settle what may be seen
    PUBLISH = "publish"
    ADMIN = "admin"
    CREATE = "create"  # to define an entity of this name: to create and to change it (C67)


@dataclass(frozen=True, slots=True)
class Entitlement:
    """What a user may do with one entity.

    Attributes:
        rights: what is granted.
        filter: an expression; what does not match it is not there for the user. Empty = all is.
    """

    rights: frozenset[Right]
    filter: str = ""

    @property
    def row_filter(self) -> str | None:
        """What is seen and touched at most, as an expression; None = all."""
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
"""Of each command to a queue the rights of which one is needed."""

SOW_RIGHTS: Final[Mapping[str, frozenset[Right]]] = _OF_BOTH | {
    "sow_and_subscribe": _READ,
    "delta_subscribe": _READ,
    "sow_and_delta_subscribe": _READ,
    "sow_delete": _PUBLISH,
}
"""Of each command to a SOW topic the rights of which one is needed."""

DEFINITION_RIGHTS: Final[Mapping[str, frozenset[Right]]] = dict.fromkeys(
    ("create_queue", "alter_queue", "create_sow", "alter_sow"), _CREATE
)
"""Of each command about definitions the right that is needed on some name; the name itself is looked at later."""


def missing(command: str, entitlement: Entitlement, needed: Mapping[str, frozenset[Right]]) -> str:
    """What a user lacks for a command, in words; empty = they may. A command that is not known needs no right."""
    rights = needed.get(command)
    if rights is None or rights & entitlement.rights:
        return ""
    return " or ".join(sorted(rights))


def entitlement_to(entity: str, entitlements: Mapping[str, Entitlement]) -> Entitlement:
    """Of a user's entitlements the one that counts for an entity.

    The one of the entity's own name, else the first whose name is a regular expression that matches all of it.
    """
    own = entitlements.get(entity)
    if own is not None:
        return own
    for pattern, entitlement in entitlements.items():
        if re.fullmatch(pattern, entity):
            return entitlement
    return NOTHING


def narrowed(text: str | None, row_filter: str, compile_filter: Callable[[str], object]) -> str:
    """One filter that matches what a user's filter and their row filter both match.

    Args:
        text: the user's filter; None or empty = all.
        row_filter: what they may see at most.
        compile_filter: to see that `text` is a filter by itself, and not a way out of the brackets around it.

    Raises:
        ValueError: it is none; the text shows the place.
    """
    if not text:
        return row_filter
    compile_filter(text)
    return f"({row_filter}) AND ({text})"
