"""The scheduled messages of a shard, found by range, whatever order they come and go in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.queue.inquiry.live_topics import count_live
from lapse.core.queue.schedule import scheduled_messages as module
from lapse.core.queue.schedule.scheduled import Scheduled
from lapse.core.queue.schedule.scheduled_messages import ScheduledMessages
from lapse.core.queue.state import QueueState

SOURCES, OFFSETS = st.integers(0, 1), st.integers(0, 12)


@pytest.mark.feature("L5", "C16")
@given(st.lists(st.tuples(st.booleans(), SOURCES, OFFSETS)), SOURCES, OFFSETS, OFFSETS)
def test_a_range_finds_what_is_there_in_order_and_once(moves: list, source: int, first: int, last: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SLACK", 2)
        patch.setattr(module, "_BLOCK", 5)
        messages, naive = ScheduledMessages(), dict[tuple[int, int], Scheduled]()
        for number, (comes, of, offset) in enumerate(moves):
            if comes:
                messages.add(of, offset, Scheduled(number, 1_000))
                naive[of, offset] = Scheduled(number, 1_000)
            else:
                messages.discard(of, offset)
                naive.pop((of, offset), None)
            for one, blocks in messages._blocks.items():
                for block_number, block in blocks.items():
                    live = sum(of == one and offset // 5 == block_number for of, offset in naive)
                    assert 0 < live == block.count <= len(block.offsets) <= 3 * live + 3, "a leak"
        assert dict(messages.items()) == naive
        assert len(messages) == len(naive)
        assert list(messages.between(source, first, last)) == sorted(
            offset for of, offset in naive if of == source and first <= offset <= last
        )
        for name in ((source, first), (source, last)):
            assert (name in messages) == (name in naive)
            assert messages.get(*name) == naive.get(name)


@pytest.mark.feature("C60")
def test_no_message_that_leaves_has_the_others_looked_through() -> None:
    class Counting(dict):
        looked = 0

        def __contains__(self, name: object) -> bool:
            Counting.looked += 1
            return super().__contains__(name)

    messages, count, most = ScheduledMessages(), 20_000, 0
    messages._by_source_offset = Counting()
    for offset in range(count):
        messages.add(0, offset, Scheduled(1, 1_000))
    for offset in range(count):
        Counting.looked = 0
        messages.discard(0, offset)
        most = max(most, Counting.looked)
    assert not list(messages.between(0, 0, count))
    assert most <= 4_096


@pytest.mark.feature("C65", "C27")
def test_a_message_whose_letter_is_refused_while_live_ones_are_counted_is_among_them() -> None:
    """Its place may be counted after it has left that."""
    state = QueueState()
    number = state.sources.number("a", 0)
    parts = count_live(state)
    found = next(parts)
    state.pending[number, 7] = None
    assert sum(parts, found)["a"] == 1
