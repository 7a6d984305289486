"""What a queued message costs, and what comes back of a segment."""

import sys
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.lifetime import NEVER, Expiration
from lapse.core.queue.journal.packed_segment import decode, encode
from lapse.core.queue.segments.segment import AVAILABLE, EXPIRED, GONE, LEASED, SIZE, Run, Segment, State
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step

OWN_BYTES = 1 << 20  # of a shard, whatever it holds
COUNT, BATCH, NOW_MS = 200_000, 10_000, 1_700_000_000_000


def filled(ttl: bool) -> tuple[QueueShard, int, int]:
    """A shard with many messages, and by how many bytes the process grew for the first half, and for the second."""
    shard = QueueShard(QueueSettings(name="orders", expiration=Expiration(enabled=True)))
    lifetimes = [[("lapse-ttl-ms", b"%d" % (60_000 + number))] if ttl else [] for number in range(7)]
    records = [
        SimpleNamespace(offset=offset, timestamp=NOW_MS, headers=lifetimes[offset % 7], key=None, value=b"")
        for offset in range(BATCH)
    ]
    tracemalloc.start()
    half = 0
    for first in range(0, COUNT, BATCH):
        if first == COUNT // 2:
            half, _ = tracemalloc.get_traced_memory()
        shard.arrive("orders", 0, records, Step())
        for record in records:
            record.offset += BATCH
            record.timestamp += 10
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return shard, half, grown - half


@pytest.mark.slow
@pytest.mark.feature("Q1")
@pytest.mark.parametrize(("ttl", "most"), [(False, 2), (True, 10)])
def test_a_queued_message_takes_few_bytes(ttl: bool, most: int) -> None:
    shard, half, grown = filled(ttl)
    columns = sum(
        sys.getsizeof(column)
        for segment in shard.state.segments.values()
        for column in (segment.state, segment.deliveries, segment.deadline_ms, segment.cancels, segment.holder)
        if column is not None and column.flags.writeable
    )
    assert shard.depth()["available"] == COUNT
    assert columns / COUNT <= most
    assert grown / (COUNT - COUNT // 2) <= most
    assert half <= most * (COUNT // 2) + OWN_BYTES


@st.composite
def segments(draw) -> Segment:
    segment = Segment(draw(st.integers(0, 1 << 40)))
    segment.used = used = draw(st.sampled_from([0, 1, 7, SIZE]))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    states = draw(st.lists(st.sampled_from(State), min_size=1, unique=True))
    segment.state[:used] = random.choice(states, used)
    if draw(st.booleans()):
        segment.delivery_counts()[:used] = random.integers(0, 1 << 20, used)
    if draw(st.booleans()):
        segment.deadlines()[:used] = random.integers(0, 1 << 62, used)
    if draw(st.booleans()):
        segment.cancel_counts()[:used] = random.integers(0, 1 << 20, used)
    if {State.LEASED, State.SENT, State.DELAYED}.intersection(states):
        holder, until_ms = segment.leases()
        holder[:used] = np.where(np.isin(segment.state[:used], (State.LEASED, State.SENT)), 5, -1)
        until_ms[:used] = random.integers(1, 1 << 62, used)
    if used:
        segment.runs = [Run(0, 3, 1 << 33, used)]
    segment.recount()
    return segment


@pytest.mark.feature("Q16")
@given(segments())
def test_a_segment_comes_back_as_it_was(segment: Segment) -> None:
    again = decode(encode(segment))
    assert encode(again) == encode(segment)
    for name in ("index", "used", "occupied", "available", "min_deadline_ms", "min_until_ms", "runs", "base"):
        assert getattr(again, name) == getattr(segment, name), name
    assert (again.deliveries == segment.deliveries).all()
    bound = np.isin(segment.state, (State.LEASED, State.SENT, State.DELAYED))
    if bound.any():
        assert (again.until_ms[bound] == segment.until_ms[bound]).all()
        assert (again.holder[bound] == segment.holder[bound]).all()


@pytest.mark.feature("Q1", "Q16")
def test_counts_are_kept_and_journaled_from_the_first_delivery_on() -> None:
    one, other = Segment(0), Segment(1)
    one.used = other.used = SIZE
    waiting = len(encode(one))
    one.delivery_counts()[3] += 1
    assert len(encode(one)) == waiting + 4 * SIZE
    assert decode(encode(one)).deliveries[3] == 1
    assert not other.deliveries.any()
    with pytest.raises(ValueError, match="read-only"):
        other.deliveries[3] = 1


def test_a_new_segment_has_nothing_and_is_not_done_with() -> None:
    new = Segment(3)
    assert (new.used, new.occupied, new.available, new.best_key(), new.is_droppable) == (0, 0, 0, None, False)
    assert encode(decode(encode(new))) == encode(new)


@pytest.mark.feature("Q16")
def test_a_segment_of_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format 9; this version of lapse reads format 1"):
        decode(b"\x09" + encode(Segment(0))[1:])


@pytest.mark.feature("L11")
def test_the_first_message_that_is_there_is_found_however_the_others_leave() -> None:
    segment = Segment(0)
    assert segment.first_there() == 0
    segment.state[:3], segment.used = AVAILABLE, 3
    assert segment.first_there() == 0
    segment.state[1] = GONE
    assert segment.first_there() == 0
    segment.state[0] = EXPIRED
    assert segment.first_there() == 2
    segment.state[2] = GONE
    assert segment.first_there() == 3
    segment.state[3:5], segment.used = LEASED, 5
    segment.until_ms = np.arange(SIZE) + 1_000
    segment.find_min_until()
    assert (segment.first_there(), segment.min_until_ms) == (3, 1_003)
    segment.state[3:SIZE], segment.used = GONE, SIZE
    segment.find_min_until()
    assert (segment.first_there(), segment.min_until_ms) == (SIZE, NEVER)
