"""A peek shows the first scheduled messages, and does not sort the crowd behind them (Q15, C11, C60)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from unit.core.queue.compared.written import published

T0 = 1_000_000


@pytest.mark.feature("Q15", "C11", "C60")
@given(
    instants=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 4)), max_size=12),
    skip=st.integers(0, 13),
    limit=st.integers(0, 13),
)
def test_a_part_of_them_is_that_part_of_all(instants: list[tuple[str, int]], skip: int, limit: int) -> None:
    shard = QueueShard(QueueSettings(name="orders"))
    named: list[tuple[int, str, int]] = []
    for topic in "ba":
        mine = [after for one, after in instants if one == topic]
        records = [published(at, timestamp=T0, enqueue_at_ms=T0 + after) for at, after in enumerate(mine)]
        shard.arrive(topic, 0, records, Step())
        named += [(after, topic, at) for at, after in enumerate(mine)]
    expected = [(topic, offset) for _, topic, offset in sorted(named)]
    shown = [(one.topic, one.offset) for one in shard.peek(skip, limit)]
    assert shown == expected[skip : skip + limit]
