"""Several partitions in one order: by stamps, without ever leaving a partition's own order (C33, C46)."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from faust.types import TP
from hypothesis import given
from hypothesis import strategies as st

from lapse.runtime.shard.merged_order import MergedOrder


class Stamped(NamedTuple):
    offset: int
    timestamp: int


A, B, C = (TP("t", number) for number in range(3))


def inbox(*stamps: Sequence[Sequence[int]]) -> dict[TP, deque[Sequence[Stamped]]]:
    """Batches of stamps by partition."""
    filled: dict[TP, deque[Sequence[Stamped]]] = {}
    for number, batches in enumerate(stamps):
        offset = 0
        kept: deque[Sequence[Stamped]] = deque()
        for batch in batches:
            kept.append([Stamped(offset + place, stamp) for place, stamp in enumerate(batch)])
            offset += len(batch)
        filled[TP("t", number)] = kept
    return filled


def flat(runs: list[tuple[TP, list[Stamped]]]) -> list[tuple[int, int]]:
    return [(tp.partition, record.timestamp) for tp, records in runs for record in records]


@pytest.mark.feature("C33", "C46")
def test_stamps_decide_then_partitions() -> None:
    waiting = inbox([[1, 5], [9]], [[1, 2], [5, 6]])
    assert flat(MergedOrder().take(waiting, [], 100)) == [(0, 1), (1, 1), (1, 2), (0, 5), (1, 5), (1, 6), (0, 9)]
    assert not any(waiting.values())


@pytest.mark.feature("C33")
def test_what_a_partition_still_has_to_send_holds_the_later_ones_back() -> None:
    waiting = inbox([[10, 20, 30]], [[15]], [[]])
    assert MergedOrder().take(waiting, [B, C], 100) == []
    assert flat(MergedOrder().take(waiting, [B], 100)) == [(0, 10), (1, 15)]
    assert [len(batch) for batch in waiting[A]] == [2]


@pytest.mark.feature("C33", "C6")
def test_a_stamp_before_its_predecessors_leaves_the_log_order_alone() -> None:
    order = MergedOrder()
    waiting = inbox([[20, 10]], [[5], [15]])
    assert flat(order.take(waiting, [], 3)) == [(1, 5), (1, 15), (0, 20)]
    waiting[B].append([Stamped(2, 19)])
    assert flat(order.take(waiting, [], 100)) == [(1, 19), (0, 10)]


@given(
    st.lists(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), max_size=4), min_size=3, max_size=3),
    st.integers(1, 5),
)
def test_every_record_comes_once_and_in_its_partitions_order(stamps: list[list[list[int]]], limit: int) -> None:
    waiting = inbox(*stamps)
    expected = {tp: [record for batch in batches for record in batch] for tp, batches in waiting.items()}
    got: dict[TP, list[Stamped]] = {tp: [] for tp in waiting}
    order = MergedOrder()
    while runs := order.take(waiting, [], limit):
        assert sum(len(records) for _, records in runs) <= limit
        for tp, records in runs:
            got[tp] += records
    assert got == expected
