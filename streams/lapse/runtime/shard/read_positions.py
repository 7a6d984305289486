"""Finds where a shard begins to read at take-over: its journal's positions, compared with the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lapse.config import QueueConfig, SowConfig
from lapse.config.recovery_point import RecoveryPoint
from lapse.protocol import topic as names
from lapse.runtime.queue.recovery_point import begin_offsets
from lapse.runtime.shard.named_topics import is_read
from lapse.runtime.shard.services import Services
from lapse.runtime.shard.unread_ranges import Gap, warn
from lapse.runtime.topics.topic_id import KnownTopics
from lapse.runtime.tp import TP

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReadPositions:
    """The positions from which a shard reads.

    Attributes:
        topics: the topics to which the positions belong.
        offsets: the next offset of each partition, including the commands.
        gaps: ranges of underlying topics that the log lost before they were read (Q16, C80).
    """

    topics: KnownTopics
    offsets: dict[TP, int]
    gaps: list[Gap]


async def find(
    name: str,
    config: QueueConfig | SowConfig,
    services: Services,
    sources: Sequence[TP],
    known: dict[str, Any],
    since_epoch: int = 0,
) -> ReadPositions:
    """Find the positions from which a shard of an entity reads.

    Args:
        name: name of the entity.
        config: its settings.
        services: the objects that the worker's entities share.
        sources: partitions that the shard reads, including the commands.
        known: the read positions in its journal.
        since_epoch: the epoch since which deliveries count, if a deleted entity had the name before (C13); 0 = always.
    """
    topics = await _known_topics(name, config, services, sources, known)
    if not known and since_epoch:
        topics.count_from(since_epoch)
    positions = _positions(sources, known, topics)
    await _begin_new_sources(name, config, services, positions)
    gaps = await _gaps(name, services, positions)
    return ReadPositions(topics, {tp: offset or 0 for tp, offset in positions.items()}, gaps)


async def _known_topics(
    name: str, config: QueueConfig | SowConfig, services: Services, sources: Sequence[TP], known: dict[str, Any]
) -> KnownTopics:
    """Return what the journal knows of the topics, and which of them were created anew (C42).

    One that was created anew with fewer partitions may have none for this shard, which has state of the old one.
    """
    own = {tp.topic for tp in sources}
    others = {one for one in known.keys() - own if ":" not in one and is_read(name, config, one)}
    ids = await services.topic_ids.of(own | others)
    topics = KnownTopics(known, {one: found for one, found in ids.items() if one in own or known[one][0] != found})
    for topic in topics.replaced:
        logger.warning(
            "%s: topic %s was deleted and created again; it is read from its beginning. Messages of the old one "
            "leave a queue with log_truncated; records of a SOW topic stay",
            name,
            topic,
        )
    return topics


def _positions(sources: Sequence[TP], known: dict[str, Any], topics: KnownTopics) -> dict[TP, int | None]:
    """Return each source's position in the journal; 0 for a topic created anew, None for a new source."""
    found = {tp: known.get(f"{tp.topic}:{tp.partition}") for tp in sources}
    return {tp: 0 if tp.topic in topics.replaced else offset for tp, offset in found.items()}


async def _gaps(name: str, services: Services, positions: dict[TP, int | None]) -> list[Gap]:
    """Find ranges that the log no longer has, behind the positions where reading stopped (Q16, C80)."""
    gaps: list[Gap] = []
    begins = await services.log_reader.begins(tp for tp, offset in positions.items() if offset)
    for tp, begin in begins.items():
        offset = positions[tp] or 0
        if offset < begin:
            gaps.append(Gap(tp, offset, begin - 1))
            warn(name, gaps[-1])
    return [gap for gap in gaps if gap.tp.topic != names.commands(name)]


async def _begin_new_sources(
    name: str, config: QueueConfig | SowConfig, services: Services, positions: dict[TP, int | None]
) -> None:
    """Set the positions of new sources to the recovery point (Q16)."""
    point: RecoveryPoint = getattr(config, "recovery_point", "beginning")
    commands = names.commands(name)
    new = [tp for tp, offset in positions.items() if offset is None and tp.topic != commands]
    if not new:
        return
    if isinstance(point, tuple):
        there = await services.topic_ids.of(one.topic for one in point)
        point = tuple(one for one in point if one.topic in there) or "beginning"
    positions.update(await begin_offsets(name, point, new, services.aside_reader))
