"""A message, a record and a subscription, said plainly; and what leaves a shard."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from lapse.core.generation import generation_of

Bookmark = tuple[str, int, int]
Ends = dict[tuple[str, int], int]
"""By topic and partition, the first offset that was written behind the instant of a sweep."""
REASONS = (
    "time_limit",
    "forced_expire",
    "max_deliveries",
    "max_cancels",
    "invalid_lifetime",
    "purged",
    "withdrawn",
    "log_truncated",
)
WAITING = ("available", "delayed")


@dataclass
class Published:
    """A record of an underlying topic, with what its headers mean said plainly.

    Attributes:
        ttl_ms: stated relative lifetime; 0 = never; None = not stated.
        expires_at_ms: stated absolute deadline.
        enqueue_at_ms: stated schedule.
        broken: the headers cannot be read.
        redriven_for: the queue that a redriven record is for; empty = not redriven.
        message_id: its `lapse-message-id`; empty = none.
        retry: what its `lapse-retry-delay-ms` says; None = not stated.
        transferred: (queue, transfer) that has put it there.
        counts: deliveries and cancels that its header states.
        body: what its value says.
    """

    offset: int
    timestamp: int
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    ttl_ms: int | None = None
    expires_at_ms: int | None = None
    enqueue_at_ms: int | None = None
    broken: bool = False
    redriven_for: str = ""
    transferred: tuple[str, str] | None = None
    counts: tuple[int, int] = (0, 0)
    message_id: bytes = b""
    retry: bytes | None = None
    key: bytes | None = None
    value: bytes | None = b""
    body: dict = field(default_factory=dict)


@dataclass
class Message:
    bookmark: Bookmark
    state: str
    deadline_ms: int | None
    at_ms: int = 0
    until_ms: int = 0
    since_ms: int = 0
    holder: str = ""
    last: int = -1
    deliveries: int = 0
    cancels: int = 0
    body: dict = field(default_factory=dict)
    rank: int | None = None
    barrier: bool = False
    group: object = None
    transfer: str = ""
    then_ms: int = 0
    retry: bytes | None = None
    came: bool = False
    """Whether it came by a transfer."""


NEVER = 2**63 - 1
LATER = ("scheduled", "held", "early", "unconfirmed")
"""Without a place; `held` waits for room (C51), `early` is on its way to elsewhere."""
Restricted = tuple[str, dict[Bookmark, dict]]
"""What a user may see at most, and what every record says that was ever written."""

FILTERS: dict[str, Callable[[dict], bool]] = {
    "": lambda body: True,
    "/f = 1": lambda body: body.get("f") == 1,
    "/f > 0": lambda body: (body.get("f") or 0) > 0,
    "/b = 'yes'": lambda body: body.get("b") == "yes",
}


def is_in_reach(bookmark: Bookmark, ends: Ends | None) -> bool:
    """Whether a sweep takes a message; what was brought back came before it (C1)."""
    return generation_of(bookmark[2]) > 0 or bookmark[2] < (ends or {}).get(bookmark[:2], NEVER)


@dataclass
class Subscriber:
    id: str
    number: int
    max_backlog: int
    timeout_ms: int
    last_seen_ms: int
    asked: int = 0
    filter: str = ""
    payload: str = "inline"


@dataclass(frozen=True)
class Sent:
    subscription: str
    bookmark: Bookmark
    deadline_ms: int | None
    deliveries: int
    cancels: int
    until_ms: int
    barrier: bool = False
    payload: str = "inline"


@dataclass(frozen=True)
class MessageEvent:
    """An event about one message, and whose doing it was."""

    kind: str
    bookmark: Bookmark
    subscription: str = ""


@dataclass(frozen=True)
class Gone:
    bookmark: Bookmark
    reasons: tuple[str, ...]
    letter: bool
    deadline_ms: int | None
    at_ms: int
    deliveries: int = 0
    cancels: int = 0


def chance(bookmark: Bookmark, count: int) -> float:
    """A number from 0 to 1 that a message's name and its delivery count give, by splitmix64 (C68)."""
    topic, partition, offset = bookmark
    seed = hashlib.blake2b(f"{topic}:{partition}".encode(), digest_size=8).digest()
    mixed = int.from_bytes(seed, "little") + offset * 0x9E3779B97F4A7C15 + count * 0xBF58476D1CE4E5B9
    mixed %= 1 << 64
    for shift, times in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> shift)) * times % (1 << 64)
    return ((mixed ^ (mixed >> 31)) >> 11) / (1 << 53)
