"""Parts of the answers to a queue's commands: messages, subscriptions and results (Q15, C16)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lapse.core.queue.settlement.settlement import Outcome, Result
from lapse.core.queue.step import Queued
from lapse.core.queue.subscriptions.subscription import Subscription
from lapse.core.shard.subscriptions import SHOWN_FILTER
from lapse.protocol.answer import OpenSubscription, QueuedMessage, Settlement
from lapse.protocol.bookmark import Bookmark, range_text
from lapse.protocol.command import Command


def queued_message(one: Queued, all_seen: bool = True) -> QueuedMessage:
    """Return a message as a peek shows it.

    Without `all_seen`, `waits_for` stays empty, since it would reveal messages that the user may not see (X4).
    """
    return QueuedMessage(
        bookmark=str(Bookmark(one.topic, one.partition, one.offset)),
        state=one.state_name,
        expires_at_ms=one.deadline_ms,
        delivery_count=one.deliveries,
        cancel_count=one.cancels,
        subscription=one.subscription,
        until_ms=one.until_ms,
        waits_for=one.waits_for if all_seen else "",
        since_ms=one.since_ms,
    )


def open_subscription(one: Subscription, now_ms: int, lease_ms: int) -> OpenSubscription:
    """Return a subscription as the command `subscriptions` lists it; `lease_ms` is the queue's lease period."""
    return OpenSubscription(
        subscription=one.id,
        client=one.client,
        since_ms=one.began_ms,
        heard_ms=one.last_seen_ms,
        outstanding=one.outstanding,
        max_backlog=one.max_backlog,
        filter=one.filter[:SHOWN_FILTER],
        hangs_since_ms=one.hangs_since_ms(now_ms, lease_ms),
    )


def count_messages(outcomes: Sequence[Outcome]) -> int:
    """Return how many messages the outcomes cover."""
    return sum(outcome.last - outcome.first + 1 for outcome in outcomes)


_MOST_SETTLEMENTS = 10_000
"""The greatest number of ranges with one result in an answer, so that it fits into a record."""


def bounded_fields(outcomes: Sequence[Outcome], command: Command, counts: dict[str, int]) -> dict[str, Any]:
    """Return an answer's settlements and counts. The count `left_out` says how many outcomes did not fit."""
    if command.answer != "all":
        outcomes = [outcome for outcome in outcomes if outcome.result is not Result.SETTLED]
    left_out = len(outcomes) - _MOST_SETTLEMENTS
    if left_out > 0:
        outcomes, counts = outcomes[:_MOST_SETTLEMENTS], {**counts, "left_out": left_out}
    answered = requested_settlements(outcomes, command)
    return {"settlements": answered, "counts": counts} if counts else {"settlements": answered}


def requested_settlements(outcomes: Sequence[Outcome], command: Command) -> tuple[Settlement, ...]:
    """Return the settlements that a command asks for: all, or only those that failed."""
    return tuple(
        Settlement(
            bookmarks=range_text(outcome.topic, outcome.partition, outcome.first, outcome.last),
            result=outcome.result.value,
        )
        for outcome in outcomes
        if command.answer == "all" or outcome.result is not Result.SETTLED
    )
