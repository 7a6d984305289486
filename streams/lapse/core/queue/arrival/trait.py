"""Traits: the values of a queue's expressions for a message, computed once, on arrival (Q11, Q12, Q20, C31, C32).

A trait that the queue does not ask for has no column and costs nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntFlag
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.expression import priority_of
from lapse.core.queue.inquiry.view import RecordView

OWN_GROUP: Final = 0
"""Group of a message without the group's field: one of its own (C32)."""


class Flag(IntFlag):
    """Yes-or-no traits. The numbers are persisted."""

    RANKED = 1
    BARRIER = 2
    HANDED_OVER = 4
    """Another deployment has handed the message over, whatever the queue asks for (C73)."""


@dataclass(frozen=True, slots=True, eq=False)
class Traits:
    """Traits of consecutive messages.

    Attributes:
        ranks: priority of each that is RANKED; None where the queue has no priority.
        flags: `Flag`s of each; None where the queue has neither priority nor barrier.
        groups: hash of each one's group, `OWN_GROUP` without one; None where the queue has no groups.
        retries: delay that each states for its retries, ms, `UNSTATED` without one; None where none states any (Q24).
    """

    ranks: NDArray[np.uint64] | None = None
    flags: NDArray[np.uint8] | None = None
    groups: NDArray[np.int64] | None = None
    retries: NDArray[np.int64] | None = None

    def handed_over(self) -> Traits:
        """The traits of one message, and that another deployment has handed it over."""
        flags = np.zeros(1, np.uint8) if self.flags is None else self.flags
        return replace(self, flags=flags | np.uint8(Flag.HANDED_OVER))

    def slice(self, first: int, stop: int) -> Traits:
        """The traits of some of the messages."""
        return Traits(
            None if self.ranks is None else self.ranks[first:stop],
            None if self.flags is None else self.flags[first:stop],
            None if self.groups is None else self.groups[first:stop],
            None if self.retries is None else self.retries[first:stop],
        )

    def encode(self) -> tuple[bytes, bytes, bytes]:
        """The columns of what expressions say as bytes, empty where there is none."""
        return (
            b"" if self.ranks is None else self.ranks.astype("<u8").tobytes(),
            b"" if self.flags is None else self.flags.tobytes(),
            b"" if self.groups is None else self.groups.astype("<i8").tobytes(),
        )

    @classmethod
    def decode(cls, ranks: bytes | memoryview, flags: bytes | memoryview, groups: bytes | memoryview) -> Traits:
        """Read what `encode` wrote."""
        return cls(
            np.frombuffer(ranks, "<u8").astype(np.uint64) if ranks else None,
            np.frombuffer(flags, np.uint8).copy() if flags else None,
            np.frombuffer(groups, "<i8").astype(np.int64) if groups else None,
        )


NONE: Final = Traits()


@dataclass(frozen=True, slots=True)
class TraitReader:
    """Reads traits by the queue's expressions.

    Attributes:
        priority: its value orders messages, highest first (Q11).
        barrier: says which messages are barriers (Q12).
        group: messages with the same value are handed out one at a time (Q20).
    """

    priority: Callable[[RecordView], object] | None = None
    barrier: Callable[[RecordView], bool] | None = None
    group: Callable[[RecordView], object] | None = None

    @property
    def wanted(self) -> bool:
        """Whether there is anything to read."""
        return self.priority is not None or self.barrier is not None or self.group is not None

    def read(self, messages: Sequence[RecordView]) -> Traits:
        """Read the traits of messages."""
        count = len(messages)
        ranks, groups = None, None
        flags = None if self.priority is None and self.barrier is None else np.zeros(count, np.uint8)
        if self.priority is not None and flags is not None:
            # Whole columns from lists: setting their elements one by one takes longer than the expression.
            values = [priority_of(self.priority(message)) for message in messages]
            ranks = np.array([value or 0 for value in values], np.uint64)
            flags[[value is not None for value in values]] = Flag.RANKED
        if self.barrier is not None and flags is not None:
            flags[[self.barrier(message) for message in messages]] |= np.uint8(Flag.BARRIER)
        if self.group is not None:
            groups = np.fromiter((group_of(self.group(message)) for message in messages), np.int64, count)
        return Traits(ranks, flags, groups)


NO_TRAITS: Final = TraitReader()
"""For a queue without priority, barrier and groups."""


def group_of(value: object) -> int:
    """A hash that is the same in every process; 0 is kept for messages without a group."""
    if value is None:
        return OWN_GROUP
    if isinstance(value, str):
        return _group_of_text(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 1 and 1.0 are equal in expressions
    return _hash(value)


@lru_cache(maxsize=16_384)
def _group_of_text(text: str) -> int:
    return _hash(text)


def _hash(value: object) -> int:
    text = json.dumps(value, sort_keys=True, default=str).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True) or 1
