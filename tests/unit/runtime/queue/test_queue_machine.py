"""A queue shard's machine, without a broker: commands that wait for payloads keep their place in time (C1, C2, C40)."""

import asyncio
import json

import pytest

from lapse.core.lifetime import Expiration
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.settings import Leasing, QueueSettings
from lapse.runtime.kafka.output import Packed
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.shard import command_work
from support.kafka.packed import outputs_of
from support.suite.event_loop import finished
from unit.runtime.queue.machine_alone import Letters, Payloads, Record, answered, command, emitted, finish, machine


@pytest.mark.feature("C1", "C2", "Q8")
def test_a_settlement_by_filter_counts_as_of_its_own_instant_whatever_comes_behind_it_in_the_same_step() -> None:
    one = machine(3)
    command(one, 1_000, "subscribe", max_backlog=5)
    one.deliver(1_000)
    finish(one)
    command(one, 1_099, "acknowledge", filter="/f = 1")
    command(one, 1_500, "heartbeat")
    one.advance(1_600)
    assert one.deliver(1_600), "what waits comes before what is delivered"
    finish(one)
    assert one.shard.depth()["depth"] == 2
    one.advance(1_600)
    one.deliver(1_600)
    effects = finish(one)
    assert sum(len(some.records) for some in effects.after if isinstance(some, Packed)) == 2


@pytest.mark.feature("C40", "Q14")
def test_a_record_that_is_lost_leaves_when_a_filter_would_have_read_it() -> None:
    one = machine(4)
    del one._payloads.records[1]
    command(one, 1_000, "subscribe", max_backlog=5, filter="/f = 1")
    while one.deliver(1_000):
        finish(one)
    finish(one)
    counts = {state: count for state, count in one.shard.depth().items() if count}
    assert counts == {"available": 2, "leased": 1, "depth": 3}


@pytest.mark.slow
@pytest.mark.feature("Q8", "X7")
def test_an_answer_names_only_so_many_ranges_and_says_how_many_it_leaves_out() -> None:
    one = machine(0)
    one.arrive("orders", 0, [Record(offset, value=b'{"f": %d}' % (offset % 2)) for offset in range(21_000)])
    command(one, 1_000, "subscribe", max_backlog=30_000)
    while one.shard.depth()["available"]:
        one.deliver(1_000)
        finish(one)
    command(one, 1_001, "acknowledge", filter="/f = 1", answer="all")
    effects = finish(one)
    while one.unfinished is not None:  # so many take several steps
        assert not effects.after
        one.continue_command()
        effects = finish(one)
    (answer,) = effects.after
    message = json.loads(answer.value)
    assert (len(message["settlements"]), message["counts"]["left_out"], message["counts"]["settled"]) == (
        10_000,
        500,
        10_500,
    )


@pytest.mark.feature("C27", "D3", "Q15")
def test_a_refused_letter_keeps_its_message_dying_while_the_others_leave_until_the_broker_takes_it() -> None:
    one, letters = machine(0), Letters(100)
    values = [b"{}", b"x" * 200, b"{}", b"y" * 300, b"{}"]
    one.arrive("orders", 0, [Record(offset, value=value) for offset, value in enumerate(values)])
    command(one, 1_000, "subscribe", max_backlog=5)
    one.deliver(1_000)
    journal = dict(finish(one).journal)
    command(one, 1_001, "expire", bookmarks=["orders:0:0-4"])
    effects = finish(one, letters)
    journal |= effects.journal
    assert [letter.value for letter in letters.taken] == [b"{}"] * 3
    assert [kind for kind, _ in emitted(effects)] == ["dying", "dead_lettered"]
    assert emitted(effects)[0][1] == ["orders:0:1", "orders:0:3"]
    assert emitted(effects)[1][1] == ["orders:0:0", "orders:0:2", "orders:0:4"]
    figures = one.gauges()
    assert (figures["depth"], figures["dying"], one.figures.dead_letters) == (0, 2, 3)
    assert [shown.state_name for shown in one.shard.peek(0, 10)] == ["dying", "dying"]
    assert list(restore(journal.items()).state.pending) == [(0, 1), (0, 3)]

    (letter,) = outputs_of([finished(one.letters.source.pending_letter((0, 1)))])
    assert letter.value == values[1]
    headers = dict(letter.headers)
    assert (headers["lapse-reasons"], headers["lapse-expired-at-ms"]) == (b"forced_expire", b"1001")
    assert headers["__dlq.errors.delivery.count"] == b"1"
    one.retry._safe += [(0, 1)]
    effects = finish(one)
    assert emitted(effects) == [("dead_lettered", ["orders:0:1"])]
    assert one.gauges()["dying"] == 1
    assert finished(one.letters.source.pending_letter((0, 1))) is None
    journal |= effects.journal
    kept = {key: value for key, value in journal.items() if value is not None}
    assert list(restore(kept.items()).state.pending) == [(0, 3)]


@pytest.mark.feature("C27", "C48", "D1")
def test_a_refused_letter_is_given_up_once_the_queue_writes_none_any_more() -> None:
    """A barrier behind it, and the queue's end, would wait for ever."""
    one = machine(1, Leasing.SUBLET)
    command(one, 1_001, "expire", bookmarks=["orders:0:0"])
    journal = finish(one, Letters(1)).journal
    settings = QueueSettings(name="orders")
    again = QueueMachine(
        settings, restore(one for one in journal if one[1]), 2, Payloads(), QueueOutput("orders", 0, 2, "", 1), "orders"
    )
    again.take_over(2_000)

    async def woken() -> None:
        news = asyncio.Event()
        again.retry.start(Letters(), news.set)
        async with asyncio.timeout(30):
            await news.wait()
        again.retry.stop()

    assert again.gauges()["dying"] == 1
    asyncio.run(woken())
    effects = finish(again)
    assert (emitted(effects), again.gauges()["dying"]) == ([("expired", ["orders:0:0"])], 0)


@pytest.mark.feature("Q15", "L11", "C21")
def test_the_gauges_of_an_instant_are_what_depth_answers() -> None:
    """A message whose deadline has passed is told no more, though it leaves later; what is held up is told."""
    settings = QueueSettings(name="orders", leasing=Leasing.STRICT, lease_ms=100, expiration=Expiration(True, 50))
    one = QueueMachine(settings, restore([]), 1, Payloads(), QueueOutput("orders", 0, 1, "", 1), "orders")
    one.take_over(1_000)
    one.arrive("orders", 0, [Record(offset) for offset in range(3)])
    one.arrive("orders", 0, [Record(3, timestamp=1_020)])
    command(one, 1_021, "pause")
    finish(one)
    assert (one.gauges(1_021)["available"], one.gauges(1_060)["available"], one.gauges()["available"]) == (4, 1, 4)
    assert (one.gauges(1_021)["paused"], one.gauges(1_021)["holders"], one.gauges(1_021)["most_leased"]) == (1, 0, 0)
    command(one, 1_022, "resume")
    command(one, 1_023, "subscribe", max_backlog=3)
    one.deliver(1_023)
    finish(one)
    assert (one.gauges(1_024)["paused"], one.gauges(1_024)["holders"], one.gauges(1_024)["most_leased"]) == (0, 1, 3)


@pytest.mark.feature("X7")
@pytest.mark.parametrize("name", ["purge", "sow", "expire"])
def test_a_command_that_takes_too_much_work_is_refused_with_the_reason_and_changes_nothing(name, monkeypatch) -> None:
    one = machine(200)
    monkeypatch.setattr(command_work, "MOST_S", -1.0)
    command(one, 1_000, name, filter="/f >= 0")
    (answer,) = (json.loads(some.value) for some in finish(one).after)
    assert answer["status"] == "error"
    assert answer["error"].startswith(f"{name}: stopped after 0.0 s of work on ")
    assert "Simplify the filter" in answer["error"]
    monkeypatch.undo()
    assert one.shard.depth()["depth"] == 200
    command(one, 1_001, "sow", filter="/f >= 0")
    (answer,) = (json.loads(some.value) for some in finish(one).after)
    assert len(answer["messages"]) == 200


@pytest.mark.feature("X7", "Q14")
def test_a_filter_that_takes_too_much_work_over_all_steps_ends_its_subscription_and_no_other(monkeypatch) -> None:
    one = machine(0)
    costly, cheap = "/f >= 0 AND LENGTH(/g) = 1", "/f >= 0"
    command(one, 1_000, "subscribe", filter=costly, max_backlog=100)
    command(one, 1_000, "subscribe", subscription="other", filter=cheap, max_backlog=100)
    finish(one)
    now_s = [0.0]
    monkeypatch.setattr(command_work.time, "thread_time", lambda: now_s[0])
    judge, columns = one.shard.matching._filters[costly]

    def takes_long(view) -> bool:
        now_s[0] += 0.6
        return judge(view)

    one.shard.matching._filters[costly] = (takes_long, columns)
    known = []
    for at in range(3):
        one.arrive("orders", 0, [Record(at, value=b'{"f": 1, "g": "ab"}', timestamp=1_001 + at)])
        one.deliver(1_001 + at)
        finish(one)
        known.append([subscription.id for subscription in one.shard.subscriptions()])
    monkeypatch.undo()
    assert known == [["inky", "other"], ["other"], ["other"]]
    command(one, 1_010, "subscribe", filter=costly)
    (answer,) = (json.loads(some.value) for some in finish(one).after)
    assert (answer["status"], answer["code"]) == ("error", "too_costly")
    assert "Simplify the filter" in answer["error"]
    command(one, 1_011, "subscribe", filter="/f = 1")
    (answer,) = (json.loads(some.value) for some in finish(one).after)
    assert answer["status"] == "ok"


@pytest.mark.feature("X7")
def test_the_next_portion_is_chosen_by_how_long_the_last_one_took() -> None:
    portion = command_work.Portion(1_000)
    for _ in range(10):
        portion.note_time(0.000_1)
    assert portion.size == 1_000
    portion.note_time(0.5)
    assert portion.size == 10
    portion.note_time(10.0)
    assert portion.size == 1


@pytest.mark.feature("Q13", "C16")
def test_a_message_of_a_partition_that_was_never_read_for_want_of_room_can_be_acknowledged() -> None:
    settings = QueueSettings(name="orders", target_depth=1)
    one = QueueMachine(settings, restore([]), 1, Payloads(), QueueOutput("orders", 0, 1, "dlq.orders", 1), "orders")
    one.take_over(1_000)
    assert one.arrive("orders", 0, [Record(0)]) == 1
    one.note_received("others", 0)
    acknowledged = answered(one, 1_001, "acknowledge", bookmarks=["others:0:0", "others:0:1", "elsewhere:0:0"])
    results = [(settlement["bookmarks"], settlement["result"]) for settlement in acknowledged["settlements"]]
    assert results == [("others:0:0", "settled"), ("others:0:1", "unknown"), ("elsewhere:0:0", "unknown")]
    assert answered(one, 1_002, "acknowledge", bookmarks=["orders:0:0"])["settlements"][0]["result"] == "settled"
    assert one.arrive("others", 0, [Record(0), Record(1)]) == 2
    assert one.shard.depth()["depth"] == 1, "it was acknowledged before it became active"
