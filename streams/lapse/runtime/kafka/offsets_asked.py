"""Asks for offsets of many partitions at once. A partition whose broker is away delays no other (C52).

aiokafka asks the leaders of all partitions, and returns nothing before the last one has answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from lapse.runtime.kafka.metadata import client_of

logger = logging.getLogger(__name__)

Question: TypeAlias = Callable[[AIOKafkaConsumer, list[TopicPartition]], Awaitable[dict[TopicPartition, int]]]

ALL_AT_ONCE_S: Final = 2.0
"""More than brokers need for the offsets of a thousand available partitions, s."""

_EACH_S: Final = 10.0
"""How long each leader may take if not all have answered, s."""

_NO_LEADER: Final = (None, -1)


async def ask(
    consumer: AIOKafkaConsumer, question: Question, tps: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return offsets of partitions, without those whose leaders do not answer.

    Args:
        consumer: sends the requests. It must have the metadata of the topics.
        question: for example `AIOKafkaConsumer.end_offsets`.
        tps: the partitions.
    """
    if len(_leaders(consumer, tps)) == len(set(tps)):
        try:
            async with asyncio.timeout(ALL_AT_ONCE_S):
                return dict(await question(consumer, list(tps)))
        except (KafkaError, TimeoutError) as error:
            logger.debug("not all of %d partitions have answered with their offsets: %s", len(tps), error)
    await client_of(consumer).force_metadata_update()
    by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
    for tp, leader in _leaders(consumer, tps).items():
        by_leader[leader].append(tp)
    found = await asyncio.gather(*(_ask_one(consumer, question, some) for some in by_leader.values()))
    return {tp: offset for some in found for tp, offset in some.items()}


def next_read(consumer: AIOKafkaConsumer, tp: TopicPartition) -> int:
    """Return the offset that a consumer reads next; -1 while it must first ask where the partition begins.

    Then `AIOKafkaConsumer.position` would wait for the leader without end.

    Raises:
        IllegalStateError: the partition is not assigned.
    """
    subscription = consumer._subscription
    if not subscription.is_assigned(tp):
        raise IllegalStateError(f"{tp} is not assigned")
    state = subscription.subscription.assignment.state_value(tp)
    return int(state.position) if state.has_valid_position else -1


def _leaders(consumer: AIOKafkaConsumer, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the leaders of the partitions that have one."""
    leader = client_of(consumer).cluster.leader_for_partition
    return {tp: found for tp in tps if (found := leader(tp)) not in _NO_LEADER}


async def _ask_one(
    consumer: AIOKafkaConsumer, question: Question, tps: list[TopicPartition]
) -> dict[TopicPartition, int]:
    """Ask one leader about its partitions; return nothing if it does not answer."""
    try:
        async with asyncio.timeout(_EACH_S):
            return dict(await question(consumer, tps))
    except (KafkaError, TimeoutError) as error:
        logger.debug("%s and %d more: no offsets: %s", tps[0], len(tps) - 1, error)
        return {}
