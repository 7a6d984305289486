"""Prefetch: warns of backlogs that conflict with a small `max_deliveries` (C24).

A prefetched delivery counts even if the application never saw it. So each death of a client uses up a delivery of all
messages that it had prefetched. After `max_deliveries` deaths, messages leave that no application ever processed.
"""

from __future__ import annotations

from typing import Final

FEW_DELIVERIES: Final = 2
"""Values up to this cause a warning, because so many deaths of clients in a row are not unusual."""


def max_deliveries_warning(queue: str, max_deliveries: int, max_backlog: int | None) -> str | None:
    """Return a warning if `max_deliveries` is small and a backlog greater than 1 is possible.

    Args:
        queue: name of the queue.
        max_deliveries: the queue's limit; 0 = none.
        max_backlog: the backlog that a subscription has or may have; None = unlimited.

    Returns:
        A sentence for people; None if nothing is wrong.
    """
    if not 0 < max_deliveries <= FEW_DELIVERIES or (max_backlog is not None and max_backlog <= 1):
        return None
    prefetched = "any number of messages" if max_backlog is None else f"{max_backlog:,} messages"
    deaths = "one client that dies" if max_deliveries == 1 else f"{max_deliveries} clients that die"
    return (
        f"queue {queue}: max_deliveries = {max_deliveries}, and a subscription may hold {prefetched}: {deaths} can use "
        "up all deliveries of messages that were prefetched and never looked at. Raise max_deliveries, or lower the "
        "backlog to 1 (C24)"
    )
