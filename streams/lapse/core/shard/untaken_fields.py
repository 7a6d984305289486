"""Untaken fields: fields that select or limit, at commands that do not take them (X7).

A command that ignored such a field would do more than its sender asks for: a purge with `top_n` would remove all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lapse.core.shard.refused import CommandRefused
from lapse.protocol.command import Command

LIMITS: Final = ("top_n", "skip", "order_by", "dry_run")
"""Fields that limit or order what a command is about, or ask it to do nothing."""

_SETTLEMENT: Final = ("keys", "data", *LIMITS)

UNTAKEN_BY_QUEUES: Final[Mapping[str, tuple[str, ...]]] = {
    "purge": _SETTLEMENT,
    "acknowledge": _SETTLEMENT,
    "cancel": _SETTLEMENT,
    "expire": _SETTLEMENT,
    "renew": _SETTLEMENT,
    "subscribe": ("data", *LIMITS),
    "rewind": ("data", "top_n", "skip", "order_by"),
    "sow": ("data", "order_by"),
    "depth": ("bookmarks", "keys", "data", "skip", "order_by"),
    "subscriptions": ("order_by",),
}
"""By command to a queue: the fields that it does not take. Handlers refuse further ones with better advice."""

UNTAKEN_BY_SOW_TOPICS: Final[Mapping[str, tuple[str, ...]]] = {
    "sow_delete": LIMITS,
    "depth": ("bookmarks", "keys", "data", "skip", "order_by"),
    "subscriptions": ("order_by",),
}
"""The same for commands to a SOW topic."""


def untaken_fields(command: Command, untaken: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the fields of a command that it does not take."""
    given = ((name, getattr(command, name)) for name in untaken.get(command.command, ()))
    return [name for name, value in given if not (value is None or value is False or value == ())]


def fields_refusal(command: Command, untaken: Mapping[str, tuple[str, ...]]) -> CommandRefused | None:
    """Return the refusal of a command with fields that it does not take; None if it has none."""
    found = untaken_fields(command, untaken)
    if not found:
        return None
    return CommandRefused(
        f"{command.command} takes no {' and no '.join(found)}, and would do more than you ask for; leave it out if you "
        "want that"
    )


def check_fields(command: Command, untaken: Mapping[str, tuple[str, ...]]) -> None:
    """Check that a command has no field that it does not take.

    Raises:
        CommandRefused: it has one.
    """
    if (refusal := fields_refusal(command, untaken)) is not None:
        raise refusal
