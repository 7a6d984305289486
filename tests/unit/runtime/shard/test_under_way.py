"""What was under way when processes ended: three deaths in a row with one record, and nothing less (X7)."""

import asyncio
import itertools
import secrets
from pathlib import Path

import pytest
from faust.types import TP

from lapse.runtime.event_loop_turns import OneByOne
from lapse.runtime.shard.under_way import UnderWay

TOPIC = "orders"
HERE = TP(TOPIC, 0)


def shard(directory: Path, number: int = 0, shards: int = 1, process: bytes | None = None) -> UnderWay:
    """A shard of a process: of a new one, unless told which."""
    return UnderWay(directory / "lapse-orders.v2", number, shards, process or secrets.token_bytes(8))


def start(directory: Path, position: int = 0) -> UnderWay:
    one = shard(directory)
    one.look({HERE: position})
    return one


def start_all(directory: Path, *positions: int) -> list[UnderWay]:
    """Start a process whose shards all read the same records, each from its own position."""
    process = secrets.token_bytes(8)
    shards = [shard(directory, number, len(positions), process) for number in range(len(positions))]
    for one, position in zip(shards, positions, strict=True):
        one.look({HERE: position})
    return shards


def die(one: UnderWay, first: int, last: int, again: bool = False) -> None:
    """End as a process does: whatever was under way stays so."""
    with pytest.raises(MemoryError), one.noted(TOPIC, 0, first, last, again=again):
        raise MemoryError
    one.close()


@pytest.mark.feature("C90", "C60")
def test_shards_whose_first_records_come_together_make_their_files_in_turns_of_their_own(tmp_path: Path) -> None:
    def files() -> int:
        return len(list(tmp_path.glob("deep/*")))

    async def longest() -> int:
        turns, made = OneByOne(), list[int]()
        shards = [UnderWay(tmp_path / "deep" / "lapse-orders.v2", number, turns=turns) for number in range(20)]
        ready = asyncio.gather(*(one.ready() for one in shards))
        while not ready.done():
            made.append(files())
            await asyncio.sleep(0)
        for one in shards:
            await one.ready()
            one.close()
        assert files() == 20
        return max(after - before for before, after in itertools.pairwise([*made, 20]))

    assert asyncio.run(longest()) == 1


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
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 1, 0)])
def test_a_death_counts_once_for_all_shards_that_read_the_record(tmp_path: Path, order: tuple[int, ...]) -> None:
    die(start_all(tmp_path, 0, 0, 0)[order[0]], 0, 99)
    second = start_all(tmp_path, 0, 0, 0)
    assert all(one.is_suspect(TOPIC, 0, 50, 60) for one in second)
    die(second[order[1]], 17, 17)
    third = start_all(tmp_path, 0, 0, 0)
    assert not any(one.is_set_aside(TOPIC, 0, 17) for one in third)
    die(third[order[2]], 17, 17)
    fourth = start_all(tmp_path, 0, 0, 0)
    assert all(one.is_set_aside(TOPIC, 0, 17) for one in fourth)
    assert not any(one.is_hopeless(TOPIC, 0, 17) for one in fourth)
    assert all(one.is_set_aside(TOPIC, 0, 17) for one in start_all(tmp_path, 0, 0, 0)), "it is still ahead of them"


@pytest.mark.feature("X7", "C46")
def test_a_start_that_ends_before_all_shards_have_looked_counts_once(tmp_path: Path) -> None:
    for first, last, at in ((0, 99, 2), (17, 17, 0), (17, 17, 1)):
        process = secrets.token_bytes(8)
        one = shard(tmp_path, at, 3, process)
        one.look({HERE: 0})
        assert not one.is_set_aside(TOPIC, 0, 17)
        die(one, first, last)
    assert all(one.is_set_aside(TOPIC, 0, 17) for one in start_all(tmp_path, 0, 0, 0))


@pytest.mark.feature("X7", "C46")
def test_a_note_of_a_shard_at_work_is_no_death_for_one_that_begins_later(tmp_path: Path) -> None:
    process = secrets.token_bytes(8)
    for _ in range(3):
        early, late = (shard(tmp_path, number, 2, process) for number in range(2))
        early.look({HERE: 0})
        with early.noted(TOPIC, 0, 17, 17):
            late.look({HERE: 0})
            assert not late.is_suspect(TOPIC, 0, 17, 17)
        early.close()
        late.close()
    assert not list(tmp_path.glob("*.deaths"))


@pytest.mark.feature("X7", "C46")
def test_what_a_shard_has_passed_stays_set_aside_for_those_that_have_not(tmp_path: Path) -> None:
    for _ in range(3):
        die(start_all(tmp_path, 0, 0)[1], 17, 17)
    before, behind = start_all(tmp_path, 18, 17)
    assert not before.is_set_aside(TOPIC, 0, 17)
    assert behind.is_set_aside(TOPIC, 0, 17)
    before, behind = start_all(tmp_path, 0, 17)
    assert not before.is_set_aside(TOPIC, 0, 17), "it has another record there: the topic was created again"
    assert behind.is_set_aside(TOPIC, 0, 17)
    start_all(tmp_path, 0, 18)
    assert not list(tmp_path.glob("*.deaths"))


@pytest.mark.feature("X7", "C46")
def test_a_command_of_one_shard_concerns_no_other(tmp_path: Path) -> None:
    commands = TP("commands", 1)
    for _ in range(3):
        process = secrets.token_bytes(8)
        other, one = (shard(tmp_path, number, 2, process) for number in range(2))
        other.look({HERE: 0, TP("commands", 0): 0})
        one.look({HERE: 0, commands: 5})
        with pytest.raises(MemoryError), one.noted("commands", 1, 5, 5):
            raise MemoryError
        one.close()
    process = secrets.token_bytes(8)
    other, one = (shard(tmp_path, number, 2, process) for number in range(2))
    other.look({HERE: 0, TP("commands", 0): 0})
    one.look({HERE: 0, commands: 5})
    assert one.is_set_aside("commands", 1, 5)
    assert not other.is_set_aside("commands", 1, 5)
    shard(tmp_path, 1, 2).look({HERE: 0, commands: 6})
    assert not list(tmp_path.glob("*.deaths"))


@pytest.mark.feature("X7")
def test_what_was_only_looked_at_again_is_set_aside_for_every_take_over_of_the_process(tmp_path: Path) -> None:
    for _ in range(3):
        die(start(tmp_path), 17, 17, again=True)
    process = secrets.token_bytes(8)
    for _ in range(2):
        one = shard(tmp_path, process=process)
        one.look({HERE: 100})
        assert one.is_set_aside(TOPIC, 0, 17)
    assert not start(tmp_path, position=100).is_set_aside(TOPIC, 0, 17)


@pytest.mark.feature("X7")
@pytest.mark.parametrize("content", [b"", b"no JSON", b"[]", b'{"marks": 1}'])
def test_damaged_files_count_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lapse-orders.v2-0.deaths").write_bytes(content)
    (tmp_path / "lapse-orders.v2-0.under-way").write_bytes(content)
    one = start(tmp_path)
    assert not one.is_suspect(TOPIC, 0, 0, 99)
    with one.noted(TOPIC, 0, 0, 9):
        pass
