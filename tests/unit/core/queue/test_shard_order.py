"""Filters, priority, barriers, groups and target depth by name; each also runs beside the oracle (Q11 to Q14, Q20)."""

from dataclasses import replace
from itertools import groupby

import pytest

from lapse.core.expression import compile_filter, compile_value
from lapse.core.lifetime import Expiration
from lapse.core.queue.arrival.trait import TraitReader
from lapse.core.queue.command import QueueCommands
from lapse.core.queue.groups.waiting_groups import WaitingGroups
from lapse.core.queue.schedule.scheduled import Scheduled
from lapse.core.queue.settings import Fairness, Leasing, QueueSettings, Semantics
from lapse.core.queue.settlement.settlement import Claim, SettleAction
from lapse.core.queue.step import Step
from lapse.protocol.command import Command
from unit.core.queue.compared.small_shard import small
from unit.core.queue.world import World

ON = Expiration(enabled=True)
ONCE = {"semantics": Semantics.AT_MOST_ONCE, "fairness": Fairness.ROUND_ROBIN}
PRIORITY = TraitReader(priority=compile_value("/p"))
BARRIER = TraitReader(barrier=compile_filter("/b = 'yes'"))
GROUP = TraitReader(group=compile_value("/g"))
STOP = {"b": "yes"}

pytestmark = pytest.mark.usefixtures("each_room")


def world(*bodies: dict, said: dict | None = None, **settings) -> World:
    settings.setdefault("lease_ms", 100)
    settings.setdefault("dead_letter_topic", "dlq.orders")
    one = World(QueueSettings(name="orders", **settings))
    publish(one, *bodies, **(said or {}))
    return one


def publish(one: World, *bodies: dict, **said) -> None:
    for body in bodies:
        one.publish("orders", body=body, **said)
    one.read("orders")


def at(first: int, last: int | None = None, token: int | None = None) -> Claim:
    return Claim("orders", 0, first, first if last is None else last, token)


def got(deliveries, subscription: str) -> list[int]:
    return [one.bookmark[2] for one in deliveries.get(subscription, [])]


def depth(one: World) -> int:
    return one.shard.depth()["depth"]


# Content filters


@pytest.mark.feature("Q14")
def test_a_subscription_gets_the_oldest_that_matches_and_others_the_rest() -> None:
    one = world({"f": 0}, {"f": 1}, {}, {"f": 2})
    one.subscribe("inky", 1, text="/f > 0")
    one.subscribe("blinky", 4)
    assert got(one.deliver(), "inky") == [1]


@pytest.mark.feature("Q14")
def test_what_nobody_takes_stays_and_holds_nobody_up() -> None:
    one = world({"f": 0}, {"f": 0}, {"f": 1})
    one.subscribe("inky", 5, text="/f = 1")
    assert got(one.deliver(), "inky") == [2]
    assert depth(one) == 3
    one.subscribe("inky", 5)
    assert got(one.deliver(), "inky") == [0, 1]


@pytest.mark.feature("Q14")
def test_a_message_for_a_subscription_that_is_full_now_does_not_hold_up_the_others() -> None:
    one = world({"f": 1}, {"f": 1}, STOP)
    one.subscribe("inky", 1, text="/f = 1")
    one.subscribe("blinky", 1, text="/b = 'yes'")
    assert got(one.deliver(), "blinky") == [2]


@pytest.mark.feature("Q14", "Q7")
def test_with_filters_too_the_least_used_subscription_comes_first_whatever_it_had_before() -> None:
    one = world({"f": 1}, fairness=Fairness.PROPORTIONAL)
    one.subscribe("inky", 2, text="/f = 1")
    one.deliver()
    one.subscribe("blinky", 4, text="/f = 1")
    publish(one, *({"f": 1} for _ in range(4)))
    deliveries = one.deliver()
    assert (got(deliveries, "inky"), got(deliveries, "blinky")) == ([3], [1, 2, 4])


@pytest.mark.feature("Q14", "Q15")
def test_a_filter_is_forgotten_with_its_last_use() -> None:
    one = world({"f": 1}, {"f": 0})
    one.subscribe("inky", 1, text="/f = 1")
    for text in ("/f > 0", "/f = 1"):
        assert len(one.peek(text)) == 1
        assert one.shard.matching.active
    one.unsubscribe("inky")
    assert not one.shard.matching.active


@pytest.mark.feature("Q14", "Q16")
def test_after_a_crash_payloads_are_judged_before_anything_is_delivered() -> None:
    with small(size=3):
        one = world(*({"f": number % 2} for number in range(10)))
        one.subscribe("inky", 10, text="/f = 1")
        one.commit()
        one.crash()
        step = one._open()
        assert one.shard.deliver(one.now_ms, step)
        assert one.shard.unjudged
        assert step.deliveries == []
        assert got(one.deliver(), "inky") == [1, 3, 5, 7, 9]


@pytest.mark.feature("Q14", "C40")
def test_a_message_whose_record_is_gone_matches_nothing_and_does_not_hold_up_the_others() -> None:
    one = world({"f": 1}, {"f": 1})
    one.commit()
    one.crash()
    one.shard.subscribing.subscribe("inky", "", 5, 1 << 40, "/f = 1", one.now_ms, one._open())
    while one.shard.deliver(one.now_ms, one.step) and one.shard.unjudged:
        one.shard.judge([(p, "orders", 0, None if p == 0 else one.topics["orders", 0][p]) for p in one.shard.unjudged])
    assert [d.messages.offsets.tolist() for d in one.step.deliveries] == [[1]]


@pytest.mark.feature("Q14")
def test_what_arrives_under_a_filter_is_judged_from_the_payload_that_came_with_it() -> None:
    one = world()
    one.subscribe("inky", 4, text="/f = 1")
    publish(one, {"f": 1}, {"f": 0}, {"f": 1})
    step = Step()
    one.shard.deliver(one.now_ms, step)
    assert not one.shard.unjudged, "a payload is read back that was there a moment ago"
    assert [offset for sent in step.deliveries for offset in sent.messages.offsets] == [0, 2]


@pytest.mark.feature("Q14", "X1")
@pytest.mark.parametrize(
    "text",
    [
        "TOPIC() = 'orders'",
        "PARTITION() = 0",
        "OFFSET() = 1",
        "KEY() = 'k'",
        "HEADER('trace') = '2'",
        "TIMESTAMP_MS() > 0",
    ],
)
def test_a_filter_may_ask_for_all_that_a_record_says(text: str) -> None:
    one = world()
    one.publish("direct")
    one.publish("orders")
    one.publish("orders", key=b"k")
    one.topics["orders", 0][1].headers = [("trace", b"1"), ("trace", b"2")]
    for topic in ("orders", "direct"):
        one.read(topic)
    one.shard.subscribing.subscribe("inky", "", 3, 100_000, text, one.now_ms, one.step)
    while one.shard.deliver(one.now_ms, one.step):
        one.judge(one.shard.unjudged)
    sent = [(s.messages.topic, offset) for s in one.step.deliveries for offset in s.messages.offsets.tolist()]
    everywhere = [("orders", 0), ("orders", 1), ("direct", 0)]
    assert sent == {"TOPIC": everywhere[:2], "PARTI": everywhere, "TIMES": everywhere}.get(text[:5], [("orders", 1)])


@pytest.mark.feature("Q14", "X7")
def test_a_subscription_whose_filter_cannot_be_compiled_leaves_no_trace() -> None:
    one = world({"f": 1})
    one.subscribe("inky", 1, text="/f = 1")
    step = Step()
    for name in ("inky", "blinky"):
        with pytest.raises(ValueError, match="column"):
            one.shard.subscribing.subscribe(name, "", 1, 1_000, "/f = = 1", one.now_ms, step)
    assert step == Step()
    one.check()
    assert got(one.deliver(), "inky") == [0]


@pytest.mark.feature("Q14")
def test_what_is_known_of_a_segment_goes_with_it() -> None:
    with small(size=3):
        one = world()
        one.subscribe("inky", 3, text="/f = 1")
        for _ in range(5):
            publish(one, {"f": 1}, {"f": 1}, {"f": 1})
            one.deliver()
            one.settle("acknowledge", "inky", at(0, 100))
            one.commit()
        (columns,) = [columns for _, columns in one.shard.matching._filters.values()]
        assert columns == {}


# Settlement, purge and peek by filter


@pytest.mark.feature("Q8", "C14")
def test_a_filter_covers_unleased_messages_and_under_strict_ones_own_leases_only() -> None:
    for leasing, results in (
        (Leasing.SUBLET, ["settled"] * 3),
        (Leasing.STRICT, ["settled", "not_holder", "not_leased"]),
    ):
        one = world({"f": 1}, {"f": 1}, {"f": 0}, {"f": 1}, leasing=leasing)
        one.subscribe("inky")
        one.subscribe("blinky")
        one.deliver()
        assert one.settle_by_filter("acknowledge", "inky", "/f = 1") == results


@pytest.mark.feature("Q6", "Q8", "C18")
@pytest.mark.parametrize("action", ["acknowledge", "cancel", "expire"])
def test_a_filter_frees_the_places_of_what_was_sent_at_most_once(action: str) -> None:
    one = world({"f": 1}, {"f": 0}, {"f": 1}, **ONCE)
    one.subscribe("inky", 2)
    one.deliver()
    assert one.settle_by_filter(action, "inky", "/f > 0")[0] == "settled"
    assert one.shard.depth()["depth"] == (1 if action == "cancel" else 0), "a cancel spares what was not sent"
    publish(one, {"f": 2})
    assert len(got(one.deliver(), "inky")) == 1, "one place was free"


@pytest.mark.feature("Q8", "C18", "X4")
def test_under_a_row_filter_a_filter_frees_only_the_places_of_its_user() -> None:
    one = world({"f": 1}, {"f": 1}, **ONCE)
    one.subscribe("inky", 1)
    one.subscribe("blinky", 1)
    one.deliver()
    commands = QueueCommands(one.shard, "")
    for sender, settled in (("stranger", 0), ("inky", 1), ("inky", 0), ("blinky", 1)):
        step = Step()
        with one.selection("/f = 1"):
            command = Command(command="acknowledge", id="c", subscription=sender, filter="/f = 1")
            commands.handle(command, one.now_ms, step, "/f > 0")
        (answer,) = step.answers
        assert dict(answer.counts) == {"settled": settled, "skipped": 0}


@pytest.mark.feature("Q8", "C16")
def test_a_filter_names_no_scheduled_message() -> None:
    one = world({"f": 1})
    publish(one, {"f": 1}, enqueue_at_ms=5_000)
    assert one.settle_by_filter("acknowledge", "inky", "/f = 1") == ["settled"]
    assert one.shard.depth()["scheduled"] == 1


@pytest.mark.feature("C37")
def test_purge_by_filter_leaves_the_rest_and_what_is_leased() -> None:
    one = world({"f": 1}, {"f": 0}, {"f": 1}, {"f": 1})
    one.subscribe("inky")
    one.deliver()
    assert one.purge(text="/f = 1") == (2, 1)
    assert one.purge(leased=True, text="/f = 1") == (1, 0)
    assert one.peek() == [("orders", 0, 1)]


@pytest.mark.feature("Q15")
def test_peek_by_filter_shows_leased_ones_too_and_takes_no_lease() -> None:
    one = world({"f": 1}, {"f": 0}, {"f": 1}, {"f": 2})
    one.subscribe("inky")
    one.deliver()
    assert [offset for _, _, offset in one.peek("/f > 0", skip=1, limit=2)] == [2, 3]
    assert [offset for _, _, offset in one.peek("/f > 0")] == [0, 2, 3]


# Withdrawal


@pytest.mark.feature("L5", "L14")
def test_a_scheduled_message_is_withdrawn_by_its_bookmark_and_never_comes() -> None:
    one = world({}, said={"enqueue_at_ms": 1_100})
    assert one.settle("cancel", "inky", at(0)) == ["settled"]
    one.commit()
    one.crash()
    assert one.settle("cancel", "inky", at(0)) == ["already_settled"]
    one.advance(1_000)
    one.subscribe("inky")
    assert one.deliver() == {}


@pytest.mark.feature("C16", "L5")
def test_in_a_range_scheduled_messages_are_left_alone() -> None:
    one = world({}, {}, said={"enqueue_at_ms": 1_100})
    assert one.settle("cancel", "inky", at(0, 1)) == ["scheduled", "scheduled"]
    assert one.shard.depth()["scheduled"] == 2


@pytest.mark.feature("C15", "L5")
def test_a_scheduled_message_past_its_deadline_is_expired_not_withdrawn() -> None:
    one = world({}, said={"enqueue_at_ms": 5_000, "expires_at_ms": 1_050}, expiration=ON)
    one.now_ms += 50
    assert one.settle("cancel", "inky", at(0)) == ["time_limit"]
    assert [out.reasons for out in one.advance()] == [("time_limit",)]


# Priority


@pytest.mark.feature("Q11", "C31")
def test_priority_is_unsigned_64_bits_and_everything_else_is_lowest_and_oldest_first() -> None:
    ranks = [None, "9", 5, 5.9, 2**64 - 1, 2**64 - 2, 2**63, 0, -1, 2**64, True, float("nan"), 5]
    one = world(*({"p": rank} for rank in ranks), {}, traits=PRIORITY)
    one.subscribe("inky", 20)
    assert got(one.deliver(), "inky") == [4, 5, 6, 2, 3, 12, 7, 0, 1, 8, 9, 10, 11, 13]


@pytest.mark.feature("Q11")
def test_priority_holds_over_segments_returns_and_crashes() -> None:
    with small(size=3):
        one = world(*({"p": number * 7 % 10} for number in range(10)), traits=PRIORITY)
        one.subscribe("inky", 2)
        assert [n * 7 % 10 for n in got(one.deliver(), "inky")] == [9, 8]
        one.settle("cancel", "inky", at(7))
        assert [n * 7 % 10 for n in got(one.deliver(), "inky")] == [9]
        one.commit()
        for _ in range(10):
            one.heard("inky")
            one.commit()
        one.crash()
        one.subscribe("blinky", 10)
        assert [n * 7 % 10 for n in got(one.deliver(), "blinky")] == [7, 6, 5, 4, 3, 2, 1, 0]


@pytest.mark.feature("Q11", "L10")
def test_an_expired_message_of_high_priority_is_not_delivered() -> None:
    with small(size=2):
        one = world({"p": 9}, {"p": 8}, said={"ttl_ms": 50}, traits=PRIORITY, expiration=ON)
        publish(one, {"p": 1}, {"p": 2}, {"p": 3})
        one.now_ms += 50
        one.subscribe("inky", 2)
        assert got(one.deliver(), "inky") == [4, 3]


@pytest.mark.feature("Q11", "L10")
def test_what_stands_behind_an_expired_message_of_high_priority_comes_in_its_turn() -> None:
    with small(size=2):
        one = world({"p": 9}, traits=PRIORITY, expiration=ON, said={"ttl_ms": 50})
        publish(one, {"p": 1}, {"p": 5}, {"p": 4})
        one.subscribe("inky", 1)
        one.now_ms += 50
        assert got(one.deliver(), "inky") == [2]


@pytest.mark.feature("L10", "C2", "C15")
@pytest.mark.parametrize("traits", [TraitReader(), PRIORITY])
def test_the_first_instant_of_all_counts_like_any_other(traits: TraitReader) -> None:
    one = world({}, traits=traits, expiration=ON, said={"timestamp": -1, "expires_at_ms": 0})
    one.now_ms = 0
    one.subscribe("inky", 1)
    assert one.deliver() == {}
    assert one.settle("acknowledge", "inky", at(0)) == ["time_limit"]


@pytest.mark.feature("Q11", "C37")
def test_a_segment_that_leaves_at_once_is_forgotten_by_priority() -> None:
    with small(size=2):
        one = world({"p": 9}, {"p": 8}, traits=PRIORITY)
        one.subscribe("inky", 0)
        one.deliver()
        one.subscribe("inky", 1, text="/f = 1")
        one.deliver()
        one.purge()
        publish(one, {"p": 1, "f": 1})
        assert got(one.deliver(), "inky") == [2]


@pytest.mark.feature("Q11", "Q14")
def test_a_filter_gets_the_highest_that_matches() -> None:
    one = world({"p": 9, "f": 0}, {"p": 1, "f": 1}, {"p": 5, "f": 1}, traits=PRIORITY)
    one.subscribe("inky", 1, text="/f = 1")
    assert got(one.deliver(), "inky") == [2]


@pytest.mark.feature("Q11")
def test_tops_do_not_pile_up() -> None:
    with small(size=500):
        one = world({"p": 1}, traits=PRIORITY)
        one.subscribe("inky", 1)
        step = Step()
        for number in range(1, 400):
            record = one.topics["orders", 0][0]
            records = [type(record)(offset=number, timestamp=1_000, value=b'{"p": 9}')]
            one.shard.arrive("orders", 0, records, step)
            one.shard.deliver(1_000, step)
            claims = [at(int(d.messages.offsets[0])) for d in step.deliveries]
            one.shard.settle(SettleAction.ACKNOWLEDGE, "inky", claims, 1_000, step)
            step.deliveries.clear()
        assert len(one.shard.state.index.tops._heap) < 100
        assert list(one.shard.state.index.tops.by_key()) == [0]
        assert not one.shard.state.index.tops._stale


@pytest.mark.feature("Q11", "Q14")
def test_a_filter_gets_the_best_of_all_segments_in_order() -> None:
    with small(size=2):
        one = world(traits=PRIORITY)
        one.subscribe("inky", 8, text="/f = 1")
        publish(one, *({"p": rank, "f": 1} for rank in (9, 1, 5, 2, 3, 3, 0, 0)))
        assert got(one.deliver(), "inky") == [0, 2, 4, 5, 3, 1, 6, 7]


@pytest.mark.feature("Q11", "L9")
def test_by_priority_too_each_delivery_says_its_own_deadline() -> None:
    with small(size=2):
        one = world(traits=PRIORITY, expiration=ON)
        for rank in range(4):
            publish(one, {"p": rank}, **({} if rank == 2 else {"ttl_ms": 1_000 + rank}))
        one.subscribe("inky", 4)
        sent = one.deliver()["inky"]
        assert [(m.bookmark[2], m.deadline_ms) for m in sent] == [(3, 2_003), (2, None), (1, 2_001), (0, 2_000)]


@pytest.mark.feature("Q11", "Q12", "Q20")
def test_a_trait_counts_while_the_queue_asks_for_it() -> None:
    body = [{"p": 1, **STOP, "g": "x"}, {"p": 2, "g": "x"}, {"p": 3, "g": "x"}]
    everything = TraitReader(PRIORITY.priority, BARRIER.barrier, GROUP.group)
    one = world(*body, traits=everything)
    one.commit()
    one.crash(QueueSettings(name="orders", lease_ms=100))
    one.subscribe("inky", 2)
    assert got(one.deliver(), "inky") == [0, 1]
    one.settle("cancel", "inky", at(0, 1))
    one.commit()
    one.crash(QueueSettings(name="orders", lease_ms=100, traits=everything))
    assert [(sent.bookmark[2], sent.barrier) for sent in one.deliver()["inky"]] == [(0, True), (2, False)]


@pytest.mark.feature("Q12", "L5")
def test_a_scheduled_message_has_the_traits_that_the_queue_asks_for_when_it_enters() -> None:
    both = TraitReader(PRIORITY.priority, BARRIER.barrier, None)
    one = world({"p": 1, **STOP}, said={"enqueue_at_ms": 1_500}, traits=both)
    one.commit()
    one.crash(QueueSettings(name="orders", lease_ms=100, traits=PRIORITY))
    one.advance(500)
    one.commit()
    one.crash(QueueSettings(name="orders", lease_ms=100, traits=both))
    one.subscribe("inky")
    assert [(sent.bookmark[2], sent.barrier) for sent in one.deliver()["inky"]] == [(0, False)]


# Barriers


def barrier_world(before: int = 1, behind: int = 1, **settings) -> World:
    return world(*[{}] * before, STOP, *[{}] * behind, traits=BARRIER, **settings)


def sent(deliveries, subscription: str) -> list[tuple[int, bool]]:
    return [(one.bookmark[2], one.barrier) for one in deliveries.get(subscription, [])]


@pytest.mark.feature("Q12")
def test_a_barrier_waits_for_all_before_it_and_holds_back_all_behind_it() -> None:
    one = barrier_world(before=2, behind=2)
    one.subscribe("inky", 1)
    one.subscribe("blinky", 10)
    one.deliver()
    assert one.deliver() == {}
    one.settle("acknowledge", "inky", at(0))
    assert one.deliver() == {}
    one.settle("acknowledge", "blinky", at(1))
    deliveries = one.deliver()
    assert (sent(deliveries, "inky"), sent(deliveries, "blinky")) == ([(2, True), (3, False)], [(2, True), (4, False)])
    assert depth(one) == 2


@pytest.mark.feature("Q12")
@pytest.mark.parametrize("backlog", [0, 1])
def test_a_barrier_ignores_a_full_backlog_and_costs_none(backlog: int) -> None:
    one = barrier_world(before=0, behind=0)
    one.subscribe("inky", backlog)
    assert sent(one.deliver(), "inky") == [(0, True)]
    publish(one, {}, STOP)
    one.subscribe("blinky", 1)
    one.subscribe("inky", 0)
    one.deliver()
    one.settle("acknowledge", "blinky", at(1))
    assert sent(one.deliver(), "inky") == [(2, True)]
    assert one.settle("acknowledge", "inky", at(2)) == ["already_settled"]


@pytest.mark.feature("Q12", "C34")
def test_a_filter_decides_who_gets_a_barrier_not_who_waits() -> None:
    one = barrier_world(before=1, behind=1)
    one.subscribe("inky", 10, text="/f = 1")
    one.subscribe("blinky", 1)
    one.deliver()
    one.settle("acknowledge", "blinky", at(0))
    deliveries = one.deliver()
    assert (sent(deliveries, "inky"), sent(deliveries, "blinky")) == ([], [(1, True), (2, False)])


@pytest.mark.feature("C34")
def test_a_barrier_that_nobody_matches_is_released_and_one_without_any_subscription_waits() -> None:
    one = barrier_world(before=0, behind=1)
    assert one.deliver() == {}
    assert depth(one) == 2
    one.subscribe("inky", 1, text="/f = 1")
    assert one.deliver() == {}
    assert depth(one) == 1


@pytest.mark.feature("C34")
def test_a_barrier_that_waits_for_a_subscription_ends_with_its_own_lifetime() -> None:
    one = barrier_world(before=0, behind=1, said={"ttl_ms": 50}, expiration=ON)
    publish(one, {})
    one.now_ms += 50
    one.subscribe("inky", 5)
    assert one.deliver() == {}
    assert [out.bookmark[2] for out in one.advance()] == [0, 1]
    assert sent(one.deliver(), "inky") == [(2, False)]


@pytest.mark.feature("Q12")
def test_two_barriers_in_a_row_are_sent_one_after_the_other() -> None:
    one = world(STOP, STOP, {}, STOP, traits=BARRIER)
    one.subscribe("inky", 5)
    assert sent(one.deliver(), "inky") == [(0, True), (1, True), (2, False)]
    one.settle("acknowledge", "inky", at(2))
    assert sent(one.deliver(), "inky") == [(3, True)]


@pytest.mark.feature("Q12", "Q5")
@pytest.mark.parametrize("how", ["lease ends", "delayed", "expired by hand", "too often"])
def test_while_a_barrier_waits_what_comes_back_goes_before_it(how: str) -> None:
    one = barrier_world(max_deliveries=1 if how == "too often" else 0)
    one.subscribe("inky", 5)
    one.deliver()
    if how == "delayed":
        one.settle("cancel", "inky", at(0), delay_ms=50)
        assert one.deliver() == {}
        one.advance(50)
    elif how == "expired by hand":
        one.settle("expire", "inky", at(0))
    else:
        one.advance(100)
    if how in ("too often", "expired by hand"):
        assert sent(one.deliver(), "inky") == [(1, True), (2, False)]
    else:
        assert sent(one.deliver(), "inky") == [(0, False)]


@pytest.mark.feature("C11", "Q12")
def test_a_barrier_does_not_wait_for_what_is_not_due_and_a_scheduled_barrier_stands_where_it_materialises() -> None:
    one = world({}, STOP, said={"enqueue_at_ms": 1_500}, traits=BARRIER)
    publish(one, STOP, {})
    one.subscribe("inky", 5)
    assert sent(one.deliver(), "inky") == [(2, True), (3, False)]
    one.advance(500)
    publish(one, {})
    one.settle("acknowledge", "inky", at(3))
    assert sent(one.deliver(), "inky") == [(0, False)]
    one.settle("acknowledge", "inky", at(0))
    assert sent(one.deliver(), "inky") == [(1, True), (4, False)]


@pytest.mark.feature("C36", "C79")
@pytest.mark.parametrize("how", ["acknowledged", "gone"])
def test_at_most_once_a_barrier_waits_for_what_was_sent(how: str) -> None:
    one = barrier_world(**ONCE)
    one.subscribe("inky", 1)
    one.subscribe("blinky", 0)
    one.deliver()
    one.advance(1_000)
    assert one.deliver() == {}
    one.commit()
    one.crash()
    assert one.deliver() == {}
    if how == "acknowledged":
        one.settle("acknowledge", "inky", at(0))
    else:
        one.unsubscribe("inky")
    assert sent(one.deliver(), "blinky") == [(1, True)]


@pytest.mark.feature("C48", "C27", "Q12")
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("before", ["settled", "refused on arrival"])
def test_a_barrier_waits_for_the_letters_of_what_was_before_it(before: str, crash: bool) -> None:
    """Not for those of what came behind it; not before the broker has said what became of a letter, either."""
    one = world(traits=BARRIER, expiration=ON)
    one.refusing = 1
    one.publish("orders", body={}, expires_at_ms=None if before == "settled" else 1)
    publish(one, STOP, {}, STOP)
    one.settle("expire", "inky", at(2))
    one.subscribe("inky", 5)
    if before == "settled":
        one.commit()
        step = one._open()
        one.shard.settle(SettleAction.EXPIRE, "inky", [at(0)], one.now_ms, step)
        assert one.shard.deliver(one.now_ms, step), "its letter is about to be written"
        assert not step.deliveries
        one.crash()
        one.settle("expire", "inky", at(0))
    assert one.deliver() == {}
    assert one.shard.held_up(one.now_ms)["dying_before_barrier"] == 1
    if crash:
        one.commit()
        one.crash()
        assert one.deliver() == {}
    one.letter_written(("orders", 0, 0))
    assert sent(one.deliver(), "inky") == [(1, True)]
    assert one.shard.held_up(one.now_ms)["dying_before_barrier"] == 1
    one.letter_written(("orders", 0, 2))
    assert sent(one.deliver(), "inky") == [(3, True)]
    assert "dying_before_barrier" not in one.shard.held_up(one.now_ms)


@pytest.mark.feature("C48", "Q20")
def test_a_group_does_not_wait_for_letters() -> None:
    one = world({"g": 1}, {"g": 1}, traits=GROUP)
    one.refusing = 1
    one.settle("expire", "inky", at(0))
    one.subscribe("inky", 5)
    assert sent(one.deliver(), "inky") == [(1, False)]


@pytest.mark.feature("C48", "Q15")
def test_depth_tells_for_how_much_the_first_barrier_waits() -> None:
    one = world({}, {}, STOP, {}, STOP, traits=BARRIER)
    one.subscribe("inky", 1)
    one.deliver()
    assert one.shard.held_up(one.now_ms)["before_barrier"] == 2
    one.settle("acknowledge", "inky", at(0))
    assert one.shard.held_up(one.now_ms)["before_barrier"] == 1
    one.settle("acknowledge", "inky", at(1))
    assert "before_barrier" not in one.shard.held_up(one.now_ms)


@pytest.mark.feature("C48", "Q15")
def test_a_peek_tells_what_each_barrier_and_each_dying_message_waits_for() -> None:
    one = world({}, {}, STOP, {}, STOP, traits=BARRIER)
    one.refusing = 1
    one.settle("expire", "inky", at(0))

    def waits() -> dict[int, str]:
        found = one.shard.peek(0, 9, refused=lambda name: f"too large: {name[1]}")
        return {message.offset: message.waits_for for message in found if message.waits_for}

    letter = "1 refused dead letter of messages before it"
    behind = {4: "the barrier before it", 0: "too large: 0"}
    assert waits() == {2: f"1 message before it and {letter}"} | behind
    one.settle("acknowledge", "inky", at(1))
    assert waits() == {2: letter} | behind
    one.letter_written(("orders", 0, 0))
    assert waits() == {4: "the barrier before it"}, "the first one waits for nothing but a subscription"


@pytest.mark.feature("C87", "Q15")
def test_depth_tells_of_groups_behind_a_first_message_that_nobody_there_matches() -> None:
    """Whether their subscriptions have space or not; not of groups that wait for a settlement."""
    one = world({"g": 1}, {"g": 1, "f": 1}, {"g": 2, "f": 1}, {"f": 0}, {"g": 3}, traits=GROUP)
    assert one.shard.held_up(one.now_ms) == {}
    one.subscribe("inky", 5, text="/f = 1")
    one.subscribe("clyde", 1, text="/f > 0")
    assert [bookmark[2] for bookmark in (sent.bookmark for sent in one.deliver()["inky"])] == [2]
    assert one.shard.held_up(one.now_ms) == {"groups_held_back": 2}
    one.subscribe("blinky", 1)
    assert one.shard.held_up(one.now_ms) == {}


@pytest.mark.feature("C86")
@pytest.mark.parametrize("action", ["acknowledge", "expire"])
def test_only_its_own_bookmark_takes_a_barrier_that_waits(action: str) -> None:
    one = world({}, STOP, {}, {}, STOP, traits=BARRIER, leasing=Leasing.SUBLET)
    assert one.settle(action, "inky", at(1, 2)) == ["not_leased", "settled"]
    assert one.settle(action, "inky", at(3), at(4, 4)._replace(found=True)) == ["settled", "not_leased"]
    assert one.settle(action, "inky", at(1)) == ["settled"]


@pytest.mark.feature("C35")
def test_a_barrier_released_before_a_crash_is_repeated_to_who_is_still_there() -> None:
    one = barrier_world(before=0, behind=0)
    one.subscribe("inky")
    one.subscribe("blinky")
    one.subscribe("clyde", text="/f = 1")
    one.commit()
    one.deliver()
    one.commit()
    for _ in range(2):  # the second crash comes before the repetition was sent
        _, one.journal = one._restored()
        (released,) = one.journal._released
        one.log.append(one.epoch, one.journal.begin())
        step = Step()
        one.shard.repeat_barrier(released, step)
        assert [(d.subscription, d.barrier, d.messages.offsets.tolist()) for d in step.deliveries] == [
            ("inky", True, [0]),
            ("blinky", True, [0]),
        ]
    one.shard.unsubscribe("inky", 1_000, Step())
    step = Step()
    one.shard.repeat_barrier(released, step)
    assert [d.subscription for d in step.deliveries] == ["blinky"]


@pytest.mark.feature("C21", "Q12")
def test_a_paused_queue_releases_no_barrier() -> None:
    one = barrier_world(before=0, behind=0)
    one.subscribe("inky")
    one.pause(True)
    assert one.deliver() == {}
    one.pause(False)
    assert sent(one.deliver(), "inky") == [(0, True)]


@pytest.mark.feature("Q12", "Q16")
def test_a_barrier_is_still_one_after_its_segment_was_written_whole() -> None:
    with small(size=4, ring=2):
        one = barrier_world(before=1, behind=1)
        for _ in range(5):
            one.heard("inky")
            one.commit()
        one.crash()
        one.subscribe("inky", 5)
        assert sent(one.deliver(), "inky") == [(0, False)]


# Groups


@pytest.mark.feature("Q20", "C32")
def test_of_a_group_one_message_is_leased_at_a_time_and_in_order() -> None:
    one = world({"g": "x"}, {"g": "x"}, {"g": "y"}, {}, {}, {"g": "x"}, traits=GROUP)
    one.subscribe("inky", 10)
    assert got(one.deliver(), "inky") == [0, 2, 3, 4]
    assert one.deliver() == {}
    one.settle("acknowledge", "inky", at(0))
    assert got(one.deliver(), "inky") == [1]


@pytest.mark.feature("Q20")
def test_numbers_that_are_equal_are_one_group_and_text_is_another() -> None:
    one = world({"g": 1}, {"g": 1.0}, {"g": "1"}, {"g": 1.5}, {"g": 1.5}, traits=GROUP)
    one.subscribe("inky", 10)
    assert got(one.deliver(), "inky") == [0, 2, 3]


@pytest.mark.feature("Q20", "C19")
@pytest.mark.parametrize("how", ["lease ends", "delayed"])
def test_a_group_waits_for_its_first_message(how: str) -> None:
    one = world({"g": "x"}, {"g": "x"}, traits=GROUP)
    one.subscribe("inky", 1)
    one.subscribe("blinky", 5)
    one.deliver()
    if how == "delayed":
        one.settle("cancel", "inky", at(0), delay_ms=50)
        assert one.deliver() == {}
        one.advance(50)
    else:
        one.advance(100)
    # Now it is the other one's turn (C49).
    assert got(one.deliver(), "blinky") == [0]
    assert one.deliver() == {}


@pytest.mark.feature("Q25")
def test_of_a_group_as_many_as_its_limit_are_leased_at_once() -> None:
    xs = [{"g": "x"}] * 4
    one = world(*xs, {"g": "y"}, {}, {}, {"g": "x"}, {"g": "y"}, traits=GROUP, group_limit=2)
    one.subscribe("inky", 3)
    one.subscribe("blinky", 10)
    dealt = one.deliver()
    assert sorted(got(dealt, "inky") + got(dealt, "blinky")) == [0, 1, 4, 5, 6, 8]
    assert one.deliver() == {}
    one.commit()
    one.crash(replace(one.settings, group_limit=3))  # a change counts from the next delivery on
    assert [sent.bookmark[2] for share in one.deliver().values() for sent in share] == [2]
    one.crash(replace(one.settings, group_limit=1))
    one.settle("acknowledge", one.oracle.messages["orders", 0, 0].holder, at(0))
    assert one.deliver() == {}


@pytest.mark.feature("Q25", "C70", "C87")
def test_beyond_a_limit_of_one_no_message_holds_its_group_back() -> None:
    one = world({"g": "x", "f": 0}, {"g": "x", "f": 1}, {"g": "x", "f": 1}, traits=GROUP, group_limit=2)
    one.subscribe("inky", 5, text="/f = 1")
    assert got(one.deliver(), "inky") == [1, 2]  # what it does not match waits for others
    assert one.shard.held_up(one.now_ms) == {}
    one.settle("cancel", "inky", at(1), delay_ms=50)
    one.subscribe("blinky", 5)
    assert got(one.deliver(), "blinky") == [0]  # delayed is not leased
    one.advance(50)
    assert one.deliver() == {}
    one.settle("acknowledge", "blinky", at(0))
    assert [len(sent) for sent in one.deliver().values()] == [1]


@pytest.mark.feature("Q25", "Q14")
def test_messages_of_a_group_that_no_filter_takes_wait_for_later_subscriptions() -> None:
    with small(5, at_once=50):
        one = world(traits=GROUP, group_limit=2)
        one.subscribe("inky", 20, text="/f = 1")
        publish(one, {"g": "x", "f": 1}, *[{"g": n, "f": 1} for n in range(4)], *[{"g": "x", "f": 0}] * 5)
        assert got(one.deliver(), "inky") == [0, 1, 2, 3, 4]  # no message of the next segment matches
        one.settle("acknowledge", "inky", at(0, 4))
        one.subscribe("blinky", 10)
        assert got(one.deliver(), "blinky") == [5, 6]


@pytest.mark.feature("Q14", "Q25", "C60")
@pytest.mark.parametrize("limit", [1, 2])
def test_groups_are_not_looked_through_while_no_message_matches_a_filter(limit: int, monkeypatch) -> None:
    """With 100,000 groups each delivery took 4 s in one turn, and a worker that is silent for 6 s is dead."""
    one = world(traits=GROUP, group_limit=limit)
    one.subscribe("inky", 20, text="/f = 1")
    publish(one, *[{"g": n, "f": 0} for n in range(20)])
    one.deliver()
    with monkeypatch.context() as patch:
        patch.delattr(WaitingGroups, "pop_first")
        assert not any(one.deliver().values())
    publish(one, {"g": 99, "f": 1})
    assert got(one.deliver(), "inky") == [20]


@pytest.mark.feature("Q25")
def test_what_a_full_group_has_waiting_is_not_looked_through_again() -> None:
    with small(5):
        one = world(*[{"g": "x"}] * 40, {"g": "y"}, traits=GROUP, group_limit=2)
        one.subscribe("inky", 10)
        assert got(one.deliver(), "inky") == [0, 40, 1]
        one.deliver()
        looked: list[int] = []
        look = one.shard.state.segments.look
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(one.shard.state.segments, "look", lambda index: looked.append(index) or look(index))
            one.shard.deliver(one.now_ms, one._open())
        assert not looked
        one.settle("acknowledge", "inky", at(1))
        assert got(one.deliver(), "inky") == [2]


def served_in_turn(one: World, count: int) -> list[object]:
    """The groups of so many messages, handed out and acknowledged one by one."""
    groups = []
    for _ in range(count):
        (sent,) = one.deliver()["inky"]
        groups.append(one.topics["orders", 0][sent.bookmark[2]].body.get("g"))
        one.settle("acknowledge", "inky", at(sent.bookmark[2]))
    return groups


@pytest.mark.feature("Q25", "C70", "C71")
def test_the_turn_among_groups_is_fair_whatever_their_backlogs() -> None:
    """Messages without a group are one together; plain `group_by` has the same turn."""
    one = world(*[{"g": "x"}] * 50, *[{}] * 3, *[{"g": "y"}] * 2, {"g": "z"}, traits=GROUP)
    one.subscribe("inky", 1)
    assert served_in_turn(one, 9) == ["x", None, "y", "z", "x", None, "y", "x", None]


@pytest.mark.feature("Q25", "C71")
def test_groups_get_messages_in_proportion_to_their_weights() -> None:
    weights = {"x": 3, "7": 2, "true": 1}
    bodies = [{"g": group} for group in ("x", 7, "z") for _ in range(30)]
    one = world(*bodies, traits=GROUP, group_limit=5, group_weights=weights)
    one.subscribe("inky", 1)
    groups = served_in_turn(one, 36)
    assert [groups.count(group) for group in ("x", 7, "z")] == [18, 12, 6]
    assert max(len(list(run)) for group, run in groupby(groups) if group == "x") <= 3


@pytest.mark.feature("Q25", "C71")
def test_who_was_away_has_no_credit() -> None:
    one = world(*[{"g": "x"}] * 20, traits=GROUP)
    one.subscribe("inky", 1)
    served_in_turn(one, 10)
    for _ in range(5):
        one.publish("orders", body={"g": "y"})
    one.read("orders")
    assert served_in_turn(one, 6) == ["y", "x", "y", "x", "y", "x"]


@pytest.mark.feature("Q25", "Q11", "C71")
def test_priority_comes_before_the_turn() -> None:
    traits = TraitReader(priority=PRIORITY.priority, group=GROUP.group)
    high, low = [{"g": "x", "p": 9}] * 4, [{"g": group, "p": 1} for group in "xxyyzz"]
    one = world(*low, *high, traits=traits)
    one.subscribe("inky", 1)
    assert served_in_turn(one, 10) == ["x", "x", "x", "x", "y", "z", "x", "y", "z", "x"]


@pytest.mark.feature("Q20", "Q16")
def test_a_group_waits_for_what_was_leased_before_a_crash() -> None:
    one = world({"g": 1}, {"g": 1}, traits=GROUP)
    one.subscribe("inky", 2)
    assert got(one.deliver(), "inky") == [0]
    one.commit()
    one.crash()
    assert one.deliver() == {}
    one.settle("acknowledge", "inky", at(0))
    assert got(one.deliver(), "inky") == [1]


@pytest.mark.feature("Q20", "Q14")
def test_a_group_waits_though_nobody_takes_its_first_message() -> None:
    one = world({"g": "x", "f": 0}, {"g": "x", "f": 1}, {"g": "y", "f": 1}, traits=GROUP)
    one.subscribe("inky", 5, text="/f = 1")
    assert got(one.deliver(), "inky") == [2]


@pytest.mark.feature("Q20", "Q6")
def test_at_most_once_a_group_waits_until_its_place_is_free() -> None:
    one = world({"g": "x"}, {"g": "x"}, traits=GROUP, **ONCE)
    one.subscribe("inky", 5)
    assert got(one.deliver(), "inky") == [0]
    assert one.deliver() == {}
    one.commit()
    one.crash()
    assert one.deliver() == {}
    one.settle("acknowledge", "inky", at(0))
    assert got(one.deliver(), "inky") == [1]


# Target depth


def deep(count: int, target_depth: int = 2, **settings) -> World:
    return world(*[{}] * count, target_depth=target_depth, **settings)


@pytest.mark.feature("Q13", "C12")
def test_no_more_than_the_target_depth_is_active_and_settled_ones_make_room() -> None:
    one = deep(5)
    assert one.peek() == [("orders", 0, 0), ("orders", 0, 1)]
    one.subscribe("inky", 10)
    one.deliver()
    one.read("orders")
    assert depth(one) == 2
    one.settle("acknowledge", "inky", at(0))
    one.read("orders")
    assert got(one.deliver(), "inky") == [2]


@pytest.mark.feature("Q13", "C16")
def test_an_acknowledgment_of_an_inactive_message_is_remembered_and_honoured() -> None:
    one = deep(5)
    assert one.settle("acknowledge", "inky", at(1, 3), at(3), at(9)) == [
        "settled", "settled", "settled", "already_settled", "unknown",
    ]  # fmt: skip
    assert one.settle("cancel", "inky", at(4)) == ["unknown"]
    one.commit()
    one.crash()
    for _ in range(3):
        one.read("orders")
    one.subscribe("inky", 10)
    assert got(one.deliver(), "inky") == [0, 4]
    assert one.shard.state.remembered == set()
    assert one.settle("acknowledge", "inky", at(1, 3)) == ["already_settled"] * 3


@pytest.mark.feature("Q13")
def test_an_acknowledged_offset_without_a_message_is_not_remembered_for_ever() -> None:
    one = deep(2)
    one.publish("orders", gap=3)
    assert one.settle("acknowledge", "inky", at(2, 4)) == ["settled"] * 3
    one.settle("acknowledge", "inky", at(0))
    one.read("orders")
    assert one.shard.state.remembered == set()


@pytest.mark.feature("C12")
def test_beyond_the_target_depth_a_message_expires_when_it_would_enter() -> None:
    one = deep(4, said={"ttl_ms": 50}, expiration=ON)
    assert [out.bookmark[2] for out in one.advance(50)] == [0, 1]
    one.read("orders")
    one.subscribe("inky", 5)
    assert one.deliver() == {}
    assert [(out.bookmark[2], out.deadline_ms) for out in one.advance()] == [(2, 1_050), (3, 1_050)]


def scheduled_for(one: World, *delays_ms: int, **said) -> None:
    for delay_ms in delays_ms:
        publish(one, {}, enqueue_at_ms=one.now_ms + delay_ms, **said)


@pytest.mark.feature("C82", "C83")
def test_a_filter_reaches_scheduled_and_held_messages() -> None:
    one = world(target_depth=1)
    for delay_ms, f in ((10, 1), (20, 0), (900, 1), (950, 0)):
        publish(one, {"f": f}, enqueue_at_ms=one.now_ms + delay_ms)
    publish(one, {"f": 1})
    one.advance(100)
    assert [offset for _, _, offset in one.peek("/f = 1")] == [4, 0, 2]
    with one.selection("/f = 1"):
        counts = one.shard.depth("/f = 1")
        assert {name: count for name, count in counts.items() if count} == {
            "available": 1, "held": 1, "scheduled": 1, "depth": 1,
        }  # fmt: skip
    assert one.purge(text="/f = 1") == (3, 0)
    assert {name: one.shard.depth()[name] for name in ("depth", "held", "scheduled")} == {
        "depth": 0, "held": 1, "scheduled": 1,
    }  # fmt: skip


@pytest.mark.feature("C51")
def test_what_comes_due_beyond_the_target_depth_waits_in_its_place_and_enters_as_others_leave() -> None:
    one = World(QueueSettings(name="orders", target_depth=2, lease_ms=10_000))
    scheduled_for(one, *range(10, 110))
    one.advance(200)
    assert {name: one.shard.depth()[name] for name in ("depth", "scheduled", "held")} == {
        "depth": 2, "scheduled": 0, "held": 98,
    }  # fmt: skip
    one.publish("orders")
    one.read("orders")
    one.commit()
    one.crash()
    assert [row.state_name for row in one.shard.peek(0, 4)] == ["available", "available", "held", "held"]
    one.subscribe("inky", 10)
    order = []
    for _ in range(101):
        order += (got := [sent.bookmark[2] for sent in one.deliver().get("inky", [])])
        for offset in got:
            one.settle("acknowledge", "inky", at(offset))
        one.advance()
        one.read("orders")
        assert depth(one) <= 2
    assert order == list(range(101)), "what arrived after their instants comes behind them"


@pytest.mark.feature("C51", "C12")
def test_what_is_held_expires_when_it_would_enter() -> None:
    one = world(target_depth=1, expiration=ON)
    one.subscribe("inky")
    scheduled_for(one, 10, ttl_ms=50)
    publish(one, {})
    assert one.advance(5_000) == []
    assert one.shard.depth()["held"] == 1
    one.settle("acknowledge", "inky", at(1))
    assert [gone.reasons for gone in one.advance()] == [("time_limit",)]
    assert one.shard.depth()["held"] == 0


@pytest.mark.feature("C51", "Q13")
def test_what_is_held_is_acknowledged_withdrawn_purged_and_handed_over() -> None:
    one = world(target_depth=1)
    scheduled_for(one, 10, 20, 30, 40)
    publish(one, {})
    one.advance(100)
    assert one.settle("acknowledge", "inky", at(0, 0)) == ["settled"]
    assert one.settle("acknowledge", "inky", at(0)) == ["already_settled"]
    assert one.settle("expire", "inky", at(1)) == ["scheduled"]
    assert one.settle("cancel", "inky", at(1)) == ["settled"]
    one.hold("t", at(2))
    assert one.shard.depth()["held"] == 1
    one.hand_back("t")
    assert [offset for _, _, offset in one.peek()] == [4, 2, 3]
    assert one.shard.depth()["held"] == 2
    assert one.purge() == (3, 0)


@pytest.mark.feature("C12")
def test_delayed_messages_count_in_the_target_depth_and_scheduled_ones_do_not() -> None:
    one = deep(1)
    publish(one, {}, enqueue_at_ms=9_000)
    one.subscribe("inky")
    one.deliver()
    one.settle("cancel", "inky", at(0), delay_ms=50)
    assert one.shard.room() == 1


# Records that Kafka lost, references, caps


@pytest.mark.feature("C40", "L14", "C79", "C80")
@pytest.mark.parametrize("once", [False, True])
def test_a_lost_record_leaves_and_frees_place_group_barrier_and_depth(once: bool) -> None:
    traits = TraitReader(barrier=BARRIER.barrier, group=GROUP.group)
    one = world({"g": "x"}, STOP, {"g": "x"}, traits=traits, **(ONCE if once else {}))
    one.subscribe("inky")
    one.deliver()
    one.truncate(("orders", 0, 0), handed_out=True)
    assert [(out.reasons, out.letter) for out in one._last_gone] == [(("log_truncated",), True)]
    assert one._last_gone[0].deliveries == 0  # nobody saw it
    assert sent(one.deliver(), "inky") == [(1, True), (2, False)]


@pytest.mark.feature("X2")
def test_a_delivery_goes_by_reference_where_the_subscription_asks_for_it_but_a_barrier_never() -> None:
    one = world({}, traits=BARRIER)
    step = one._open()
    one.shard.subscribing.subscribe("inky", "", 5, 1 << 40, "", 1_000, step, payload="reference")
    one.shard.deliver(1_000, step)
    one.shard.settle(SettleAction.ACKNOWLEDGE, "inky", [at(0)], 1_000, step)
    one.shard.arrive("orders", 0, [*one.topics["orders", 0], publish_only(one, STOP)], step)
    one.shard.deliver(1_000, step)
    assert [(d.payload, d.barrier) for d in step.deliveries] == [("reference", False), ("inline", True)]


def publish_only(one: World, body: dict):
    one.publish("orders", body=body)
    return one.topics["orders", 0][-1]


@pytest.mark.feature("Q3")
def test_a_changed_cap_reaches_the_subscriptions_that_are_there() -> None:
    one = world(*[{}] * 9)
    one.subscribe("inky", 5)
    one.commit()
    one.crash(QueueSettings(name="orders", max_backlog=2))
    assert got(one.deliver(), "inky") == [0, 1]
    one.commit()
    one.crash(QueueSettings(name="orders", max_backlog=3))
    assert got(one.deliver(), "inky") == [2]
    one.commit()
    one.crash(QueueSettings(name="orders"))
    assert got(one.deliver(), "inky") == [3, 4]


@pytest.mark.feature("Q6", "Q8")
def test_at_most_once_under_strict_only_the_holder_frees_its_place() -> None:
    one = world({}, {}, leasing=Leasing.STRICT, **ONCE)
    one.subscribe("inky")
    one.deliver()
    for action in ("acknowledge", "cancel", "expire"):
        assert one.settle(action, "blinky", at(0)) == ["not_holder"]
    assert one.deliver() == {}
    assert one.settle("acknowledge", "inky", at(0, token=7)) == ["settled"]
    assert got(one.deliver(), "inky") == [1]


@pytest.mark.feature("C16")
def test_many_scheduled_messages_cost_a_settlement_nothing() -> None:
    one = world()
    scheduled = one.shard.state.scheduled
    source = one.shard.state.sources.number("orders", 0)
    for offset in range(200):
        scheduled.add(source, offset, Scheduled(5_000, 1 << 62))
    for offset in range(0, 200, 2):
        scheduled.discard(source, offset)
    assert list(scheduled.between(source, 10, 15)) == [11, 13, 15]
    for offset in range(1, 190, 2):
        scheduled.discard(source, offset)
    assert sum(len(block.offsets) for block in scheduled._blocks[source].values()) < 80
    assert list(scheduled.between(source, 0, 500)) == [191, 193, 195, 197, 199]


@pytest.mark.feature("Q13", "X7")
def test_one_range_acknowledges_a_bounded_number_of_messages_beyond_the_target_depth() -> None:
    one = world({}, target_depth=1)
    shard, step = one.shard, Step()
    shard.note_end("orders", 0, 1 << 40)
    outcomes = shard.settle(SettleAction.ACKNOWLEDGE, "inky", [Claim("orders", 0, 1, (1 << 40) - 1)], 1_000, step)
    assert [(one.first, one.last, str(one.result)) for one in outcomes] == [
        (1, 10_000, "settled"),
        (10_001, (1 << 40) - 1, "unknown"),
    ]
    assert len(shard.state.remembered) == 10_000


@pytest.mark.feature("Q13", "C16")
def test_a_range_ahead_of_the_depth_says_of_each_offset_once_whether_it_was_remembered_before() -> None:
    one = world(*[{} for _ in range(8)], target_depth=1)
    assert one.settle("acknowledge", "inky", at(3, 4)) == ["settled"] * 2
    told = ["settled", "settled", "already_settled", "already_settled", "settled"]
    assert one.settle("acknowledge", "inky", at(1, 5)) == told
    assert one.settle("acknowledge", "inky", at(4, 6)) == ["already_settled", "already_settled", "settled"]
