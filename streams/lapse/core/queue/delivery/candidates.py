"""Candidates: the messages that can be delivered next, in order, and their last holders (Q3, C49)."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.segments.segment import AVAILABLE, NOBODY, SIZE, Segment
from lapse.core.queue.state import QueueState

_LEAST_PART: Final = 64
"""The least number of places of a segment that are examined together; fewer would take as long."""

_FEW: Final = 16
"""Up to so many messages are looked for one by one, since a slow queue hands out few at a time."""

_AVAILABLE: Final = int(AVAILABLE)


def available(state: QueueState, limit: int, now_ms: int) -> list[int] | NDArray[np.int64]:
    """Return the first `limit` places that can be delivered, in order; many of them as an array.

    `now_ms` < 0 = deadlines do not count.
    """
    first = state.first_with_available()
    if first is None:
        return []
    if first.min_deadline_ms > now_ms and (
        limit <= min(first.available, _FEW) or (first.available <= _FEW and state.is_last(first))
    ):
        return _first_few(first, limit)  # true for most deliveries of a slow queue
    parts: list[list[int] | NDArray[np.int64]] = []
    found = 0
    for segment in state.with_available():
        if segment.min_deadline_ms > now_ms and min(segment.available, limit - found) <= _FEW:
            part: list[int] | NDArray[np.int64] = _first_few(segment, limit - found)
        elif now_ms >= 0 and segment.is_late(now_ms):
            continue  # its many expired messages are not examined again at every delivery (C60)
        else:
            part = _available_in_segment(segment, limit - found, now_ms)
        parts.append(part)
        found += len(part)
        if found >= limit:
            break
    if len(parts) == 1 and isinstance(parts[0], list):
        return parts[0]
    if found < _LEAST_PART:
        return [int(place) for part in parts for place in part]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _first_few(segment: Segment, limit: int) -> list[int]:
    """Return the first available places of a segment, at most `limit`, if no deadline has passed there."""
    states, base, slot = segment.state.tobytes(), segment.base, -1
    places: list[int] = []
    for _ in range(min(limit, segment.available)):
        slot = states.find(_AVAILABLE, slot + 1)
        places.append(base + slot)
    return places


def _available_in_segment(segment: Segment, limit: int, now_ms: int) -> NDArray[np.int64]:
    """Return the same for one segment. It is examined in growing parts until `limit` places are found."""
    free = segment.state[: segment.used] == AVAILABLE
    deadlines_ms = segment.deadline_ms if now_ms >= 0 and segment.min_deadline_ms <= now_ms else None
    first, width = int(free.argmax()), max(_LEAST_PART, limit)
    parts: list[NDArray[np.int64]] = []
    found = 0
    while first < segment.used and found < limit:
        stop = min(first + width, segment.used)
        part = free[first:stop]
        if deadlines_ms is not None:
            part = part & (deadlines_ms[first:stop] > now_ms)
        slots = np.flatnonzero(part)[: limit - found]
        parts.append(slots + (segment.base + first))
        found += len(slots)
        first, width = stop, 4 * width
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def last_holders(state: QueueState, places: list[int] | NDArray[np.int64]) -> list[int] | None:
    """Return the last holder of each available message, `NOBODY` without one; None if none has any (C49)."""
    came_back = state.index.came_back
    if not came_back:
        return None
    if len(places) <= _FEW:
        few = [_last_holder(state, int(place)) for place in places]
        return None if few.count(NOBODY) == len(few) else few
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


def _last_holder(state: QueueState, place: int) -> int:
    index, slot = divmod(place, SIZE)
    if index not in state.index.came_back:
        return NOBODY
    holder = state.segments.look(index).holder
    return NOBODY if holder is None else int(holder[slot])
