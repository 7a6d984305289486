"""What a worker reads: fewer topics than it did, while it goes on."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any


async def take_out(conductor: Any, topics: AbstractSet[str]) -> list[str]:
    """Have Faust hand out nothing more of some topics.

    Args:
        conductor: Faust's.
        topics: what reads one of them, reads nothing any more.

    Returns:
        What is left to subscribe to.
    """
    for channel in [one for one in conductor if topics & set(one.topics)]:
        conductor._topics.discard(channel)
    return list(await conductor._update_indices())
