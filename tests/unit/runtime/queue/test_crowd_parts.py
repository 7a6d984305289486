"""Many messages that leave or come at once do so in parts, whatever is asked meanwhile (C60)."""

import json
from itertools import pairwise

import pytest

from lapse.core.queue import command as queue_command
from lapse.core.queue.step import Step
from lapse.core.shard.retirement import Cause, Phase, Retirement
from lapse.protocol import answer
from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.queue.crowd import Crowd
from support.suite.at_length import alike
from unit.runtime.queue.machine_alone import Letters, Record, command, crowded, finish, machine


@pytest.mark.slow
@pytest.mark.feature("C60", "D3")
def test_a_crowd_leaves_in_parts_whatever_commands_come_and_each_message_once() -> None:
    one, letters = crowded(20_000, **{"lapse-ttl-ms": 1_000}), Letters()
    for record in range(20_000, 20_010):
        one.arrive("orders", 0, [Record(record)])
    steps = []
    while one.shard.next_due_ms() <= 2_000:
        before = len(letters.taken)
        for _ in range(5):
            command(one, 2_000, "subscribe", max_backlog=1)
            command(one, 2_000, "heartbeat")
        one.advance(2_000)
        one.deliver(2_000)
        effects = finish(one, letters)
        if not steps:  # what is not due goes out in the first of them, whatever else is still to leave
            (sent,) = [some for some in effects.after if isinstance(some, Packed)]
            assert len(sent.records) == 1
        steps.append(len(letters.taken) - before)
        one.note_step_time(steps[-1] / 5_000)
        assert steps[-1] <= 3 * 512
    assert sum(steps) == 20_000
    assert steps[:2] == [1_024, 512], "steps that take too long make the parts smaller"
    offsets = [dict(letter.headers)["__dlq.errors.offset"] for letter in letters.taken]
    assert len(set(offsets)) == 20_000
    assert one.shard.depth()["depth"] == 10


@pytest.mark.slow
@pytest.mark.feature("C60")
def test_the_parts_of_a_crowd_are_not_small_where_a_small_part_takes_as_long() -> None:
    """512 messages a step were 3,400/s where each step waited 150 ms for a broker."""
    one, letters = crowded(40_000, **{"lapse-ttl-ms": 1_000}), Letters()
    steps: list[int] = []
    while one.shard.next_due_ms() <= 2_000:
        before = len(letters.taken)
        one.advance(2_000)
        finish(one, letters)
        steps.append(len(letters.taken) - before)
        one.note_step_time(0.15 + steps[-1] / 200_000)
    assert sum(steps) == 40_000
    assert max(steps) == 4_096
    assert steps.index(4_096) <= 12, "it is known after some steps how long Kafka takes"


@pytest.mark.slow
@pytest.mark.feature("C60", "L5")
def test_the_parts_of_a_scheduled_crowd_take_little_cpu_where_kafka_is_slow() -> None:
    """1,024 messages a step took 58 ms of CPU, for which all other entities waited."""
    one, letters = crowded(8_000, **{"lapse-enqueue-at-ms": 2_000}), Letters()

    def placed() -> int:
        return one.shard.depth()["available"]

    one.crowd = Crowd(one.shard, cpu_clock=lambda: placed() * 0.000_05)
    parts: list[int] = []
    while placed() < 8_000:
        before = placed()
        one.advance(2_000)
        finish(one, letters)
        parts.append(placed() - before)
        one.note_step_time(0.15)
    assert sum(parts) == 8_000
    assert max(parts) <= 512
    assert max(parts[-5:]) <= 400, "20 ms"


BEFORE_ALL = {
    "purge": {},
    "transfer": {"transfer": "t"},
    "acknowledge": {"filter": "/f = 1"},
    "expire": {"bookmarks": ["none"]},
    "cancel": {},
    "renew": {"filter": "TRUE"},
    "nonsense": {},
    "delete": {"force": True},
}


@pytest.mark.feature("C60", "X7")
@pytest.mark.parametrize("name", alike(*BEFORE_ALL))
def test_a_crowd_leaves_in_parts_whatever_is_asked_meanwhile(name: str) -> None:
    """A command that needs all of it to be gone waits for that; others go ahead, those with a mistake among them."""
    one, letters, emitted = crowded(6_000, **{"lapse-ttl-ms": 1_000}), Letters(), []
    one.arrive("orders", 0, [Record(6_000, value=b'{"f": 1}'), Record(6_001)])
    one._reach(2_000)
    command(one, 2_000, name, **BEFORE_ALL[name])
    steps: list[int] = []
    while sum(steps) < 6_000 or one.unfinished is not None:
        assert len(steps) < 20
        before = len(letters.taken)
        one.continue_command()
        one.advance(2_000)
        effects = finish(one, letters)
        emitted += [json.loads(some.value) for some in effects.after if isinstance(some, Output)]
        steps.append(len(letters.taken) - before)
        one.note_step_time(steps[-1] / 5_000)
        assert steps[-1] <= 3 * 512
    assert sum(steps) == 6_000, "each has its letter, with its own reason"
    if name == "delete":
        return  # it is answered once all shards have agreed
    (answered,) = emitted
    if name == "purge":
        assert answered["counts"]["removed"] == 2
    elif name == "transfer":
        assert one.shard.depth()["transferring"] == 2
    elif name == "acknowledge":
        assert answered["counts"] == {"settled": 0, "skipped": 1}, "what is late counts as gone"


@pytest.mark.slow
@pytest.mark.feature("C60", "X7")
def test_others_have_their_turn_after_each_lot_that_a_filter_is_tried_on() -> None:
    """However cheap the filter is: of 300,000 messages each lot was so quick that nobody had a turn for a second."""
    one = machine(30_000)
    command(one, 1_000, "acknowledge", filter="/f = 2")
    turns = sum(1 for _ in one.finish(Letters()).__await__())
    assert turns >= 30


@pytest.mark.slow
@pytest.mark.feature("C60", "C11")
def test_a_crowd_of_scheduled_messages_gets_its_places_in_small_parts() -> None:
    one = crowded(6_000, **{"lapse-enqueue-at-ms": 2_000})
    assert one.shard.depth()["scheduled"] == 6_000
    placed = [0]
    while one.shard.is_due(2_000):
        one.advance(2_000)
        finish(one)
        one.note_step_time(0.001)  # so quick that the next part may be as large as any
        placed.append(one.shard.depth()["available"])
    parts = [after - before for before, after in pairwise(placed)]
    assert sum(parts) == 6_000
    assert max(parts) <= 1_024, "each takes about as long as four that expire"


@pytest.mark.feature("C60", "C37")
def test_a_purge_of_very_many_messages_goes_part_by_part_and_counts_all(monkeypatch) -> None:
    monkeypatch.setattr(queue_command, "PURGED_AT_ONCE", 4_096)
    one = crowded(20_000)
    command(one, 1_000, "subscribe", max_backlog=3)
    one.deliver(1_000)
    finish(one)
    command(one, 1_001, "purge")
    left = [20_000, one.shard.depth()["depth"]]
    while one.unfinished is not None:
        assert not one.room(), "what arrives meanwhile is not purged"
        finish(one)
        one.continue_command()
        left.append(one.shard.depth()["depth"])
    (record,) = [some for some in finish(one).after if isinstance(some, Output)]
    counts = answer.decode(record.value).counts
    assert (counts["removed"], counts["available"], counts["skipped_leased"], left[-1]) == (19_997, 19_997, 3, 3)
    assert max(before - after for before, after in pairwise(left)) <= 2 * 4_096


@pytest.mark.feature("C60", "C37", "C83")
def test_scheduled_messages_leave_in_small_parts() -> None:
    """Of 4,096 each, a part of a purge took 117 ms of CPU beside a busy processor."""
    one = crowded(6_000, **{"lapse-enqueue-at-ms": 100_000})
    command(one, 1_001, "purge")
    left = [6_000, one.shard.depth()["scheduled"]]
    while one.unfinished is not None:
        finish(one)
        one.continue_command()
        left.append(one.shard.depth()["scheduled"])
    assert left[-1] == 0
    assert max(before - after for before, after in pairwise(left)) <= 1_024


@pytest.mark.feature("C60", "C4")
def test_scheduled_messages_of_a_queue_that_ends_leave_in_small_parts() -> None:
    one = crowded(6_000, **{"lapse-enqueue-at-ms": 100_000})
    forced = Retirement(phase=Phase.RETIRED, id=1, cause=Cause.DELETE, force=True)
    while not one.shard.agreement._retirable.remove_some(forced, 1_001, step := Step()):
        assert 0 < len(step.changes) <= 1_024
    assert one.shard.depth()["scheduled"] == 0


@pytest.mark.feature("X7", "C37", "C60", "Q8")
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("purge", {"top_n": 0}),
        ("purge", {"dry_run": True}),
        ("purge", {"keys": ["k"]}),
        ("purge", {"filter": "TRUE", "skip": 1}),
        ("acknowledge", {"filter": "TRUE", "top_n": 1}),
        ("expire", {"bookmarks": ["orders:0:0-7999"], "order_by": "/f"}),
        ("delete", {"force": True, "dry_run": True}),
    ],
)
def test_a_command_that_would_do_more_than_its_fields_say_does_nothing(monkeypatch, name, fields) -> None:
    """Neither at once nor in parts: fields that limit a command are not ignored."""
    monkeypatch.setattr(queue_command, "PURGED_AT_ONCE", 1_000)
    one = crowded(8_000)
    command(one, 1_000, name, **fields)
    assert one.unfinished is None
    (record,) = [some for some in finish(one).after if isinstance(some, Output)]
    said = answer.decode(record.value)
    assert (said.status, said.code) == ("error", "invalid_argument")
    assert all(field in said.error for field in fields.keys() - {"filter", "bookmarks", "force"})
    assert one.shard.depth()["available"] == 8_000


@pytest.mark.feature("C60", "C13", "C2")
def test_a_lease_that_is_over_is_over_although_a_crowd_of_others_ends_first() -> None:
    one = crowded(3_000)
    command(one, 1_000, "subscribe", max_backlog=3_000)
    one.deliver(1_000)
    finish(one)
    assert one.shard.depth()["leased"] == 3_000
    bookmarks = [f"orders:0:{offset}" for offset in (2_999, 0)]
    command(one, 1_101, "acknowledge", bookmarks=bookmarks, answer="all")
    effects = finish(one)
    (said,) = [answer.decode(some.value) for some in effects.after if isinstance(some, Output)]
    assert {some.result for some in said.settlements} == {"not_leased"}
    assert one.shard.depth()["leased"] == 3_000 - 1_024 - 1, "the others are still to come"


@pytest.mark.feature("C1", "C37", "Q8")
@pytest.mark.parametrize(
    ("name", "fields", "acts"),
    [
        ("purge", {}, True),
        ("expire", {"filter": "/f = 1"}, True),
        ("expire", {"bookmarks": ["orders:0:5"]}, True),
        ("acknowledge", {"filter": "/f = 1", "answer": "none"}, True),
        ("delete", {}, True),
        ("subscriptions", {}, False),
        ("heartbeat", {}, False),
        ("subscribe", {"max_backlog": 1}, False),
    ],
)
def test_a_command_that_finds_nothing_is_journaled_all_the_same_unless_it_is_a_question(
    name: str, fields: dict, acts: bool
) -> None:
    """Read again after a crash, it took what had been published since it was answered."""
    one = machine(0)
    finish(one)
    command(one, 1_001, name, **fields)
    assert finish(one).has_acted == acts
    assert not finish(one).has_acted


@pytest.mark.feature("C1", "C60")
def test_the_last_part_of_a_purge_is_journaled_though_it_takes_nothing() -> None:
    one = machine(70_000)
    finish(one)
    command(one, 1_001, "purge")
    parts = [finish(one)]
    while one.unfinished is not None:
        one.continue_command()
        parts.append(finish(one))
    assert len(parts) > 1
    assert parts[-1].has_acted
