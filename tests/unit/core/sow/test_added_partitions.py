"""Partitions that a SOW topic's topic has got: updates of one key may stand on an old and on a new one (C81, C46)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.core.sow.make import Desk, shard_of


def desk_of() -> Desk:
    return Desk(shard_of(60_000, added_partitions=True))


@pytest.mark.feature("C81", "C46")
def test_the_later_stamp_is_the_latest_then_the_partition_and_within_one_the_log() -> None:
    desk = desk_of()
    for at, partition, number in [(10, 2, 1), (9, 0, 2), (10, 0, 3)]:
        desk.put("k", {"n": number}, at, partition=partition)
    assert desk.select(20) == [{"n": 1}]
    for at, partition, number in [(11, 0, 4), (5, 0, 5)]:
        desk.put("k", {"n": number}, at, partition=partition)
    assert desk.select(20) == [{"n": 5}]


@pytest.mark.feature("C81", "C46", "S3")
def test_an_older_update_on_the_other_partition_revives_nothing_over_a_crash_either() -> None:
    desk = desk_of()
    desk.put("k", {"n": 1}, 10, partition=0)
    desk.put("k", None, 20, partition=2)
    desk.put("k", {"n": 2}, 15, partition=0)
    assert desk.select(21) == []
    desk.crash(21)
    desk.put("k", {"n": 2}, 15, partition=0)
    assert desk.select(22) == []
    desk.put("k", {"n": 3}, 25, partition=0)
    assert desk.select(26) == [{"n": 3}]


@pytest.mark.feature("C46", "C81", "S3")
def test_a_delete_by_command_forgets_no_later_removal() -> None:
    desk = desk_of()
    desk.put("k", {"n": 1}, 10, partition=0)
    desk.put("k", None, 30, partition=2)
    desk.ask("sow_delete", 20, timely=False, keys=(b"k",))
    desk.crash(31)
    desk.put("k", {"n": 2}, 25, partition=0)
    assert desk.select(40) == []
    desk.put("k", {"n": 3}, 35, partition=0)
    assert desk.select(40) == [{"n": 3}]


@pytest.mark.feature("C81", "S4")
def test_what_expired_is_not_revived_by_what_was_written_before() -> None:
    desk = desk_of()
    desk.put("k", {"n": 1}, 10, partition=2, lapse_ttl_ms=5)
    desk.advance(16)
    desk.put("k", {"n": 0}, 9, partition=0)
    assert desk.select(17) == []


@pytest.mark.feature("C81", "C88")
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.booleans()), max_size=8),
    st.randoms(use_true_random=False),
)
def test_the_latest_is_the_same_however_partitions_take_turns(updates, random) -> None:
    found = []
    for _ in range(2):
        desk = desk_of()
        left = {partition: [one for one in enumerate(updates) if one[1][0] == partition] for partition in range(3)}
        while any(left.values()):
            partition = random.choice([partition for partition, some in left.items() if some])
            number, (_, at, deletes) = left[partition].pop(0)
            desk.put("k", None if deletes else {"n": number}, at, partition=partition)
        found.append(desk.select(40))
    assert found[0] == found[1]
