"""The terms of a queue subscription: its options, checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, get_args
from uuid import uuid4

from lapse.protocol.command_field import CHECKS, OPTIONAL, SHOWN_CHARACTERS

Payload = Literal["inline", "packed", "reference"]
"""How deliveries come: with their payloads, each in a record of its own or many in one; or as bookmarks only."""

_LEAST: Final = {"max_backlog": 0, "heartbeat_timeout_ms": 100, "ack_batch_size": 1, "ack_interval_ms": 0}


def check(what: str, value: object, field: str = "") -> None:
    """Check an option by the rules of its command field, because a subscription sends it repeatedly.

    Args:
        what: the name of the option.
        value: its value.
        field: the command's field; of the same name by default.

    Raises:
        ValueError: the value is not permitted.
    """
    field = field or what
    if value is None and field in OPTIONAL:
        return
    if fault := CHECKS[field](value):
        raise ValueError(f"{what}: {fault}")


def _unique_name() -> str:
    return uuid4().hex


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What a subscription asks for.

    Attributes:
        max_backlog: most unsettled deliveries at once, over all shards.
        name: the subscription; unique by default.
        filter: which messages, as an expression; None = all.
        heartbeat_timeout_ms: silence after which it counts as lost and its leases return, in ms; None = the queue's.
        payload: how deliveries come.
        ack_batch_size: acknowledgments in one command at most.
        ack_interval_ms: how long an acknowledgment may wait for others, in ms.
    """

    max_backlog: int = 1
    name: str = field(default_factory=_unique_name)
    filter: str | None = None
    heartbeat_timeout_ms: int | None = None
    payload: Payload = "packed"
    ack_batch_size: int = 1_000
    ack_interval_ms: int = 50

    def __post_init__(self) -> None:
        check("name", self.name, "subscription")
        try:
            self.name.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"name: {self.name[:SHOWN_CHARACTERS]!r} is no text that UTF-8 can hold") from error
        check("filter", self.filter)
        if self.payload not in get_args(Payload):
            raise ValueError(f"payload = {self.payload!r}: expected inline, packed or reference")
        for what, least in _LEAST.items():
            value = getattr(self, what)
            if value is None and what == "heartbeat_timeout_ms":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{what} = {value!r}: expected a whole number, {least} or more")
            if what in CHECKS:
                check(what, value)

    @staticmethod
    def unique_name() -> str:
        """A name that no other subscription has."""
        return _unique_name()
