"""The rates of a queue and of its groups by name; each also runs beside the oracle (Q25, C70, C71)."""

from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest

from lapse.core.expression import compile_filter, compile_value
from lapse.core.lifetime import NEVER
from lapse.core.queue.arrival.trait import TraitReader
from lapse.core.queue.groups.group_choice import GroupChooser
from lapse.core.queue.journal.queue_journal import QueueJournal
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.rates.rate import Rate
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement.settlement import Claim, SettleAction
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.state import QueueState
from lapse.core.queue.step import Step
from lapse.runtime.queue.delivery_writer import patience_s, sendable_s
from unit.core.queue.compared.small_shard import small
from unit.core.queue.world import World

GROUP = TraitReader(group=compile_value("/g"))
BARRIER = TraitReader(barrier=compile_filter("/b = 'yes'"))

pytestmark = [pytest.mark.feature("Q25", "C71"), pytest.mark.usefixtures("each_room")]


def world(*bodies: dict, **settings) -> World:
    one = World(QueueSettings(name="orders", lease_ms=100_000, max_lease_ms=100_000, **settings))
    for body in bodies:
        one.publish("orders", body=body)
    one.read("orders")
    one.subscribe("inky", 100)
    return one


def delivered(one: World, at_ms: int | None = None) -> list[int]:
    """Offsets that go out at an instant, counted from the beginning at 1000 ms."""
    if at_ms is not None:
        one.advance(1_000 + at_ms - one.now_ms)
    return [sent.bookmark[2] for sent in one.deliver().get("inky", [])]


def test_so_many_go_out_in_any_half_open_window() -> None:
    one = world(*[{}] * 9, rate=Rate(3, 100))
    assert delivered(one, 0) == [0, 1, 2]
    assert one.shard.next_due_ms() == 1_100
    assert delivered(one, 99) == []
    assert delivered(one, 100) == [3, 4, 5]  # the window that began at 0 ends before this instant
    assert delivered(one, 199) == []
    assert delivered(one, 250) == [6, 7, 8]
    assert one.shard.next_due_ms() > 10_000, "nothing waits"


def test_the_window_slides() -> None:
    one = world(*[{}] * 9, rate=Rate(2, 100))
    one.subscribe("inky", 1)
    assert delivered(one, 0) == [0]
    one.subscribe("inky", 9)
    assert delivered(one, 60) == [1]
    assert delivered(one, 100) == [2]
    assert delivered(one, 159) == []
    assert delivered(one, 160) == [3]


def test_redeliveries_count_and_barriers_do_not() -> None:
    one = world({}, {"b": "yes"}, {}, {}, traits=BARRIER, rate=Rate(2, 100))
    assert delivered(one, 0) == [0]
    one.settle("cancel", "inky", Claim("orders", 0, 0, 0))
    assert delivered(one, 10) == [0]
    one.settle("acknowledge", "inky", Claim("orders", 0, 0, 0))
    assert delivered(one, 20) == [1], "the barrier alone"
    assert delivered(one, 100) == [2]
    assert delivered(one, 110) == [3]


@pytest.mark.feature("C70")
def test_each_group_has_its_rate_and_a_message_without_one_is_its_own() -> None:
    bodies = [{"g": "x"}, {"g": "x"}, {}, {"g": "y"}, {}, {"g": "x"}]
    one = world(*bodies, traits=GROUP, group_limit=9, group_rate=Rate(1, 100))
    assert delivered(one, 0) == [0, 2, 3, 4]
    one.settle("cancel", "inky", Claim("orders", 0, 2, 2))
    assert delivered(one, 40) == []
    one.settle("acknowledge", "inky", Claim("orders", 0, 0, 0))
    assert one.shard.next_due_ms() == 1_100
    assert delivered(one, 99) == []
    assert delivered(one, 100) == [1, 2]
    assert delivered(one, 200) == [5]


def test_both_rates_hold_and_the_turn_goes_on_meanwhile() -> None:
    one = world(
        *[{"g": "x"}] * 4, *[{"g": "y"}] * 4, traits=GROUP, group_limit=9, rate=Rate(3, 100), group_rate=Rate(2, 150)
    )
    assert delivered(one, 0) == [0, 4, 1]
    assert delivered(one, 100) == [5]
    assert delivered(one, 150) == [2, 6]
    assert delivered(one, 199) == []
    assert delivered(one, 200) == [3]


def test_what_was_delivered_before_a_crash_counts() -> None:
    with small(ring=2):
        one = world(
            *[{"g": n % 2} for n in range(20)], traits=GROUP, group_limit=9, group_rate=Rate(2, 100), rate=Rate(3, 100)
        )
        assert delivered(one, 0) == [0, 1, 2]
        one.commit()
        for wait_ms in range(0, 90, 10):
            one.crash()
            assert delivered(one, wait_ms) == []
            one.commit()
        one.crash()
        assert delivered(one, 100) == [3, 4, 5]


@pytest.mark.slow
def test_what_is_in_no_window_any_more_is_forgotten() -> None:
    one = world(*[{"g": n} for n in range(60)], traits=GROUP, rate=Rate(1, 10), group_rate=Rate(1, 20))
    for at_ms in range(0, 500, 10):
        assert len(delivered(one, at_ms)) == 1
        one.commit()
    assert len(one.shard.state.counted.batches) <= 3
    assert len(one.shard.state.counted._lines) <= 4
    assert sum(key[:1] == b"r" for key in one.log.latest()) <= 3
    one.crash(replace(one.settings, rate=None, group_rate=None))
    assert not one.shard.state.counted.batches
    assert sum(key[:1] == b"r" for key in one.log.latest()) == 0


def test_a_changed_rate_counts_what_was_delivered() -> None:
    one = world(*[{}] * 9, rate=Rate(4, 1_000))
    assert delivered(one, 0) == [0, 1, 2, 3]
    one.commit()
    one.crash(replace(one.settings, rate=Rate(2, 1_000)))
    assert delivered(one, 999) == []
    assert delivered(one, 1_000) == [4, 5]
    one.commit()
    one.crash(replace(one.settings, rate=Rate(3, 1_000)))
    assert delivered(one, 1_000) == [6]


def test_while_the_clock_is_behind_a_delivery_counts_as_of_the_latest_instant() -> None:
    one = world(*[{}] * 9, rate=Rate(2, 100))
    one.subscribe("inky", 1)
    assert delivered(one, 50) == [0]
    one.subscribe("inky", 9)
    one.now_ms -= 40
    assert delivered(one) == [1]
    assert delivered(one, 149) == []
    assert delivered(one, 150) == [2, 3]


def test_deliveries_count_as_of_when_they_are_written_where_somebody_says_so() -> None:
    """A log shows when a record was written: two that were decided a window apart may stand closer together in it."""
    one = world(*[{}] * 9, rate=Rate(2, 100))
    shard, allowance = one.shard, one.shard.allowance
    allowance.counts_as_written = True

    def count(now_ms: int) -> int:
        step = Step()
        shard.advance(now_ms, step)
        shard.deliver(now_ms, step)
        return sum(len(delivery.messages) for delivery in step.deliveries)

    assert count(1_000) == 2
    assert count(1_100) == 0
    assert shard.next_due_ms() >= NEVER or shard.next_due_ms() > 100_000, "nobody knows yet when it may go on"
    allowance.note_written(allowance.counted_to, 1_120)
    assert shard.next_due_ms() <= 1_120, "it is looked at once that is known"
    assert count(1_121) == 0
    assert shard.next_due_ms() == 1_220
    assert count(1_219) == 0
    assert count(1_220) == 2


@pytest.mark.parametrize("by_ms", [5_000, 1 << 40])
def test_deliveries_of_an_owner_before_count_as_of_when_they_were_written_at_the_latest(by_ms: int) -> None:
    for unwritten in (False, True):
        one = world(*[{}] * 9, rate=Rate(2, 1_000))
        assert delivered(one, 0) == [0, 1]
        shard, step = one.shard, Step()
        shard.allowance.counts_as_written = True
        shard.take_over(by_ms, step, unwritten)
        counts_ms = shard.state.counted.counts_ms(shard.allowance.counted_to)
        assert counts_ms == (by_ms if unwritten else min(by_ms, 1_000 + shard.allowance.written_within_ms))


def test_slow_writes_of_an_owner_before_count_from_their_ends() -> None:
    """Batches counted from 250 ms after their decision at most, although a write may take longer."""
    one = world(*[{}] * 9, rate=Rate(4, 10_000))
    shard, journal = one.shard, QueueJournal(one.shard.state, 2)
    written: dict[bytes, bytes | None] = dict(one.log.latest())
    shard.allowance.counts_as_written = True
    for backlog, now_ms in ((2, 1_000), (4, 3_000)):
        step = Step()
        shard.subscribing.subscribe("inky", "c", backlog, 100_000, "", now_ms, step)
        shard.deliver(now_ms, step)
        assert sum(len(delivery.messages) for delivery in step.deliveries) == 2
        written.update(journal.encode(step))
        shard.allowance.note_written(shard.allowance.counted_to, now_ms + 900)
    heir = QueueShard(shard.settings, restore((key, value) for key, value in written.items() if value).state)
    heir.allowance.counts_as_written = True
    heir.take_over(5_000, Step(), unwritten=False)
    assert [heir.state.counted.counts_ms(number) for number in (0, 1)] == [1_900, 5_000]


@pytest.mark.parametrize("lease_ms", [1, 5_000, 60_000, 3_600_000])
def test_a_worker_ends_before_a_write_takes_longer_than_that(lease_ms: int) -> None:
    settings = QueueSettings(name="orders", lease_ms=lease_ms, max_lease_ms=lease_ms, rate=Rate(2, 1_000))
    allowance = QueueShard(settings, QueueState()).allowance
    assert (sendable_s(lease_ms) + patience_s(lease_ms)) * 1_000 <= allowance.written_within_ms


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_group_rates_hold_however_few_messages_a_step_takes(at_once: int) -> None:
    with small(at_once=at_once):
        one = world(*[{"g": n % 3} for n in range(30)], traits=GROUP, group_limit=9, group_rate=Rate(2, 100))
        assert sorted(delivered(one, 0)) == [0, 1, 2, 3, 4, 5]
        assert one.shard.next_due_ms() == 1_100
        assert sorted(delivered(one, 100)) == [6, 7, 8, 9, 10, 11]


@pytest.mark.feature("C48", "Q15")
def test_a_peek_says_for_which_rate_a_message_waits_and_until_when() -> None:
    one = world(
        {"g": "a"}, {"g": "a"}, {"g": "b"}, {}, traits=GROUP, rate=Rate(3, 500), group_rate=Rate(1, 100), group_limit=9
    )
    one.subscribe("inky", 2)

    def waits() -> dict[int, str]:
        peeked = {shown.offset: shown.waits_for for shown in one.shard.peek(0, 9, now_ms=one.now_ms)}
        claims = [Claim("orders", 0, 0, 9)]
        assert {
            shown.offset: shown.waits_for for shown in one.shard.find_named(claims, one.now_ms, lambda _: "")
        } == peeked
        return {offset: text for offset, text in peeked.items() if text}

    assert waits() == {}
    assert delivered(one, 0) == [0, 2]
    assert waits() == {1: "the rate of its group, not before 1970-01-01T00:00:01.100Z"}
    one.subscribe("inky", 9)
    assert delivered(one, 10) == [3]
    assert waits() == {1: "the rate of its queue and the rate of its group, not before 1970-01-01T00:00:01.500Z"}
    one.advance(90)
    assert waits() == {1: "the rate of its queue, not before 1970-01-01T00:00:01.500Z"}
    one.advance(400)
    assert waits() == {}
    one.shard.allowance.counts_as_written = True
    assert delivered(one) == [1]
    one.publish("orders", body={"g": "a"})
    one.read("orders")
    assert waits() == {4: "the rate of its group, not before deliveries before it are written"}


def counting_as_written() -> QueueShard:
    """A shard whose deliveries count from when they are written, with a subscription."""
    shard = QueueShard(QueueSettings(name="orders", traits=GROUP, group_limit=9, group_rate=Rate(1, 100)))
    shard.allowance.counts_as_written = True
    shard.subscribing.subscribe("inky", "a client", 9, 100_000, "", 1_000, Step())
    return shard


def arrive(shard: QueueShard, offset: int, group: str) -> None:
    value = b'{"g": "%s"}' % group.encode() if group else b"{}"
    record = SimpleNamespace(offset=offset, timestamp=1_000, key=None, value=value, headers=())
    shard.arrive("orders", 0, [record], Step())


def handed_out(shard: QueueShard, now_ms: int) -> list[int]:
    step = Step()
    shard.advance(now_ms, step)
    shard.deliver(now_ms, step)
    return [offset for sent in step.deliveries for offset in sent.messages.offsets.tolist()]


def test_a_group_whose_delivery_is_being_written_does_not_wait_for_another_group() -> None:
    """If the other group had nothing left when its rate permitted more, this group waited for ever."""
    shard = counting_as_written()
    arrive(shard, 0, "x")
    arrive(shard, 1, "x")
    assert handed_out(shard, 1_000) == [0]
    shard.allowance.note_written(shard.allowance.counted_to, 1_000)
    assert handed_out(shard, 1_001) == []
    arrive(shard, 2, "y")
    arrive(shard, 3, "y")
    assert handed_out(shard, 1_010) == [2]
    assert handed_out(shard, 1_020) == []
    assert handed_out(shard, 1_025) == []
    assert shard.allowance.note_written(shard.allowance.counted_to, 1_030), "a message waits for that"
    assert handed_out(shard, 1_040) == []
    shard.settle(SettleAction.ACKNOWLEDGE, "inky", [Claim("orders", 0, 1, 1)], 1_050, Step())
    assert handed_out(shard, 1_100) == []
    assert shard.next_due_ms() == 1_130
    assert handed_out(shard, 1_130) == [3]


@pytest.mark.feature("C70")
def test_a_message_without_a_group_that_comes_back_while_its_delivery_is_written_waits_for_its_rate() -> None:
    shard = counting_as_written()
    arrive(shard, 0, "")
    assert handed_out(shard, 1_000) == [0]
    shard.settle(SettleAction.CANCEL, "inky", [Claim("orders", 0, 0, 0)], 1_010, Step())
    assert handed_out(shard, 1_010) == []
    assert shard.allowance.note_written(shard.allowance.counted_to, 1_020), "a message waits for that"
    assert handed_out(shard, 1_020) == []
    assert shard.next_due_ms() == 1_120
    assert handed_out(shard, 1_120) == [0]


@pytest.mark.parametrize("rate", [Rate(1, 100), Rate(2, 100)])
def test_a_group_that_waits_for_its_rate_is_not_looked_at_with_each_delivery(rate: Rate) -> None:
    """Where it had a message that nobody takes, each delivery looked at it, and kept one more note of it."""
    bodies = [{"g": "x", "b": "yes"}, *[{"g": "x", "f": 1}] * rate.count, {"g": "x"}, {"g": "x", "f": 1}]
    one = world(*bodies, traits=GROUP, group_limit=9, group_rate=rate)
    one.subscribe("inky", 100, text="/f = 1")
    assert delivered(one, 0) == list(range(1, rate.count + 1))
    for _ in range(20):
        assert delivered(one, 1) == []
    lines = one.shard.state.index.lines
    assert lines is not None
    assert len(lines.set_aside._until) <= 2
    one.subscribe("blinky", 100, text="/b = 'yes'")
    assert one.deliver() == {}
    one.settle("cancel", "inky", Claim("orders", 0, 1, 1))
    assert one.shard.next_due_ms() == 1_100
    one.advance(98)
    assert one.deliver() == {}
    one.advance(1)
    sent = {name: [each.bookmark[2] for each in share] for name, share in one.deliver().items()}
    assert sent == {"blinky": [0]} | ({"inky": [1]} if rate.count == 2 else {})


@pytest.mark.feature("C60", "C70")
def test_messages_without_a_group_that_wait_for_their_rates_are_looked_at_once() -> None:
    """With 20,000 of them that had come back, each delivery took 136 ms of CPU until their rates permitted more."""
    one = world(*[{}] * 30, {"g": "x"}, traits=GROUP, group_rate=Rate(1, 100))
    assert len(delivered(one, 0)) == 31
    one.settle("cancel", "inky", Claim("orders", 0, 0, 29))
    assert delivered(one, 10) == []
    candidates: list[int] = []
    with mock.patch.object(GroupChooser, "_candidate", lambda self, entry, *_: candidates.append(entry[3])):
        assert one.deliver() == {}
    assert not candidates
    one.settle("acknowledge", "inky", Claim("orders", 0, 3, 3))
    one.publish("orders", body={})
    one.read("orders")
    assert delivered(one, 20) == [31]
    assert one.shard.next_due_ms() == 1_100
    assert delivered(one, 99) == []
    assert delivered(one, 100) == [*range(3), *range(4, 30)]


def test_a_search_through_messages_that_are_groups_of_their_own_is_over_before_another_begins() -> None:
    """Messages without a group came back, and wait for the rate: the search for others never ended."""
    with small(size=3, ring=2, at_once=1):
        one = World(QueueSettings(name="orders", lease_ms=100, group_rate=Rate(1, 100_000), traits=GROUP))
        one.subscribe("inky", 4)
        for _ in range(10):
            one.publish("orders")
        one.read("orders")
        one.deliver()
        one.advance(100)
        one.deliver()
        assert [len(one.oracle.in_state(state)) for state in ("leased", "available")] == [4, 6]
