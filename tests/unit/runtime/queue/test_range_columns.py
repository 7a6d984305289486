"""Events about many messages are packed in columns, byte for byte like others (D4)."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.core.generation import MOST_GENERATIONS, position_of
from lapse.core.queue.step import Messages
from lapse.core.shard.event import EventKind, ShardEvent
from lapse.protocol import event as events
from lapse.runtime.queue import output as outputs
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.shard import output as shard_output

REWOUND = st.builds(position_of, st.integers(0, 2**40), st.integers(1, MOST_GENERATIONS))
OFFSETS = st.lists(
    st.integers(0, 300) | st.integers(0, 2**45) | REWOUND,
    min_size=1,
    max_size=40,
    unique=True,
).map(sorted)
SOURCES = st.tuples(st.sampled_from(["orders", "a", "x" * 200]), st.sampled_from([0, 1, 64, 2**31 - 1]))


@pytest.mark.feature("D4")
@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(SOURCES, OFFSETS), min_size=1, max_size=4), st.sampled_from([1, 3, 1_000]))
@pytest.mark.slow
def test_ranges_in_columns_are_those_of_objects(
    some: list[tuple[tuple[str, int], list[int]]], ranges_per_event: int
) -> None:
    messages = [
        Messages(*source, np.array(offsets, np.int64), None, np.ones(len(offsets), np.uint32), None)
        for source, offsets in some
    ]
    happened = [ShardEvent(EventKind.ACKNOWLEDGED, 1_000, one, subscription="inky") for one in messages]
    output = QueueOutput("orders", 3, 7, "dlq.orders", 1)
    with mock.patch.object(shard_output, "_RANGES_PER_EVENT", ranges_per_event):
        with mock.patch.object(outputs, "_MANY", 1):
            in_columns = output.events(happened, [])
        with mock.patch.object(outputs, "_MANY", 1 << 30):
            assert in_columns == output.events(happened, [])
    emitted = [event.messages for event in (events.decode(one.value or b"") for one in in_columns)]
    assert sum(map(len, (part for parts in emitted for part in parts))) == sum(len(offsets) for _, offsets in some)
