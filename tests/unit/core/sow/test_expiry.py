"""The deadline index against a sorted list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.lifetime import NEVER
from lapse.core.sow.records.record import Facts, pack
from lapse.core.sow.removal import expiry
from lapse.core.sow.removal.expiry import DeadlineIndex
from lapse.core.sow.step import Step
from unit.core.sow.make import Arrived, Desk, T, shard_of


def entry(deadline):
    return pack(Facts(deadline, 0, 0, 0, 0, 0), b"", b"")


DEADLINES = st.integers(0, 5000) | st.sampled_from([NEVER, 1 << 40, 700, 1500])
MOVES = st.one_of(
    st.tuples(st.just("put"), st.sampled_from("abcdef"), DEADLINES),
    st.tuples(st.just("drop"), st.sampled_from("abcdef"), st.just(0)),
    st.tuples(st.just("due"), st.just(""), st.integers(0, 1500)),
    st.tuples(st.just("rebuild"), st.just(""), st.just(0)),
)


@pytest.mark.feature("L10", "L11")
@given(st.lists(MOVES, max_size=40), st.sampled_from([0, 3, 1 << 16]), st.integers(1, 3), st.integers(1, 3))
def test_due_records_are_found_in_order_and_once(moves, slack, limit, moved):
    before = expiry._SLACK, expiry._MOVED_AT_ONCE
    expiry._SLACK, expiry._MOVED_AT_ONCE = slack, moved
    try:
        entries: dict[bytes, bytes] = {}
        index = DeadlineIndex(entries)
        deadlines: dict[bytes, int] = {}
        now = 0
        for what, name, number in moves:
            key = name.encode()
            if what == "put":
                entries[key] = entry(number)
                index.add(key, number, deadlines.get(key, NEVER))
                deadlines[key] = number
            elif what == "drop":
                deadlines.pop(key, None)
                entries.pop(key, None)
            elif what == "rebuild":
                index.rebuild()
            else:
                now += number
                found, more = index.due(now, limit)
                expected = sorted(instant for instant in deadlines.values() if instant <= now)
                assert [deadlines[key] for key in found] == expected[: len(found)]
                assert more or len(found) == len(expected)
                assert len(found) <= limit
                for key in found:
                    del deadlines[key]
                    del entries[key]
                turns = 0
                while more:
                    turns += 1
                    assert turns < 200
                    found, more = index.due(now, limit)
                    assert len(found) <= limit
                    assert [deadlines[key] for key in found] == sorted(deadlines.values())[: len(found)]
                    for key in found:
                        del deadlines[key]
                        del entries[key]
                assert all(instant > now for instant in deadlines.values())
            for later in (0, 1, 700, 3_000):
                assert index.count_due(now + later) == sum(at <= now + later for at in deadlines.values())
            due = index.next_due_ms()
            instants = [instant for instant in deadlines.values() if instant != NEVER]
            if instants:
                assert due is not None
                assert due <= min(instants)
    finally:
        expiry._SLACK, expiry._MOVED_AT_ONCE = before


@pytest.mark.slow
def test_an_index_that_is_mostly_out_of_date_is_built_anew():
    shard = shard_of(3_600_000)
    for turn in range(200):
        rows = [Arrived(turn, T + turn * 10_000, b"k%d" % n, b"") for n in range(1000)]
        shard.arrive("t", 0, rows, Step())
    assert shard.state.deadlines._filed <= 2 * 1000 + expiry._SLACK


@pytest.mark.feature("S4", "L11")
def test_many_records_of_one_millisecond_leave_in_steps():
    shard = shard_of(10)
    shard.arrive("t", 0, [Arrived(n, T + n // 100, b"%d" % n, b"") for n in range(1000)], Step())
    sizes = []
    more = True
    while more:
        more = shard.advance(T + 100, step := Step(), limit=250)
        sizes.append(len(step.state_deletes))
    assert sum(sizes) == 1000
    assert max(sizes) <= 250


@pytest.mark.feature("L11")
def test_records_that_share_a_millisecond_leave_in_parts() -> None:
    desk = Desk(shard_of())
    for number in range(25):
        desk.put(f"k{number}", {}, 0, lapse_expires_at_ms=T + 100)
    gone = []
    more = True
    while more:
        step = Step()
        more = desk.shard.advance(T + 100, step, limit=10)
        gone.append(sum(value is None for value in step.changes.values()))
    assert gone == [10, 10, 5]
    assert desk.shard.next_due_ms() == NEVER


@pytest.mark.feature("L11", "X7")
def test_a_record_that_is_filed_repeatedly_under_a_millisecond_leaves_once() -> None:
    """A deadline that moved away and back is filed again, and a part of the millisecond's keys may be due."""
    desk = Desk(shard_of())
    for _ in range(3):
        desk.put("k", {}, 0, lapse_expires_at_ms=T + 3_000)
        desk.put("k", {}, 0, lapse_ttl_ms=0)
    desk.put("k", {}, 0, lapse_expires_at_ms=T + 3_000)
    desk.shard.advance(T + 3_000, step := Step(), limit=2)
    assert list(step.changes.values()) == [None]
    assert desk.shard.next_due_ms() == NEVER


@pytest.mark.feature("L11")
def test_deadlines_that_have_moved_are_passed_over_once() -> None:
    desk = Desk(shard_of())
    for number in range(500):
        desk.put(f"k{number}", {}, 0, lapse_expires_at_ms=T + 100)
    desk.advance(99)
    for number in range(499):
        desk.put(f"k{number}", {}, 99, lapse_ttl_ms=0)
    assert desk.shard.next_due_ms() == T + 100
    assert desk.shard.state.deadlines._filed < 100
    desk.advance(100)
    assert set(desk.compacted) == {b"k%d" % number for number in range(499)}
