"""Prefetching against `max_deliveries`: a delivery that the application never saw counts as one (C24).

A client that dies takes a delivery from everything that it had prefetched. After as few deaths as `max_deliveries`
says, messages that nobody ever looked at leave with `max_deliveries`.
"""

from __future__ import annotations

from typing import Final

FEW_DELIVERIES: Final = 2
"""As many deaths of clients, one after the other, are nothing unusual."""


def advice(queue: str, max_deliveries: int, max_backlog: int | None) -> str | None:
    """Say what is wrong where `max_deliveries` is small against a backlog.

    Args:
        queue: its name.
        max_deliveries: the queue's; 0 = no limit.
        max_backlog: what a subscription has, or may have; None = without bounds.

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
