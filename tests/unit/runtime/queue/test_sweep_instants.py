"""A purge, a rewind and a settlement by filter reach what was published before their instant (C1, C37, C62)."""

from itertools import pairwise

import pytest

from lapse.core.generation import offset_of
from lapse.core.queue.journal.restored import Restored
from lapse.core.queue.settings import Leasing
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.shard import command_work
from lapse.runtime.timers.clock import BY_THE_BROKER
from unit.runtime.queue.machine_alone import Payloads, Record, answered, command, finish, live, machine


def at_instants(*instants: int, stamped_by: int = BY_THE_BROKER, clock_ms: list[int] | None = None) -> QueueMachine:
    """A machine that has taken in messages of these instants, one by one."""
    one, clock_ms = machine(0, Leasing.SUBLET), [0] if clock_ms is None else clock_ms
    one._arrivals._clock_ms = lambda: clock_ms[0]
    for offset, at_ms in enumerate(instants):
        value = b'{"f": %d, "at": %d}' % (offset % 2, at_ms)
        one.arrive("orders", 0, [Record(offset, at_ms, value=value, timestamp_type=stamped_by)])
    finish(one)
    return one


SWEEPS = [("purge", {}), ("purge", {"filter": "/at > 0"}), ("expire", {"filter": "/at > 0"})]


@pytest.mark.feature("C1", "C37", "Q8")
@pytest.mark.parametrize(("name", "fields"), SWEEPS)
def test_a_sweep_leaves_what_was_published_behind_its_instant_though_that_was_read_before_it(name, fields) -> None:
    one = at_instants(1_001, 1_005, 1_006, 1_009)
    counts = answered(one, 1_005, name, **fields)["counts"]
    assert counts["removed" if name == "purge" else "settled"] == 2
    assert live(one) == [2, 3]
    assert counts["skipped"] == 0, "what is younger is as if it were not there"
    answered(one, 1_010, name, **fields)
    assert live(one) == []
    assert one._payloads.asked == 1, "the second one is younger than all"


@pytest.mark.feature("C1", "C63")
@pytest.mark.parametrize("fields", [{}, {"filter": "/at > 0"}])
def test_a_rewind_brings_back_nothing_that_was_published_behind_its_instant(fields) -> None:
    """It counts as of its instant, though the worker read later messages before it, and they have left as well."""
    one = at_instants(1_001, 1_005, 1_006, 1_009)
    assert answered(one, 1_010, "acknowledge", bookmarks=["orders:0:0-3"])["settlements"][0]["result"] == "settled"
    assert answered(one, 1_005, "rewind", id="r", to="beginning", **fields)["counts"]["rewound"] == 2
    assert [offset_of(position) for position in live(one)] == [0, 1]
    assert answered(one, 1_020, "purge")["counts"]["removed"] == 2, "later commands have no horizon of the rewind"
    assert answered(one, 1_021, "rewind", id="later", to="beginning", **fields)["counts"]["rewound"] == 4


@pytest.mark.feature("X10", "Q22")
@pytest.mark.parametrize("part", [700, 1_000])
def test_the_parts_of_a_rewind_do_not_depend_on_how_much_the_log_returns_at_once(part) -> None:
    """A replay gets the size of a part from the journal. Kafka returns whole batches, a replay's log what is asked."""
    cut = {beyond: rewound_in_parts(part, beyond) for beyond in (0, 1, 50, 2_000)}
    assert all(parts == cut[0] for parts in cut.values())
    assert {count for count, _ in cut[0][:-1]} == {part}, "gaps between offsets do not end a part"


@pytest.mark.feature("X7", "Q22")
def test_of_long_messages_a_part_of_a_rewind_with_a_filter_holds_a_few() -> None:
    """The first part would hold a thousand; each takes the filter as long as its texts are."""
    one, value = machine(0), b'{"f": 1, "g": "%s"}' % (b"a" * 50_000)
    one.arrive("orders", 0, [Record(offset, value=value) for offset in range(30)])
    finish(one)
    assert answered(one, 1_010, "purge")["counts"]["removed"] == 30
    command(one, 1_020, "rewind", id="r", to="beginning", filter="/f = 1")
    parts = []
    while not parts or one.unfinished is not None:
        one.continue_command()
        finish(one)
        (rewind,) = one.shard.state.rewinds
        parts.append(rewind.counts["rewound"])
    assert parts[-1] == 30
    assert max(after - before for before, after in pairwise([0, *parts])) == 6


@pytest.mark.feature("X7", "Q22")
@pytest.mark.parametrize("text", ["", "/f = 1"])
def test_only_a_rewind_with_a_filter_can_be_too_costly(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Priorities and groups of long messages take more than is allowed for each, and everybody wants all of them."""
    monkeypatch.setattr(command_work, "MOST_S", -1e9)
    one = machine(0)
    one.arrive("orders", 0, [Record(offset, value=b'{"f": 1}') for offset in range(2_500)])
    finish(one)
    assert answered(one, 1_010, "purge")["counts"]["removed"] == 2_500
    answer = answered(one, 1_020, "rewind", id="r", to="beginning", **({"filter": text} if text else {}))
    assert answer["code"] == ("too_costly" if text else "")
    (rewind,) = one.shard.state.rewinds
    assert (rewind.counts["rewound"] == 2_500) == (not text)


def rewound_in_parts(part: int, beyond: int) -> list[tuple[int, int]]:
    """The count of records and the cursor of each part, from a log that returns some records beyond those asked for."""
    one, read = machine(0), Payloads.read
    one.arrive("orders", 0, [Record(offset) for offset in (*range(2, 1_190), *range(1_195, 2_200))])
    finish(one)
    assert answered(one, 1_010, "purge")["counts"]["removed"] == 2_193
    one._payloads.read = lambda topic, partition, first, last: read(
        one._payloads, topic, partition, first, last + beyond
    )
    command(one, 1_020, "rewind", id="r", to="beginning")
    parts, before = [], 0
    while True:
        one.rewinder.give(part)
        finish(one)
        (rewind,) = one.shard.state.rewinds
        parts.append((rewind.counts["rewound"] - before, rewind.spans[0].cursor))
        before = rewind.counts["rewound"]
        if one.unfinished is None:
            return parts
        one.continue_command()


@pytest.mark.feature("C1", "C37", "C83")
def test_a_sweep_leaves_younger_messages_that_are_scheduled() -> None:
    one, later = machine(0), [("lapse-enqueue-at-ms", b"9000")]
    for offset, at_ms in enumerate((1_001, 1_005, 1_006)):
        one.arrive("orders", 0, [Record(offset, at_ms, headers=later)])
    assert answered(one, 1_005, "purge")["counts"]["scheduled"] == 2
    assert [queued.offset for queued in one.shard.peek(0, 100)] == [2]


@pytest.mark.feature("C1", "C37")
def test_a_sweep_that_a_new_owner_reads_again_leaves_what_the_one_before_had_taken_in_behind_it() -> None:
    one = at_instants(1_001, 1_005, 1_006)
    again = QueueMachine(one.shard.settings, Restored(one.shard.state), 2, one._payloads, one._output, "orders")
    again.take_over(2_000)
    answered(again, 1_005, "purge")
    assert live(again) == [2]
    answered(again, 2_001, "purge")
    assert live(again) == []


@pytest.mark.feature("C1", "C6", "C37")
def test_a_producers_clock_that_is_ahead_keeps_no_message_from_a_purge_that_came_after_it() -> None:
    clock_ms = [1_000]
    one = at_instants(1_000, 9_000_000, 1_001, stamped_by=0, clock_ms=clock_ms)
    clock_ms[0] = 1_200
    one.arrive("orders", 0, [Record(3, 9_000_001, timestamp_type=0)])
    answered(one, 1_105, "purge")
    assert live(one) == [3], "the first ones were read before the purge, whatever they say"


@pytest.mark.feature("C1", "C52")
def test_a_sweep_is_refused_while_nobody_can_say_what_is_younger() -> None:
    one = at_instants(1_001, 1_006)
    one._payloads.has_leader = False
    assert answered(one, 1_005, "purge")["code"] == "shard_unavailable"
    assert answered(one, 1_005, "rewind", id="r", to="beginning")["code"] == "shard_unavailable"
    assert one.rewinder.step_ends() == {"part": -1}, "a replay refuses it, too"
    assert live(one) == [0, 1]
    one._payloads.has_leader = True
    assert answered(one, 1_005, "purge")["counts"]["removed"] == 1, "the shard goes on"
    one.rewinder.give(-1)
    assert answered(one, 1_006, "rewind", id="r", to="beginning")["code"] == "shard_unavailable"
    one.rewinder.give(0)
    assert answered(one, 1_006, "rewind", id="r", to="beginning")["counts"]["rewound"] == 1
