"""Removals of a step whose letters say the same, gathered so that their letters are made together.

A tick removes messages from every segment that has some, and each segment has a removal of its own. To look up the
records of a removal and to pack its letters costs as much as dozens of messages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from lapse.core.generation import FIRST_REWOUND
from lapse.core.lazy_sequence import LazySequence
from lapse.core.queue.removal.pending_letters import OfLetter
from lapse.core.queue.step import Messages, Removal


class GatheredRemovals:
    """Removals that differ in their messages only, which are in the order of the log.

    Args:
        removals: the removals; one at least.

    Attributes:
        removal: one removal of all their messages.
    """

    __slots__ = ("_begins", "_removals", "removal")

    def __init__(self, removals: Sequence[Removal]) -> None:
        self._removals = removals
        self._begins: list[int] = []
        begin = 0
        for one in removals:
            self._begins.append(begin)
            begin += len(one.messages)
        self.removal = removals[0]
        if len(removals) > 1:
            messages = Messages.concatenate([one.messages for one in removals])
            self.removal = replace(self.removal, messages=messages, places=None)

    def subject(self, at: int) -> OfLetter:
        """Return the subject of the letter of a message, by its index among all messages."""
        which = bisect_right(self._begins, at) - 1
        return self._removals[which], at - self._begins[which]


class Subjects(LazySequence[OfLetter]):
    """The subjects of letters, which are needed one by one only if Kafka refuses a letter."""

    __slots__ = ("_firsts", "_runs", "_stop")

    def __init__(self) -> None:
        self._runs: list[tuple[GatheredRemovals, int]] = []
        self._firsts: list[int] = []
        self._stop = 0

    def add(self, removals: GatheredRemovals, first: int, stop: int) -> None:
        """Add the messages of some removals from index `first` up to `stop`."""
        self._runs.append((removals, first))
        self._firsts.append(self._stop)
        self._stop += stop - first

    def __len__(self) -> int:
        return self._stop

    def item(self, at: int) -> OfLetter:
        """Return the subject of a letter, by its index from 0 on."""
        which = bisect_right(self._firsts, at) - 1
        removals, first = self._runs[which]
        return removals.subject(first + at - self._firsts[which])


def gathered(removals: Sequence[Removal]) -> Iterator[GatheredRemovals]:
    """Yield the removals of a step in their order, neighbours together that differ in their messages only.

    Only those are joined whose messages stay in the order of the log. The order of removals is that of what happened
    at an instant (C2), and so is that of letters.
    """
    alike: list[Removal] = []
    before: tuple[Any, ...] = ()
    for one in removals:
        messages = one.messages
        facts = (messages.topic, messages.partition, one.reasons, one.at_ms, one.letter, one.detail, one.incarnation)
        in_order = _is_in_order(messages)
        if alike and not (in_order and facts == before and messages.offsets[0] > alike[-1].messages.offsets[-1]):
            yield GatheredRemovals(alike)
            alike = []
        alike.append(one)
        before = facts if in_order else ()
    if alike:
        yield GatheredRemovals(alike)


def _is_in_order(messages: Messages) -> bool:
    """Return whether messages are in the order of the log, none of them brought back by a rewind."""
    offsets = messages.offsets
    return bool(offsets[-1] < FIRST_REWOUND and (offsets[1:] > offsets[:-1]).all())
