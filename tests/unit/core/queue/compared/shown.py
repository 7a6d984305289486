"""What steps and peeks show of messages, in rows that can be compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from lapse.core.lifetime import NEVER
from lapse.core.queue.step import Messages, Queued, Step
from unit.core.queue.expected.message import Bookmark, Gone, Sent


def shown_row(one: Queued) -> tuple:
    bookmark = (one.topic, one.partition, one.offset)
    return (
        bookmark,
        one.state_name,
        one.deadline_ms,
        one.deliveries,
        one.cancels,
        one.subscription,
        one.until_ms,
        one.since_ms,
    )


def rows(messages: Messages) -> Iterator[tuple[Bookmark, int | None, int, int]]:
    for at, offset in enumerate(messages.offsets.tolist()):
        deadline_ms = NEVER if messages.deadlines_ms is None else int(messages.deadlines_ms[at])
        cancels = 0 if messages.cancels is None else int(messages.cancels[at])
        yield (
            (messages.topic, messages.partition, offset),
            None if deadline_ms == NEVER else deadline_ms,
            int(messages.deliveries[at]),
            cancels,
        )


def all_gone(step: Step, heard: int = 0) -> list[Gone]:
    """Return what left in a step, and what had left before and has a safe letter now, of which only events tell."""
    left = [(one, one.letter) for one in step.removals]
    left += [(one, True) for one in step.events[heard:] if one.reasons]
    return [
        Gone(bookmark, tuple(map(str, one.reasons)), letter, deadline_ms, one.at_ms, deliveries, cancels)
        for one, letter in left
        for bookmark, deadline_ms, deliveries, cancels in rows(one.messages)
    ]


def by_subscription(sent: Iterable[Sent]) -> dict[str, list[Sent]]:
    shares: dict[str, list[Sent]] = defaultdict(list)
    for one in sent:
        shares[one.subscription].append(one)
    return dict(shares)
