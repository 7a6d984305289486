"""Places in the journal: ranges, or bits where these are shorter; a step takes a bit for each message at most."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lapse.core.queue.change import join_places
from lapse.core.queue.journal.places import pack, size_of, unpack
from lapse.core.queue.journal.queue_journal import QueueJournal
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.settings import Fairness, Leasing, QueueSettings
from lapse.core.queue.settlement.settlement import Claim, SettleAction
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step


@given(st.sets(st.integers(0, 60)))
def test_places_are_joined_as_if_one_by_one(some: set[int]) -> None:
    places = sorted(some)
    ranges: list[tuple[int, int]] = []
    for place in places:
        if ranges and sum(ranges[-1]) == place:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
        else:
            ranges.append((place, 1))
    assert join_places(places) == join_places(np.array(places, np.int64)) == ranges
    assert all(type(number) is int for one in join_places(np.array(places, np.int64)) for number in one)


@settings(deadline=None)
@example([(1, 1)] * 20_000, 0)
@given(
    st.lists(st.tuples(st.sampled_from([1, 1, 1, 2, 30, 5_000]), st.sampled_from([1, 1, 1, 2, 9])), max_size=200),
    st.integers(0, 10_000),
)
def test_what_is_unpacked_is_what_was_packed(pieces: list[tuple[int, int]], first: int) -> None:
    places, at = [], first
    for gap, count in pieces:
        places.append((at + gap, count))
        at += gap + count
    packed, as_bits = pack(places)
    assert unpack(packed, as_bits) == join_places(
        [place for start, count in places for place in range(start, start + count)]
    )
    assert len(packed) <= max(size_of(places), 2 * 1040)


@pytest.mark.feature("Q8", "Q16", "X7")
def test_a_range_of_which_every_other_message_is_settled_takes_a_bit_for_each_in_the_journal() -> None:
    """Two strict subscribers share a queue in turn, and one of them acknowledges the whole of it."""
    count = 40_000
    shard = QueueShard(QueueSettings(name="orders", leasing=Leasing.STRICT, fairness=Fairness.ROUND_ROBIN))
    journal = QueueJournal(shard.state, 1)
    log = dict(journal.begin())
    step = Step()
    for name in ("inky", "blinky"):
        shard.subscribing.subscribe(name, "", count, 60_000, "", 1_000, step)
    shard.arrive("orders", 0, [SimpleNamespace(offset=at, timestamp=1, headers=[]) for at in range(count)], step)
    log.update(journal.encode(step))
    while shard.depth()["available"]:
        step = Step()
        shard.deliver(1_000, step)
        log.update(journal.encode(step))
    step = Step()
    outcomes = shard.settle(SettleAction.ACKNOWLEDGE, "inky", [Claim("orders", 0, 0, count - 1)], 1_001, step)
    assert len(outcomes) == count, "settled, not_holder, settled, …"
    items = journal.encode(step)
    assert sum(len(key) + len(value or b"") for key, value in items) < count // 8 + 100 * (count // 4_096 + 2)
    log.update(items)
    restored = restore((key, value) for key, value in log.items() if value is not None).state
    assert {name: one.outstanding for name, one in restored.subscriptions.items()} == {"inky": 0, "blinky": count // 2}
    states = [segment.state[: segment.used].tolist() for segment in restored.segments.values()]
    assert states == [segment.state[: segment.used].tolist() for segment in shard.state.segments.values()]


@pytest.mark.feature("Q16", "X7")
@pytest.mark.parametrize(("count", "bits"), [(4_096, True), (4_097, False), (20_000, False)])
def test_a_long_range_among_many_short_ones_comes_back_whole(count: int, bits: bool) -> None:
    places = [(2 * number, 1) for number in range(2_000)] + [(8_192, count)]
    packed, as_bits = pack(places)
    assert as_bits is bits
    assert unpack(packed, as_bits) == places


@pytest.mark.feature("Q16", "X7")
def test_places_that_lie_far_apart_take_no_more_as_bits_than_as_ranges() -> None:
    places = [(10_000 * number, 1) for number in range(200)]
    packed, as_bits = pack(places)
    assert len(packed) == size_of(places) == 16 * 200
    assert unpack(packed, as_bits) == places


@pytest.mark.feature("Q16", "X7")
def test_the_bound_of_a_size_counts_the_blocks_that_places_span() -> None:
    """Eleven blocks and one more at each end, wherever the places begin."""
    places = [(50_000 + 2 * number, 1) for number in range(20_000)] + [(90_000, 11 * 4_096 - 40_000)]
    assert size_of(places) == (11 + 2) * (8 + 4_096 // 8)
    assert size_of([*places[:-1], (90_000, 11 * 4_096 - 40_001)]) == (10 + 2) * (8 + 4_096 // 8)
    assert size_of([]) == 0
