"""The terms of a queue subscription: its validated options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, get_args
from uuid import uuid4

from lapse.protocol.command_field import CHECKS, LEAST_HEARTBEAT_MS, OPTIONAL, SHOWN_CHARACTERS
from lapse_client.argument import check_count

Payload = Literal["inline", "packed", "reference"]
"""The form of deliveries: one message per record, many messages per record, or bookmarks only."""

_LEAST: Final = {
    "max_backlog": 0,
    "heartbeat_timeout_ms": LEAST_HEARTBEAT_MS,
    "ack_batch_size": 1,
    "ack_interval_ms": 0,
}


def check(what: str, value: object, field: str = "") -> None:
    """Check an option by the rules of its command field at once, because the `subscribe` command is sent later.

    Args:
        what: name of the option.
        value: value of the option.
        field: field of the command; the option's name by default.

    Raises:
        ValueError: the value is not allowed.
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
    """The options of a subscription.

    Attributes:
        max_backlog: most unsettled deliveries at once, over all shards.
        name: name of the subscription; unique by default.
        filter: an expression for the messages to deliver; None = all.
        heartbeat_timeout_ms: time without heartbeats after which its messages return, in ms; None = the queue's.
        payload: the form of deliveries.
        ack_batch_size: most acknowledgments in one command.
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
        if self.filter == "":
            raise ValueError("filter: is empty; leave it out, or pass TRUE for everything")
        if self.payload not in get_args(Payload):
            raise ValueError(f"payload = {self.payload!r}: expected inline, packed or reference")
        for what, least in _LEAST.items():
            value = getattr(self, what)
            if value is None and what == "heartbeat_timeout_ms":
                continue
            check_count(what, value, least)
            if what in CHECKS:
                check(what, value)

    @staticmethod
    def unique_name() -> str:
        """Return a name that no other subscription has."""
        return _unique_name()
