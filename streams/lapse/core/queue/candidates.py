"""Candidates: the messages that can be delivered next, in their order, and who held them last (Q3, C49)."""

from __future__ import annotations

import numpy as np

from lapse.core.queue.segment import AVAILABLE, NOBODY, SIZE
from lapse.core.queue.state import QueueState


def available(state: QueueState, limit: int, now_ms: int) -> list[int]:
    """The first places that can be delivered, in order, at most `limit`; `now_ms` < 0 = deadlines do not count."""
    found: list[int] = []
    for segment in state.with_available():
        if now_ms >= 0 and segment.is_late(now_ms):
            continue  # a crowd that is leaving: not each of them again for every delivery (C60)
        free = segment.state[: segment.used] == AVAILABLE
        if now_ms >= 0 and segment.min_deadline_ms <= now_ms and segment.deadline_ms is not None:
            free &= segment.deadline_ms[: segment.used] > now_ms
        slots = np.flatnonzero(free)[: limit - len(found)]
        found.extend((slots + segment.base).tolist())
        if len(found) >= limit:
            break
    return found


def last_holders(state: QueueState, places: list[int]) -> list[int] | None:
    """Who held each of some available messages last, `NOBODY` without one; None if nobody held any (C49)."""
    came_back = state.index.came_back
    if not came_back:
        return None
    at = np.array(places, np.int64)
    indexes = at // SIZE
    holders = np.full(len(at), NOBODY, np.int32)
    for index in came_back.intersection(np.unique(indexes).tolist()):
        segment = state.segments.look(index)
        if segment.holder is None or not segment.came_back.any():
            came_back.discard(index)
            continue
        mine = indexes == index
        holders[mine] = segment.holder[at[mine] - segment.base]
    return holders.tolist() if (holders != NOBODY).any() else None
