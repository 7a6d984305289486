"""A scheduled message's place is decided by its instant, however late the worker is (C11, C76)."""

from __future__ import annotations

import pytest

from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from unit.core.queue.world import published

T0 = 1_000_000
LATE = T0 + 60_000


def offsets(shard: QueueShard) -> list[int]:
    return [one.offset for one in shard.peek(0, 100)]


@pytest.mark.feature("C76", "C11")
def test_what_is_stamped_after_the_instant_comes_behind_it_in_whatever_pieces_it_is_read() -> None:
    records = [
        published(0, timestamp=T0, enqueue_at_ms=T0 + 1_000),
        published(1, timestamp=T0 + 10),
        published(2, timestamp=T0 + 20, enqueue_at_ms=T0 + 500),
        published(3, timestamp=T0 + 999),
        published(4, timestamp=T0 + 1_000),
        published(5, timestamp=T0 + 1_700),
        published(6, timestamp=T0 + 1_800, enqueue_at_ms=LATE + 1),
    ]
    for cut in range(len(records) + 1):
        shard = QueueShard(QueueSettings(name="orders"))
        step = Step()
        shard.arrive("orders", 0, records[:cut], step, LATE)
        shard.arrive("orders", 0, records[cut:], step, LATE)
        shard.advance(LATE, step)
        assert offsets(shard) == [1, 2, 3, 0, 4, 5, 6], cut
        assert shard.depth()["scheduled"] == 1


@pytest.mark.feature("C76", "C6")
def test_a_stamp_ahead_of_the_clock_makes_nothing_come_early() -> None:
    shard, step = QueueShard(QueueSettings(name="orders")), Step()
    shard.arrive("orders", 0, [published(0, timestamp=T0, enqueue_at_ms=T0 + 1_000)], step, T0)
    shard.arrive("orders", 0, [published(1, timestamp=T0 + 3_600_000)], step, T0 + 999)
    assert shard.depth()["scheduled"] == 1
    assert offsets(shard) == [1, 0]
