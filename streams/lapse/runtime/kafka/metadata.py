"""Metadata of many topics at once: aiokafka asks for one new topic after the other, and pauses in between."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any


async def know(client: Any, topics: Iterable[str], soon: Collection[str] = ()) -> None:
    """Have a client know where topics are; those that do not exist are left to whoever uses them.

    Args:
        client: an aiokafka client.
        topics: any that it will need.
        soon: what it will need after them: each question is about all topics that it knows, so it asks once.
    """
    unknown = {topic for topic in topics if client.cluster.partitions_for_topic(topic) is None}
    if unknown:
        await client.set_topics(client._topics | unknown | set(soon))
