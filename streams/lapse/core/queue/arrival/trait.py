"""Traits: the values of a queue's expressions for a message, computed once, on arrival (Q11, Q12, Q20, C31, C32).

A trait that the queue does not use has no column and costs nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntFlag
from json.encoder import encode_basestring_ascii
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.expression import Value, priority_of
from lapse.core.queue.inquiry.view import RecordView, RowViews, parse_payloads

_ALIKE_IF_EQUAL: Final = {str, type(None)}
"""Types of which equal values are of one group."""

_FEW_OF: Final = 4
"""If more than one in this number of payloads must be parsed, parsing all of them together is cheaper."""

OWN_GROUP: Final = 0
"""Group number of messages without the group's field. Each of them is a group of its own (C32)."""


class Flag(IntFlag):
    """Yes-or-no traits. The numbers are persisted."""

    RANKED = 1
    BARRIER = 2
    HANDED_OVER = 4
    """Another deployment has handed the message over (C73). The flag does not depend on the queue's settings."""


@dataclass(frozen=True, slots=True, eq=False)
class Traits:
    """The traits of consecutive messages, in columns.

    Attributes:
        ranks: priority of each message that is RANKED; None if the queue has no priority.
        flags: `Flag`s of each message; None if the queue has neither priority nor barrier and none was handed over.
        groups: hash of each message's group, `OWN_GROUP` without one; None if the queue has no groups.
        retries: the retry delay that each message states, ms, `UNSTATED` without one; None if none states one (Q24).
    """

    ranks: NDArray[np.uint64] | None = None
    flags: NDArray[np.uint8] | None = None
    groups: NDArray[np.int64] | None = None
    retries: NDArray[np.int64] | None = None

    def as_handed_over(self) -> Traits:
        """Return the traits of one message with the flag HANDED_OVER set."""
        flags = np.zeros(1, np.uint8) if self.flags is None else self.flags
        return replace(self, flags=flags | np.uint8(Flag.HANDED_OVER))

    def slice(self, first: int, stop: int) -> Traits:
        """Return the traits of a slice of the messages."""
        return Traits(
            None if self.ranks is None else self.ranks[first:stop],
            None if self.flags is None else self.flags[first:stop],
            None if self.groups is None else self.groups[first:stop],
            None if self.retries is None else self.retries[first:stop],
        )

    def encode(self) -> tuple[bytes, bytes, bytes]:
        """Return the columns `ranks`, `flags` and `groups` as bytes; a missing column is empty."""
        return (
            b"" if self.ranks is None else self.ranks.astype("<u8").tobytes(),
            b"" if self.flags is None else self.flags.tobytes(),
            b"" if self.groups is None else self.groups.astype("<i8").tobytes(),
        )

    @classmethod
    def decode(cls, ranks: bytes | memoryview, flags: bytes | memoryview, groups: bytes | memoryview) -> Traits:
        """Return the traits that `encode` wrote."""
        return cls(
            np.frombuffer(ranks, "<u8").astype(np.uint64) if ranks else None,
            np.frombuffer(flags, np.uint8).copy() if flags else None,
            np.frombuffer(groups, "<i8").astype(np.int64) if groups else None,
        )


NONE: Final = Traits()


@dataclass(frozen=True, slots=True)
class TraitReader:
    """Computes traits with the queue's expressions.

    Attributes:
        priority: orders messages by its value, highest first (Q11).
        barrier: is true for messages that are barriers (Q12).
        group: its value is the message's group; at most `group_limit` messages of a group are leased at once (Q20).
    """

    priority: Callable[[RecordView], object] | None = None
    barrier: Callable[[RecordView], bool] | None = None
    group: Callable[[RecordView], object] | None = None

    @property
    def is_needed(self) -> bool:
        """Whether the queue uses any trait."""
        return self.priority is not None or self.barrier is not None or self.group is not None

    def read(self, messages: Sequence[RecordView]) -> Traits:
        """Return the traits of messages."""
        groups = None if self.group is None else self._groups_of_texts(self.group, messages)
        others = (self.priority, self.barrier, self.group if groups is None else None)
        if any(getattr(one, "uses_payload", False) for one in others):
            parse_payloads(messages)
        count = len(messages)
        ranks = None
        flags = None if self.priority is None and self.barrier is None else np.zeros(count, np.uint8)
        if self.priority is not None and flags is not None:
            # Columns are built from lists, because setting elements one by one takes longer than the expression.
            values = [priority_of(value) for value in _values(self.priority, messages)]
            ranks = np.array([value or 0 for value in values], np.uint64)
            flags[[value is not None for value in values]] = Flag.RANKED
        if self.barrier is not None and flags is not None:
            flags[[self.barrier(message) for message in messages]] |= np.uint8(Flag.BARRIER)
        if self.group is not None and groups is None:
            groups = _group_hashes(_values(self.group, messages))
        return Traits(ranks, flags, groups)

    def _groups_of_texts(
        self, group: Callable[[RecordView], object], messages: Sequence[RecordView]
    ) -> NDArray[np.int64] | None:
        """Return the groups if they can be found in the payloads' texts, and nothing else needs the payloads."""
        if not isinstance(messages, RowViews) or not isinstance(group, Value) or group.member is None:
            return None
        if getattr(self.priority, "uses_payload", False) or getattr(self.barrier, "uses_payload", False):
            return None
        found = messages.texts(group.member)
        if found is None or _FEW_OF * len(found.unsure) > len(messages):
            return None
        groups = _group_hashes(found.distinct)[found.which]
        for at in found.unsure:
            groups[at] = group_hash(group(messages[at]))
        return groups


def _values(expression: Callable[[RecordView], object], messages: Sequence[RecordView]) -> Sequence[object]:
    """Return an expression's value for each message."""
    if isinstance(expression, Value):
        if isinstance(messages, RowViews) and not expression.attributes:
            evaluate = expression.evaluate
            return [evaluate(payload) for payload in messages.payloads()]
        return expression.values(messages)
    return [expression(message) for message in messages]


NO_TRAITS: Final = TraitReader()
"""The reader of a queue without priority, barrier and groups."""


def _group_hashes(values: Sequence[object]) -> NDArray[np.int64]:
    """Return the hash of each value's group."""
    if set(map(type, values)) <= _ALIKE_IF_EQUAL:  # not so for 1 and true
        return np.fromiter(map(_KNOWN.__getitem__, values), np.int64, len(values))
    return np.array([group_hash(value) for value in values], np.int64)


class _Known(dict[object, int]):
    """The hashes of groups, each computed once while it is kept."""

    def __missing__(self, value: object) -> int:
        if len(self) >= _MOST_KNOWN:
            self.clear()
            self[None] = OWN_GROUP
        found = self[value] = _hash(value)
        return found


_MOST_KNOWN: Final = 16_384

_KNOWN: Final = _Known({None: OWN_GROUP})


def group_hash(value: object) -> int:
    """Return a group's hash, the same in every process. 0 is reserved for messages without a group."""
    if value is None:
        return OWN_GROUP
    if isinstance(value, str):
        return _KNOWN[value]
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 1 and 1.0 are equal in expressions
    return _hash(value)


def _hash(value: object) -> int:
    if type(value) is str:  # as `dumps` encodes it, which takes ten times as long
        text = encode_basestring_ascii(value).encode()
    else:
        text = json.dumps(value, sort_keys=True, default=str).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True) or 1
