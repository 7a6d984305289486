"""The number of live messages of each underlying topic (C65)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from lapse.core.portions import in_lots
from lapse.core.queue.life.message_state import LIVE
from lapse.core.queue.state import QueueState


def count_live(state: QueueState) -> Iterator[Counter[str]]:
    """Yield numbers of live messages by topic, a part of the shard at a time; together they are all.

    Scheduled messages and pending dead letters count as well. The shard may go on between two parts, so that what
    arrives or leaves meanwhile may be counted or not. What only changes its state is counted at least once: scheduled
    messages get places, and those of refused letters lose them.
    """
    sources = state.sources
    scheduled = Counter[str]()
    for number, source in enumerate(sources):
        scheduled[source.topic] += state.scheduled.count(number)
    yield scheduled
    for index in list(state.segments):
        if index not in state.segments or not state.outline(index).occupied:
            continue
        segment, part = state.segments.look(index), Counter[str]()
        live_before = np.concatenate([[0], np.cumsum(np.isin(segment.state, LIVE))])
        for run in segment.runs:
            part[sources[run.source].topic] += int(live_before[run.slot + run.count] - live_before[run.slot])
        yield part
    for lot in in_lots(list(state.pending)):
        yield Counter(sources[number].topic for number, _ in lot)
