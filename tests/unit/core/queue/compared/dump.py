"""The state of a shard in bytes, to compare two of them."""

from __future__ import annotations

from functools import cache

import numpy as np

from lapse.core.lifetime import NEVER
from lapse.core.queue.segments.segment import State
from lapse.core.queue.state import QueueState

STATES = {
    State.AVAILABLE: "available",
    State.LEASED: "leased",
    State.DELAYED: "delayed",
    State.SENT: "sent",
    State.TRANSFERRING: "transferring",
}


def _among(*wanted: State) -> np.ndarray:
    return np.isin(np.arange(max(State) + 1), wanted)


LIVE = _among(*STATES)
_BOUND = _among(State.LEASED, State.DELAYED, State.SENT, State.TRANSFERRING)
_HELD = _among(State.AVAILABLE, State.LEASED, State.SENT, State.TRANSFERRING)


@cache
def _constant(count: int, value: int) -> bytes:
    return np.full(count, value, np.int64).tobytes()


def dump(state: QueueState) -> bytes:
    """Return everything on which a shard's future depends, except when its subscriptions were last heard of."""
    parts: list[object] = [
        state.next_place,
        state.subscription_table.next_number,
        state.paused,
        [(source.topic, source.partition, source.next_offset) for source in state.sources],
        sorted(state.scheduled.items()),
        sorted(state.remembered),
        sorted(state.ending.entries()),
        sorted(state.repeats.chunks.items()),
        sorted(state.counted.batches.items()),
        sorted(state.pending.items()),
        sorted((one.id, one.number, one.target, one.confirmed) for one in state.transfers),
        [one.facts() for one in state.rewinds],
        sorted((name, one.facts()["elsewhere"], one.facts()["never"]) for name, one in state.rewinds.departed.items()),
        [
            (s.id, s.number, s.client, s.max_backlog, s.heartbeat_timeout_ms, s.filter, s.payload, s.outstanding)
            for s in state.subscriptions.values()
        ],
    ]
    for index in sorted(state.segments):
        segment = state.segments.look(index)
        column = segment.state[: segment.used]
        live, bound, held = LIVE[column], _BOUND[column], _HELD[column]

        def some(values: np.ndarray | None, where: np.ndarray, otherwise: int) -> bytes:
            if values is None:
                return _constant(np.count_nonzero(where), otherwise)
            return values[: len(where)][where].astype(np.int64).tobytes()

        runs = [tuple(run) for run in segment.runs]
        parts.append((index, segment.used, segment.occupied, segment.available, runs, column.tobytes()))
        parts += [
            some(segment.deadline_ms, live, NEVER),
            some(segment.deliveries, live, 0),
            some(segment.cancels, live, 0),
            some(segment.holder, held, -1),
            some(segment.until_ms, bound, 0),
            some(segment.ranks, live, 0),
            some(segment.flags, live, 0),
            some(segment.groups, live, 0),
            some(segment.retries, live, -1),
        ]
    return repr(parts).encode()
