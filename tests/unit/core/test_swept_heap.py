"""Heaps of scheduled messages: in order, and without memory for what was withdrawn (L5, C60)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core import swept_heap
from lapse.core.lifetime import NEVER
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement.settlement import Claim, SettleAction
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.core.record import RewoundRecord
from lapse.core.sow.updates.version import Schedule, Version, journal_key
from lapse.core.swept_heap import SweptHeap
from lapse.protocol import header

FAR_MS = 1 << 41


@pytest.mark.feature("L5", "C11")
@given(st.lists(st.tuples(st.sampled_from(("comes", "leaves", "is due")), st.integers(0, 20))))
def test_what_is_there_comes_out_in_order_and_what_is_gone_is_freed(moves: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(swept_heap, "_SLACK", 2)
        patch.setattr(swept_heap, "_SWEPT_AT_ONCE", 1)
        there: set[tuple[int, int]] = set()
        heap = SweptHeap[tuple[int, int]](there.__contains__)
        for number, (what, at) in enumerate(moves):
            if what == "comes":
                there.add((at, number))
                heap.push((at, number))
            elif there and what == "leaves":
                there.discard(sorted(there)[at % len(there)])
            elif there:
                while (first := heap.first) not in there:
                    assert heap.pop() == first
                assert heap.pop() == min(there) == first
                there.discard(min(there))
            heap.sweep(len(there))
            assert heap.first == min((entry for some in heap.heaps for entry in some), default=None)
            assert {entry for some in heap.heaps for entry in some} >= there
        for _ in range(4 * len(moves) + 8):
            heap.sweep(len(there))
        assert len(heap) <= 2 * len(there) + 2


@pytest.mark.slow
@pytest.mark.feature("L5", "L14", "C60")
def test_withdrawn_messages_and_updates_take_no_memory_until_their_instant() -> None:
    shard, step, count = QueueShard(QueueSettings(name="here")), Step(), 20_000
    later = [(header.ENQUEUE_AT_MS, b"%d" % FAR_MS)]
    for first in range(0, count, 1_000):
        records = [RewoundRecord(at, 1, None, b"", later) for at in range(first, first + 1_000)]
        shard.arrive("orders", 0, records, step, 1)
        claims = [Claim("orders", 0, at, at) for at in range(first, first + 1_000)]
        shard.settle(SettleAction.CANCEL, "", claims, 2, step)
    assert not shard.state.scheduled
    assert len(shard.state.agenda.to_come) < count // 2
    schedule = Schedule(True, [("prices", 0)])
    for at in range(count):
        schedule.put(journal_key(0, at), Version(FAR_MS, NEVER, 1, at, 0, False, b"key", b"", b"{}"))
        schedule.discard(journal_key(0, at))
    assert schedule.next_due() is None
    assert len(schedule._due) == 0, "asking for the next one drops all that are gone"
    for at in range(count):
        schedule.put(journal_key(0, at), Version(FAR_MS - at, NEVER, 1, at, 0, False, b"key", b"", b"{}"))
        if at:
            schedule.discard(journal_key(0, at - 1))
    assert len(schedule._due) < count // 2
