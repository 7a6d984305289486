"""A settlement by filter of very many messages takes several steps, in which others have their turn (Q8, C60)."""

from __future__ import annotations

import json

import pytest

from lapse.core.queue import command as queue_commands
from lapse.core.queue.command import QueueCommands
from lapse.core.queue.parts_done import PartsDone
from lapse.core.queue.settlement import named_settlement as named_parts
from lapse.core.queue.settlement import settlement_command as commands
from lapse.core.queue.settlement.settlement import Outcome, Result
from lapse.core.queue.shard import QueueShard
from lapse.protocol.command import Command
from lapse.runtime.kafka.output import Output
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.queue.parts_journal import KEY, PartsJournal
from lapse.testing import Lapse
from lapse.testing.shard import Crash
from lapse_client import CommandFailed, Queue
from lapse_client.queue.queue import Settling
from unit.runtime.queue.machine_alone import answered, command, finish, machine

pytestmark = pytest.mark.feature("Q8", "C60")

COUNT = 10_000
"""Of three segments."""

FILTER = "/n % 2 = 0"

SLOW_ACKNOWLEDGE, SLOW_CANCEL = (pytest.param(how, marks=pytest.mark.slow) for how in ("acknowledge", "cancel"))


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether there was more, of each part of a settlement; a segment makes one."""
    found: list[bool] = []
    whole = QueueCommands.carry_out_part

    def noted(self, command, at_ms, step, row_filter):
        more = whole(self, command, at_ms, step, row_filter)
        if command.filter:
            found.append(more)
        return more

    monkeypatch.setattr(QueueCommands, "carry_out_part", noted)
    monkeypatch.setattr(commands, "SETTLED_AT_ONCE", 1_000)
    return found


def fill(lapse: Lapse) -> None:
    lapse.queue("orders", lease_period="1h", max_cancels=1)
    with lapse.publisher() as publisher:
        for number in range(COUNT):
            publisher.publish("orders", b'{"n": %d}' % number)


@pytest.mark.parametrize("how", [SLOW_ACKNOWLEDGE, SLOW_CANCEL, "expire"])
def test_all_that_match_are_settled_once_and_reported_together(lapse: Lapse, parts: list[bool], how: Settling) -> None:
    fill(lapse)
    with lapse.subscriber("orders", COUNT) as subscriber, Queue("orders", connection=lapse.connection) as queue:
        subscriber.start()
        assert queue.depth()["leased"] == COUNT
        queue.pause()
        results = queue.settle(how, filter=FILTER)
        assert parts == [True, True, True, False] or parts == [True, True, False]
        assert sum(len(one.messages) for one in results if one.settled) == COUNT // 2
        counts = queue.depth()
        assert (counts["leased"], counts["available"]) == (COUNT // 2, COUNT // 2 if how == "cancel" else 0)
        assert {one.delivery_count for one in queue.peek(filter=FILTER)} == ({1} if how == "cancel" else set())
        assert queue.settle(how, filter="/n = 1")[0].settled, "the next one begins anew"
        assert queue.depth()["leased"] == COUNT // 2 - 1


@pytest.mark.slow
@pytest.mark.feature("C17")
def test_leases_are_renewed_in_parts_over_a_crash_and_reported_together(
    lapse: Lapse, parts: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(lapse)
    with (
        lapse.subscriber("orders", COUNT, name="holder") as subscriber,
        Queue("orders", connection=lapse.connection) as queue,
    ):
        subscriber.start()
        assert queue.depth()["leased"] == COUNT
        before = {one.until_ms for one in queue.peek()}
        falls, whole = iter([False, True]), QueueCommands.carry_out_part

        def falling(self, command, at_ms, step, row_filter):
            if command.command == "renew" and next(falls, False):
                raise Crash
            return whole(self, command, at_ms, step, row_filter)

        monkeypatch.setattr(QueueCommands, "carry_out_part", falling)
        asked = Command.of(command="renew", filter=FILTER, subscription="holder", lease_ms=3_599_000, answer="all")
        (answer,) = [one for one in queue._ask(asked) if one.settlements]
        assert next(falls, None) is None, "it crashed between two parts"
        assert parts.count(True) >= 2
        assert len({one.bookmarks for one in answer.settlements if one.result == "settled"}) == COUNT // 2
        assert {one.until_ms for one in queue.peek(filter=FILTER)} == {answer.lease_until_ms}
        assert answer.lease_until_ms not in before
        queue._ask(Command.of(command="renew", filter="/n = 1", subscription="holder", answer="all"))
        assert queue.peek(filter="/n = 2")[0].until_ms == answer.lease_until_ms, "the next one begins anew"


@pytest.mark.feature("C55")
def test_an_older_version_reads_what_a_part_has_settled() -> None:
    """Of a renewal it would not, but it did renewals at once."""
    done = [Outcome("orders", 0, 1, 2, Result.SETTLED), Outcome("orders", 0, 3, 3, Result.NOT_HOLDER)]
    parts, recalled = PartsDone(settled=done, settled_to=4), PartsDone()
    journal, again = PartsJournal(1, parts), PartsJournal(2, recalled)
    journal.note(7)
    ((key, value),) = journal.items()
    assert value is not None
    assert json.loads(value)["settled"] == [["orders", 0, 1, 2], ["orders", 0, 3, 3, "not_holder"]]
    again.recall({key: value})
    again.resume(7)
    assert recalled == parts


def test_parts_of_a_command_that_a_later_owner_refuses_do_not_count_for_the_next_one() -> None:
    one = machine(4)
    command(one, 1_000, "subscribe", max_backlog=4)
    one.deliver(1_000)
    finish(one)
    one._commands.parts.settled_to = 0  # as recalled from the journal, before max_lease_period was changed
    refused = answered(one, 1_001, "renew", filter="/f = 1", lease_ms=60_000)
    assert "max_lease_period" in refused["error"]
    assert answered(one, 1_002, "expire", filter="/f = 1")["counts"] == {"settled": 2, "skipped": 0}


@pytest.mark.slow
@pytest.mark.feature("C55", "Q21")
@pytest.mark.parametrize("how", [SLOW_ACKNOWLEDGE, SLOW_CANCEL, "expire", "purge"])
def test_crashes_between_the_parts_lose_no_count_and_no_bookmark(
    lapse: Lapse, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(commands, "SETTLED_AT_ONCE", 1_000)
    monkeypatch.setattr(queue_commands, "PURGED_AT_ONCE", 1_000)
    falls, whole = iter([False, True, False, True]), QueueCommands.carry_out_part

    def falling(self, command, at_ms, step, row_filter):
        if command.command == how and next(falls, False):
            raise Crash
        return whole(self, command, at_ms, step, row_filter)

    monkeypatch.setattr(QueueCommands, "carry_out_part", falling)
    fill(lapse)
    with lapse.subscriber("orders", COUNT) as subscriber, Queue("orders", connection=lapse.connection) as queue:
        subscriber.start()
        queue.pause()
        if how == "purge":
            assert queue.purge(filter=FILTER, leased=True)["removed"] == COUNT // 2
        else:
            answered = queue._ask(Command.of(command=how, filter=FILTER, answer="all"))
            (figures,) = [one for one in answered if one.counts]
            assert figures.counts == {"settled": COUNT // 2, "skipped": 0}
            assert len({one.bookmarks for one in figures.settlements}) == COUNT // 2
        assert queue.depth()["depth"] == (COUNT if how == "cancel" else COUNT // 2)
    assert next(falls, None) is None, "it crashed twice"
    journal = {one.key: one.value for one in lapse.records("lapse-orders-changelog")}
    assert not any(value for key, value in journal.items() if key.startswith(KEY)), "nothing of it is left"


def test_what_is_refused_settles_nothing(lapse: Lapse, parts: list[bool]) -> None:
    fill(lapse)
    with Queue("orders", connection=lapse.connection) as queue:
        with pytest.raises(CommandFailed, match="takes no state"):
            queue._ask(Command.of(command="expire", filter=FILTER, state="leased"))
        assert queue.depth()["available"] == COUNT
        with pytest.raises(CommandFailed, match="takes no state"):
            queue._ask(Command.of(command="purge", state="leased"))
        assert queue.depth()["available"] == COUNT


def asked(count: int, name: str, bookmarks: list[str], **fields: object) -> tuple[QueueMachine, list[int], dict]:
    """A command by bookmarks on a shard that has leased everything: the depth after each step, and the answer."""
    one = machine(count)
    command(one, 1_000, "subscribe", max_backlog=count)
    while one.deliver(1_000):
        finish(one)
    finish(one)
    command(one, 1_001, name, bookmarks=bookmarks, answer="all", **fields)
    depths, answers = [], []
    while not answers:
        if depths:
            one.continue_command()
        answers = [json.loads(some.value) for some in finish(one).after if isinstance(some, Output)]
        depths.append(one.shard.depth()["depth"])
    return one, depths, answers[0]


@pytest.mark.parametrize("how", ["acknowledge", "cancel", "expire", "renew"])
def test_bookmarks_in_any_order_are_settled_some_in_each_step_and_answered_in_theirs(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(named_parts, "WORK_AT_ONCE", 100 + named_parts.SEGMENT_WORK)
    monkeypatch.setattr(named_parts, "READ_AT_ONCE", 400)
    offsets = [(at * 607) % 1_000 for at in range(1_000)]
    named = [f"orders:0:{offset}" for offset in offsets] + ["orders:1:5", "orders:0:2000-2001"]
    one, depths, answers = asked(1_000, how, named)
    results = {text: settled["result"] for settled in answers["settlements"] for text in [settled["bookmarks"]]}
    assert list(results) == named
    assert [results[text] for text in named] == ["settled"] * 1_000 + ["unknown"] * 2
    if how in ("acknowledge", "expire"):
        assert depths == [1_000] * 3 + [900 - 100 * at for at in range(10)] + [0], "two are left that are not there"
    elif how == "cancel":
        assert one.shard.depth()["leased"] == 0


def test_of_a_message_that_is_named_twice_the_first_counts_in_whatever_part_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(named_parts, "WORK_AT_ONCE", 3 + named_parts.SEGMENT_WORK)
    monkeypatch.setattr(named_parts, "READ_AT_ONCE", 2)
    named = ["orders:0:1#7", "orders:0:2", "orders:0:3", "orders:0:4", "orders:0:1#1", "orders:0:2"]
    one, _, answers = asked(6, "acknowledge", named)
    results = [(settled["bookmarks"], settled["result"]) for settled in answers["settlements"]]
    assert sorted(results) == [
        ("orders:0:1", "stale"),
        ("orders:0:1", "stale"),
        ("orders:0:2", "already_settled"),
        ("orders:0:2", "settled"),
        ("orders:0:3", "settled"),
        ("orders:0:4", "settled"),
    ]
    assert one.shard.depth()["depth"] == 3


@pytest.mark.feature("X7")
@pytest.mark.parametrize("how", ["acknowledge", "cancel", "expire", "renew"])
def test_bookmarks_that_name_the_same_messages_over_and_over_are_refused(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(named_parts, "MOST_REPEATED", 1_000)
    one, _, answers = asked(100, how, ["orders:0:0-99"] * 200)
    assert answers["code"] == "too_costly"
    assert "the 200 bookmarks name 20000 messages or more, of 4096 that may be there" in answers["error"]
    assert one.shard.depth()["leased"] == 100


@pytest.mark.slow
@pytest.mark.parametrize("spread", [1, 4_096])
def test_the_work_of_a_part_counts_the_segments_that_it_begins_with(
    monkeypatch: pytest.MonkeyPatch, spread: int
) -> None:
    """Messages far apart take longer than so many beside each other."""
    done: list[int] = []
    whole = QueueShard.settle

    def noted(self, action, subscription, claims, *more, **named):
        done.append(len(claims))
        return whole(self, action, subscription, claims, *more, **named)

    monkeypatch.setattr(QueueShard, "settle", noted)
    monkeypatch.setattr(named_parts, "WORK_AT_ONCE", 10 * (1 + named_parts.SEGMENT_WORK))
    count = 25 if spread > 1 else 500
    bookmarks = [f"orders:0:{at * spread}" for at in range(count)]
    one, _, answers = asked(1 + (count - 1) * spread, "acknowledge", bookmarks[::-1])
    assert [settled["bookmarks"] for settled in answers["settlements"]] == bookmarks[::-1]
    assert sum(done) == count
    assert max(done) == (10 if spread > 1 else 10 * (1 + named_parts.SEGMENT_WORK) - named_parts.SEGMENT_WORK)
    assert one.shard.depth()["depth"] == (count - 1) * (spread - 1)
