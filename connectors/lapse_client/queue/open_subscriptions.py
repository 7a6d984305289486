"""The open subscriptions of a queue or SOW topic, over all shards (Q15)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lapse.protocol.answer import OpenSubscription
from lapse.protocol.command import MOST_SUBSCRIPTIONS, Command
from lapse_client.session.session import Session


def open_subscriptions(session: Session[Any], timeout_s: float) -> list[OpenSubscription]:
    """Ask all shards for their open subscriptions.

    Args:
        session: session with the entity's shards.
        timeout_s: how long to wait for each answer, in seconds.

    Returns:
        Each subscription once, the oldest first.
    """
    found: list[OpenSubscription] = []
    asking, skip = list(session.partitions), 0
    while asking:
        answers = session.ask(asking, Command(command="subscriptions", skip=skip), timeout_s)
        found += [one for answer in answers for one in answer.subscriptions]
        skip += MOST_SUBSCRIPTIONS
        asking = [answer.partition for answer in answers if answer.counts.get("subscriptions", 0) > skip]
    return merged(found)


def merged(parts: Iterable[OpenSubscription]) -> list[OpenSubscription]:
    """Merge the shards' answers about each subscription: the sum of its messages, and its earliest start."""
    by_name: dict[str, OpenSubscription] = {}
    for one in parts:
        known = by_name.get(one.subscription)
        by_name[one.subscription] = (
            one
            if known is None
            else replace(
                known,
                since_ms=min(known.since_ms, one.since_ms),
                heard_ms=max(known.heard_ms, one.heard_ms),
                outstanding=known.outstanding + one.outstanding,
                max_backlog=known.max_backlog + one.max_backlog,
                hangs_since_ms=min(filter(None, (known.hangs_since_ms, one.hangs_since_ms)), default=0),
            )
        )
    return sorted(by_name.values(), key=lambda one: (one.since_ms, one.subscription))
