"""What was under way when processes ended: three deaths in a row with one record, and nothing less (X7)."""

from pathlib import Path

import pytest
from faust.types import TP

from lapse.runtime.shard.under_way import UnderWay

TOPIC = "orders"
HERE = TP(TOPIC, 0)


def start(directory: Path, position: int = 0) -> UnderWay:
    one = UnderWay(directory / "lapse-orders.v2-0")
    one.look({HERE: position})
    return one


def die(one: UnderWay, first: int, last: int, again: bool = False) -> None:
    """End as a process does: whatever was under way stays so."""
    with pytest.raises(MemoryError), one.noted(TOPIC, 0, first, last, again=again):
        raise MemoryError
    one.close()


@pytest.mark.feature("X7")
@pytest.mark.parametrize("again", [False, True])
def test_the_third_death_in_a_row_sets_the_record_aside(tmp_path: Path, again: bool) -> None:
    die(start(tmp_path), 0, 99, again)
    second = start(tmp_path)
    assert second.is_suspect(TOPIC, 0, 50, 60), "what was under way is taken one by one"
    assert not second.is_suspect(TOPIC, 0, 100, 200)
    assert not second.is_suspect(TOPIC, 1, 50, 60)
    with second.noted(TOPIC, 0, 16, 16, again=again):
        pass
    die(second, 17, 17, again)
    third = start(tmp_path)
    assert not third.is_set_aside(TOPIC, 0, 17)
    die(third, 17, 17, again)
    fourth = start(tmp_path)
    assert fourth.is_set_aside(TOPIC, 0, 17)
    assert not fourth.is_set_aside(TOPIC, 0, 16)
    assert fourth.is_suspect(TOPIC, 0, 0, 99)


@pytest.mark.feature("X7")
def test_kills_that_meet_other_records_or_none_set_nothing_aside(tmp_path: Path) -> None:
    for first, last in ((0, 99), (17, 17), (18, 18), (17, 17), (18, 18), (0, 99), (3, 3)):
        one = start(tmp_path)
        assert not any(one.is_set_aside(TOPIC, 0, offset) for offset in range(100))
        die(one, first, last)
    start(tmp_path).close()
    assert not any(start(tmp_path).is_set_aside(TOPIC, 0, offset) for offset in range(100))


@pytest.mark.feature("X7")
def test_what_was_taken_in_is_no_longer_suspect(tmp_path: Path) -> None:
    die(start(tmp_path), 0, 99)
    die(start(tmp_path), 17, 17)
    passed = start(tmp_path, position=100)
    assert not passed.is_suspect(TOPIC, 0, 0, 99)
    assert not list(tmp_path.glob("*.deaths"))


@pytest.mark.feature("X7")
def test_a_clean_end_leaves_nothing_and_a_new_start_forgets_what_was_only_looked_at(tmp_path: Path) -> None:
    one = start(tmp_path)
    with one.noted(TOPIC, 0, 0, 9):
        pass
    one.close()
    assert not start(tmp_path).is_suspect(TOPIC, 0, 0, 9)
    die(start(tmp_path), 0, 99, again=True)
    start(tmp_path).close()  # it ended elsewhere
    assert not start(tmp_path).is_suspect(TOPIC, 0, 0, 99)


@pytest.mark.feature("X7")
def test_a_command_that_ends_the_process_even_while_it_is_refused_is_hopeless(tmp_path: Path) -> None:
    for _ in range(4):
        die(start(tmp_path), 17, 17)
    one = start(tmp_path)
    assert one.is_set_aside(TOPIC, 0, 17)
    assert not one.is_hopeless(TOPIC, 0, 17)
    die(one, 17, 17)
    assert start(tmp_path).is_hopeless(TOPIC, 0, 17)


@pytest.mark.feature("X7", "C42")
@pytest.mark.parametrize("again", [False, True])
def test_what_has_left_is_forgotten_so_that_another_record_may_stand_there(tmp_path: Path, again: bool) -> None:
    for _ in range(3):
        die(start(tmp_path), 17, 17, again)
    assert start(tmp_path, position=17).is_set_aside(TOPIC, 0, 17)
    start(tmp_path, position=18).close()
    assert not start(tmp_path).is_set_aside(TOPIC, 0, 17), "the topic was created again"


@pytest.mark.feature("X7", "C46")
def test_what_one_shard_has_set_aside_the_others_set_aside_too(tmp_path: Path) -> None:
    for _ in range(3):
        die(start(tmp_path), 17, 17)
    start(tmp_path).close()
    other = UnderWay(tmp_path / "lapse-orders.v2-1", [tmp_path / "lapse-orders.v2-0"])
    other.look({HERE: 0})
    assert other.is_set_aside(TOPIC, 0, 17)
    assert other.is_suspect(TOPIC, 0, 0, 99)


@pytest.mark.feature("X7")
@pytest.mark.parametrize("content", [b"", b"no JSON", b"[]", b'{"marks": 1}'])
def test_damaged_files_count_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lapse-orders.v2-0.deaths").write_bytes(content)
    (tmp_path / "lapse-orders.v2-0.under-way").write_bytes(content)
    one = start(tmp_path)
    assert not one.is_suspect(TOPIC, 0, 0, 99)
    with one.noted(TOPIC, 0, 0, 9):
        pass
