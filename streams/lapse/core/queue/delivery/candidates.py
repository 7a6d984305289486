"""Candidates: the messages that can be delivered next, in order, and their last holders (Q3, C49)."""

from __future__ import annotations

from typing import Final

import numpy as np

from lapse.core.queue.segments.segment import AVAILABLE, NOBODY, SIZE, Segment
from lapse.core.queue.state import QueueState

_LEAST_PART: Final = 64
"""The least number of places of a segment that are examined together; fewer would take as long."""


def available(state: QueueState, limit: int, now_ms: int) -> list[int]:
    """Return the first `limit` places that can be delivered, in order; `now_ms` < 0 = deadlines do not count."""
    found: list[int] = []
    for segment in state.with_available():
        if now_ms >= 0 and segment.is_late(now_ms):
            continue  # its many expired messages are not examined again at every delivery (C60)
        found += _available_in_segment(segment, limit - len(found), now_ms)
        if len(found) >= limit:
            break
    return found


def _available_in_segment(segment: Segment, limit: int, now_ms: int) -> list[int]:
    """Return the same for one segment. It is examined in growing parts until `limit` places are found."""
    found: list[int] = []
    free = segment.state[: segment.used] == AVAILABLE
    deadlines_ms = segment.deadline_ms if now_ms >= 0 and segment.min_deadline_ms <= now_ms else None
    first, width = int(free.argmax()), max(_LEAST_PART, limit)
    if limit == 1 and deadlines_ms is None:  # frequent: one acknowledgment makes room in a full backlog
        return [segment.base + first]
    while first < segment.used and len(found) < limit:
        stop = min(first + width, segment.used)
        part = free[first:stop]
        if deadlines_ms is not None:
            part = part & (deadlines_ms[first:stop] > now_ms)
        found += (np.flatnonzero(part)[: limit - len(found)] + (segment.base + first)).tolist()
        first, width = stop, 4 * width
    return found


def last_holders(state: QueueState, places: list[int]) -> list[int] | None:
    """Return the last holder of each available message, `NOBODY` without one; None if none has any (C49)."""
    came_back = state.index.came_back
    if not came_back:
        return None
    at = np.array(places, np.int64)
    indexes = at // SIZE
    holders = np.full(len(at), NOBODY, np.int32)
    for index in came_back.intersection(np.unique(indexes).tolist()):
        segment = state.segments.look(index)
        if segment.holder is None or not segment.returned_mask.any():
            came_back.discard(index)
            continue
        mine = indexes == index
        holders[mine] = segment.holder[at[mine] - segment.base]
    return holders.tolist() if (holders != NOBODY).any() else None
