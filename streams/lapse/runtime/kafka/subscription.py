"""What a worker reads: fewer topics than it did, or more, while it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from typing import Any, Final

_PAUSE_S: Final = 0.01


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


async def take_in(conductor: Any, topics: AbstractSet[str], begin: Callable[[], Awaitable[bool]]) -> list[str]:
    """Have Faust hand out what comes in on some topics more.

    Args:
        conductor: Faust's.
        topics: what is read from now on, too.
        begin: starts what reads them; False = it cannot.

    Returns:
        All to subscribe to; nothing if it could not begin.
    """
    # Faust would subscribe by itself, 45 s later, and balance the group once more for nothing.
    changed, conductor._subscription_changed = conductor._subscription_changed, None
    try:
        if not await begin():
            return []
        while not topics <= {name for channel in conductor for name in channel.topics}:  # noqa: ASYNC110
            await asyncio.sleep(_PAUSE_S)
    finally:
        conductor._subscription_changed = changed
    return list(await conductor._update_indices())


async def dismiss(agents: Any, name: str) -> None:
    """End an agent to which nothing is handed out any more, so that there can be another one of its name.

    Args:
        agents: Faust's.
        name: the agent's.
    """
    agent = agents.pop(name, None)
    if agent is not None:
        for of_topic in agents._by_topic.values():
            of_topic.discard(agent)
        agent.cancel()
        await agent.stop()
