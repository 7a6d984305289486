"""The examples of the contract's sources, by name. Each also runs beside the oracle, which `World` compares."""

import pytest

from lapse.core.expression import compile_value
from lapse.core.lifetime import Expiration, ExpirationModel
from lapse.core.queue.arrival.trait import NO_TRAITS, TraitReader
from lapse.core.queue.settings import Fairness, Leasing, QueueSettings, Semantics
from lapse.core.queue.settlement.settlement import Claim, SettleAction
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.core.reason import Reason
from lapse.core.shard.event import EventKind
from unit.core.queue.compared.small_shard import small
from unit.core.queue.world import World

pytestmark = pytest.mark.usefixtures("each_room")

ON = Expiration(enabled=True)
MINUTE_MS = 60_000


def world(**settings) -> World:
    settings.setdefault("lease_ms", 100)
    settings.setdefault("max_lease_ms", 1_000)
    settings.setdefault("dead_letter_topic", "dlq.orders")
    return World(QueueSettings(name="orders", **settings))


def with_messages(count: int = 1, said: dict | None = None, **settings) -> World:
    one = world(**settings)
    for _ in range(count):
        one.publish("orders", **(said or {}))
    one.read("orders")
    return one


def at(first: int, last: int | None = None, token: int | None = None) -> Claim:
    return Claim("orders", 0, first, first if last is None else last, token)


def got(deliveries, subscription: str) -> list[int]:
    return [one.bookmark[2] for one in deliveries.get(subscription, [])]


# Fairness (seed 002)


@pytest.mark.feature("Q7")
def test_the_fourth_message_of_ten_goes_before_the_second_of_two() -> None:
    one = world(fairness=Fairness.PROPORTIONAL)
    for name, backlog, leased in (("inky", 1, 1), ("blinky", 3, 3), ("clyde", 4, 4)):
        one.subscribe(name, backlog)
        for _ in range(leased):
            one.publish("orders")
        one.read("orders")
        assert len(got(one.deliver(), name)) == leased
    for name, backlog in (("inky", 2), ("blinky", 4), ("clyde", 10)):
        one.subscribe(name, backlog)
    one.publish("orders")
    one.read("orders")
    assert got(one.deliver(), "clyde") == [8]


@pytest.mark.feature("Q7")
def test_equal_unused_capacity_goes_to_the_first_found() -> None:
    one = with_messages(3, fairness=Fairness.PROPORTIONAL)
    one.subscribe("inky", 2)
    one.subscribe("blinky", 4)
    deliveries = one.deliver()
    assert (got(deliveries, "inky"), got(deliveries, "blinky")) == ([0], [1, 2])


@pytest.mark.feature("Q7")
def test_fast_fills_the_first_found_and_round_robin_takes_turns() -> None:
    for fairness, shares in ((Fairness.FAST, ([0, 1, 2], [3])), (Fairness.ROUND_ROBIN, ([0, 2], [1, 3]))):
        one = with_messages(4, fairness=fairness)
        one.subscribe("inky", 3)
        one.subscribe("blinky", 3)
        deliveries = one.deliver()
        assert (got(deliveries, "inky"), got(deliveries, "blinky")) == shares


@pytest.mark.feature("Q3")
def test_a_subscription_gets_no_more_than_its_backlog_and_the_queues_cap() -> None:
    one = with_messages(5, max_backlog=3)
    one.subscribe("inky", 1)
    assert got(one.deliver(), "inky") == [0]
    assert one.deliver() == {}
    one.subscribe("inky", 10)
    assert got(one.deliver(), "inky") == [1, 2]


@pytest.mark.feature("Q3", "D4")
def test_a_new_subscription_is_told_and_one_with_new_options_is_not() -> None:
    one, step = world(max_backlog=5), Step()
    for client, asked, gets in (("first", 9, 5), ("second", 3, 3)):
        known = one.shard.subscribing.subscribe("inky", client, asked, MINUTE_MS, "", one.now_ms, step)
        assert (known.id, known.client, known.max_backlog) == ("inky", client, gets)
    assert [(told.kind, told.subscription, told.detail) for told in step.events] == [("subscribed", "inky", "first")]


@pytest.mark.feature("Q7")
def test_order_of_subscriptions_survives_replacement_and_crash() -> None:
    one = world(fairness=Fairness.FAST)
    one.subscribe("inky", 1)
    one.subscribe("blinky", 1)
    one.subscribe("inky", 2)
    one.commit()
    one.crash()
    one.publish("orders")
    one.read("orders")
    assert got(one.deliver(), "inky") == [0]


# Limits (seed 002, Q9)


@pytest.mark.feature("Q9")
@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("how", ["lease ends", "cancelled", "unsubscribed", "heartbeats stop"])
def test_max_deliveries_allows_exactly_so_many(limit: int, how: str) -> None:
    one = with_messages(max_deliveries=limit)
    for number in range(1, limit + 1):
        one.subscribe("inky", 1, timeout_ms=50 if how == "heartbeats stop" else 1_000_000)
        assert [sent.deliveries for sent in one.deliver()["inky"]] == [number]
        if how == "cancelled":
            assert one.settle("cancel", "inky", at(0)) == ["settled"]
            gone = one._last_gone
        elif how == "unsubscribed":
            one.unsubscribe("inky")
            gone = one._last_gone
        else:
            gone = one.advance(50 if how == "heartbeats stop" else 100)
        assert [out.reasons for out in gone] == ([("max_deliveries",)] if number == limit else [])
    one.subscribe("inky")
    assert one.deliver() == {}


@pytest.mark.feature("Q9")
@pytest.mark.parametrize("limit", [1, 2])
def test_the_cancel_that_makes_the_count_greater_expires(limit: int) -> None:
    one = with_messages(max_cancels=limit)
    one.subscribe("inky")
    for number in range(1, limit + 2):
        assert got(one.deliver(), "inky") == [0]
        one.settle("cancel", "inky", at(0))
        assert [out.reasons for out in one._last_gone] == ([("max_cancels",)] if number > limit else [])
    assert one.deliver() == {}


@pytest.mark.feature("Q9")
def test_lease_ends_count_as_no_cancels() -> None:
    one = with_messages(max_cancels=1)
    one.subscribe("inky")
    for _ in range(5):
        one.deliver()
        assert one.advance(100) == []


@pytest.mark.feature("Q9", "C22", "L14")
def test_all_reasons_that_hold_are_given_in_order() -> None:
    one = with_messages(said={"ttl_ms": 50}, expiration=ON, max_deliveries=2, max_cancels=1)
    one.subscribe("inky")
    one.deliver()
    one.settle("cancel", "inky", at(0))
    one.deliver()
    one.now_ms += 50
    one.settle("cancel", "inky", at(0))
    assert [out.reasons for out in one._last_gone] == [("time_limit", "max_deliveries", "max_cancels")]


@pytest.mark.feature("C22", "C25")
def test_one_listed_reason_is_enough_for_a_letter() -> None:
    for leased, letter in ((False, False), (True, True)):
        one = with_messages(said={"ttl_ms": 50}, expiration=ON)
        one.subscribe("inky")
        one.deliver()
        if leased:
            one.now_ms += 50
        one.purge(leased=True)
        assert [(out.reasons, out.letter) for out in one._last_gone] == [
            (("time_limit", "purged") if leased else ("purged",), letter)
        ]


@pytest.mark.feature("C23")
def test_a_lowered_limit_takes_out_what_is_beyond_it_but_not_what_is_leased() -> None:
    one = with_messages(3)
    one.subscribe("inky", 2)
    one.deliver()
    one.advance(100)
    one.settle("acknowledge", "inky", at(1))
    one.subscribe("inky", 1)
    assert got(one.deliver(), "inky") == [0]
    one.settle("cancel", "inky", at(0))
    one.commit()
    one.crash(QueueSettings(name="orders", max_deliveries=2, lease_ms=100))
    assert [(out.bookmark[2], out.reasons) for out in one._last_gone] == [(0, ("max_deliveries",))]
    assert got(one.deliver(), "inky") == [2]
    one.commit()
    one.crash(QueueSettings(name="orders", max_deliveries=1, lease_ms=100))
    assert one._last_gone == []
    assert [out.reasons for out in one.advance(100)] == [("max_deliveries",)]


# Leases and lifetimes (seeds 002 and 004)


@pytest.mark.feature("Q10", "L11")
def test_a_lease_protects_from_expiry_until_it_ends() -> None:
    one = with_messages(said={"ttl_ms": 50}, expiration=ON)
    one.subscribe("inky")
    one.deliver()
    assert one.advance(99) == []
    assert [(out.reasons, out.letter) for out in one.advance(1)] == [(("time_limit",), True)]


@pytest.mark.feature("Q10")
def test_an_expired_message_that_is_settled_under_its_lease_was_handled() -> None:
    one = with_messages(said={"ttl_ms": 50}, expiration=ON)
    one.subscribe("inky")
    one.deliver()
    one.now_ms += 60
    assert one.settle("acknowledge", "inky", at(0)) == ["settled"]
    assert one._last_gone == []
    assert one.advance(1_000) == []
    assert one.settle("acknowledge", "inky", at(0)) == ["already_settled"]


@pytest.mark.feature("Q10")
@pytest.mark.parametrize("how", ["cancel", "unsubscribe"])
def test_an_expired_message_that_comes_back_leaves_at_once(how: str) -> None:
    one = with_messages(said={"ttl_ms": 50}, expiration=ON)
    one.subscribe("inky")
    one.deliver()
    one.now_ms += 50
    one.settle("cancel", "inky", at(0)) if how == "cancel" else one.unsubscribe("inky")
    assert [out.reasons for out in one._last_gone] == [("time_limit",)]


@pytest.mark.feature("L10", "C15")
def test_an_expired_message_is_not_delivered_though_it_is_not_yet_removed() -> None:
    one = with_messages(2, said={"ttl_ms": 50}, expiration=ON)
    one.publish("orders")
    one.read("orders")
    one.subscribe("inky", 10)
    one.now_ms += 50
    assert got(one.deliver(), "inky") == [2]
    assert one.settle("acknowledge", "inky", at(0)) == ["time_limit"]
    assert [out.bookmark[2] for out in one.advance()] == [0, 1]


@pytest.mark.feature("L10", "C2")
@pytest.mark.parametrize(("wait_ms", "expired"), [(49, False), (50, True)])
def test_a_message_is_expired_from_its_deadline_on(wait_ms: int, expired: bool) -> None:
    one = with_messages(said={"ttl_ms": 50}, expiration=ON)
    one.subscribe("inky")
    one.now_ms += wait_ms
    assert (one.deliver() == {}) is expired
    one.unsubscribe("inky")


@pytest.mark.feature("L9")
def test_switching_expiration_on_acts_at_once_on_deadlines_that_passed() -> None:
    one = with_messages(said={"ttl_ms": 50}, expiration=Expiration(enabled=False))
    assert one.advance(60) == []
    one.commit()
    one.crash(QueueSettings(name="orders", expiration=ON))
    assert [out.deadline_ms for out in one.advance()] == [1_050]


@pytest.mark.feature("L5")
@pytest.mark.parametrize("model", ExpirationModel)
def test_scheduled_in_five_minutes_for_ten_expires_after_fifteen(model: ExpirationModel) -> None:
    one = world(expiration=Expiration(True, 10 * MINUTE_MS, model))
    one.publish("orders", enqueue_at_ms=one.now_ms + 5 * MINUTE_MS, ttl_ms=10 * MINUTE_MS)
    one.read("orders")
    one.subscribe("inky", timeout_ms=1 << 40)
    one.advance(5 * MINUTE_MS - 1)
    assert one.deliver() == {}
    one.advance(1)
    assert [sent.deadline_ms for sent in one.deliver()["inky"]] == [1_000 + 15 * MINUTE_MS]
    one.settle("cancel", "inky", at(0))
    assert one.advance(10 * MINUTE_MS - 1) == []
    assert [out.reasons for out in one.advance(1)] == [("time_limit",)]


@pytest.mark.feature("C11")
def test_scheduled_messages_take_their_places_in_the_order_of_their_instants() -> None:
    for enabled in (True, False):
        one = world(expiration=Expiration(enabled))
        one.publish("orders", enqueue_at_ms=1_300, expires_at_ms=None if enabled else 1_100)
        one.publish("orders", enqueue_at_ms=1_200)
        one.publish("orders", enqueue_at_ms=1_200)
        one.publish("orders")
        one.read("orders")
        one.advance(1_000)
        one.subscribe("inky", 10)
        assert got(one.deliver(), "inky") == [3, 1, 2, 0]


@pytest.mark.feature("C11", "L5")
def test_each_scheduled_message_comes_at_its_instant_whatever_is_due_later() -> None:
    one = world()
    for after_ms in (30, 10, 20, 90):
        one.publish("orders", enqueue_at_ms=one.now_ms + after_ms)
    one.read("orders")
    for count in range(3):
        one.advance(9)
        assert one.shard.depth()["available"] == count
        one.advance(1)
        assert one.shard.depth()["available"] == count + 1


@pytest.mark.feature("Q15", "C11", "C27")
def test_a_peek_turns_pages_over_what_stands_then_what_is_scheduled_then_what_dies() -> None:
    one = world(expiration=ON)
    for said in ({}, {"ttl_ms": 900}, {}, {"enqueue_at_ms": 1_500}, {"enqueue_at_ms": 1_300, "ttl_ms": 70}):
        one.publish("orders", **said)
    one.read("orders")
    one.refusing = 1
    one.settle("expire", "inky", at(0, 1))
    assert [bookmark[2] for bookmark in one.peek()] == [2, 4, 3, 0, 1]
    for skip in range(6):
        for limit in range(3):
            one.peek(skip=skip, limit=limit)  # compares each row


@pytest.mark.feature("D4", "L5")
def test_messages_that_are_scheduled_together_are_told_in_one_event() -> None:
    one = world()
    for _ in range(3):
        one.publish("orders", enqueue_at_ms=5_000)
    one.publish("orders")
    step = one._open()
    one.shard.arrive("orders", 0, one.topics["orders", 0], step)
    (told,) = [event for event in step.events if event.kind == "scheduled"]
    assert list(told.messages.ranges()) == [(0, 2)]


@pytest.mark.feature("C16", "L5")
def test_a_scheduled_message_is_not_settled() -> None:
    one = with_messages(said={"enqueue_at_ms": 5_000})
    assert one.settle("acknowledge", "inky", at(0)) == ["scheduled"]


# Coming back (Q5, C19, C20)


@pytest.mark.feature("C49")
@pytest.mark.parametrize("trait", ["", "priority", "group"])
def test_the_last_holder_is_known_after_a_take_over(trait: str) -> None:
    """It gets the message again only while the other one has no room."""
    traits = TraitReader(**{trait: compile_value("/p")}) if trait else NO_TRAITS
    one = with_messages(2, fairness=Fairness.FAST, traits=traits)
    one.subscribe("hung")
    assert got(one.deliver(), "hung") == [0]
    one.subscribe("healthy")
    assert got(one.deliver(), "healthy") == [1]
    one.advance(100)
    one.commit()
    one.crash()
    deliveries = one.deliver()
    assert (got(deliveries, "healthy"), got(deliveries, "hung")) == ([0], [1])
    one.settle("cancel", "healthy", at(0))
    assert got(one.deliver(), "healthy") == [0]


@pytest.mark.feature("Q5")
def test_a_returned_message_is_next_at_its_original_place() -> None:
    one = with_messages(4)
    one.subscribe("inky")
    one.subscribe("blinky")
    assert got(one.deliver(), "inky") == [0]
    one.settle("acknowledge", "blinky", at(1))
    assert got(one.deliver(), "blinky") == [2]
    one.settle("cancel", "inky", at(0))
    assert got(one.deliver(), "inky") == [0]
    one.advance(100)
    deliveries = one.deliver()
    # Both come back; each goes to the other one first (C49).
    assert (got(deliveries, "inky"), got(deliveries, "blinky")) == ([2], [0])


@pytest.mark.feature("D4", "Q5", "D6")
def test_a_returned_lease_is_told_with_whose_it_was() -> None:
    one = with_messages(2)
    one.subscribe("inky")
    one.subscribe("blinky")
    one.deliver()
    step = one._open()
    one.shard.advance(one.now_ms + 100, step)
    returned = [event for event in step.events if event.kind == "lease_returned"]
    told = {event.subscription: list(event.messages.ranges()) for event in returned}
    assert told == {"inky": [(0, 0)], "blinky": [(1, 1)]}


@pytest.mark.feature("Q5")
def test_unsubscribing_returns_leases_at_once() -> None:
    one = with_messages(3)
    one.subscribe("inky", 3)
    one.deliver()
    one.unsubscribe("inky")
    one.subscribe("blinky", 3)
    assert [(sent.bookmark[2], sent.deliveries) for sent in one.deliver()["blinky"]] == [(0, 2), (1, 2), (2, 2)]


@pytest.mark.feature("Q5", "C2")
def test_missed_heartbeats_return_leases() -> None:
    one = with_messages()
    one.subscribe("inky", timeout_ms=60)
    one.deliver()
    one.advance(30)
    one.heard("inky")
    one.advance(59)
    assert one.oracle.in_state("leased")
    one.advance(1)
    assert one.oracle.in_state("available")
    assert not one.oracle.subscribers


@pytest.mark.feature("C5")
def test_after_a_take_over_a_subscription_has_one_full_timeout() -> None:
    one = world()
    one.subscribe("inky", timeout_ms=60)
    one.commit()
    one.now_ms += 59
    one.crash()
    one.advance(59)
    assert one.oracle.subscribers
    one.advance(1)
    assert not one.oracle.subscribers


@pytest.mark.feature("C20")
def test_a_replaced_subscription_keeps_its_leases_and_takes_no_more_than_the_new_backlog() -> None:
    one = with_messages(6)
    one.subscribe("inky", 4)
    one.deliver()
    one.subscribe("inky", 2)
    one.settle("acknowledge", "inky", at(0, 1))
    assert one.deliver() == {}
    one.settle("acknowledge", "inky", at(2))
    assert got(one.deliver(), "inky") == [4]


@pytest.mark.feature("C19")
def test_a_delayed_message_counts_lives_and_keeps_its_place() -> None:
    one = with_messages(2, said={"ttl_ms": 500}, expiration=ON)
    one.subscribe("inky")
    one.deliver()
    one.settle("cancel", "inky", at(0), delay_ms=50)
    assert one.shard.depth()["depth"] == 2
    assert got(one.deliver(), "inky") == [1]
    one.advance(49)
    one.settle("acknowledge", "inky", at(1))
    assert one.deliver() == {}
    one.advance(1)
    assert got(one.deliver(), "inky") == [0]
    one.settle("cancel", "inky", at(0), delay_ms=5_000)
    assert [out.reasons for out in one.advance(450)] == [("time_limit",)]


@pytest.mark.feature("C19", "Q16")
def test_a_delay_survives_a_crash() -> None:
    one = with_messages()
    one.subscribe("inky")
    one.deliver()
    one.settle("cancel", "inky", at(0), delay_ms=50)
    one.commit()
    one.crash()
    one.crash()
    one.advance(50)
    assert got(one.deliver(), "inky") == [0]


@pytest.mark.feature("C13")
def test_the_fencing_token_grows_for_as_long_as_a_message_fails() -> None:
    one = with_messages()
    one.subscribe("inky")
    one.shard.state.segments[0].delivery_counts()[0] = one.oracle.messages["orders", 0, 0].deliveries = 65_535
    assert [sent.deliveries for sent in one.deliver()["inky"]] == [65_536]
    assert one.settle("cancel", "inky", at(0, token=65_536)) == ["settled"]


# Settlement (Q8, C13 to C18): every action, state, holder, token and mode

STATES = ("available", "delayed", "mine", "another's", "settled", "expired", "late", "scheduled", "unknown")
ACTIONS = ("acknowledge", "cancel", "expire", "renew")


def standing(state: str, leasing: Leasing) -> World:
    """Message 0 in a state; delivered twice where it was ever delivered, so that 1 is an old token."""
    said = {"scheduled": {"enqueue_at_ms": 5_000}, "expired": {"ttl_ms": 150}, "late": {"ttl_ms": 150}}.get(state, {})
    one = with_messages(0 if state == "unknown" else 1, said, leasing=leasing, expiration=ON)
    if state in ("unknown", "scheduled"):
        one.subscribe("inky")
        return one
    holder = "blinky" if state == "another's" else "inky"
    one.subscribe("inky" if state == "another's" else "blinky", 0)
    one.subscribe(holder)
    for _ in range(2):
        one.advance(100 if one.oracle.in_state("leased") else 0)
        one.deliver()
    if state == "settled":
        one.settle("acknowledge", "inky", at(0))
    elif state not in ("mine", "another's"):
        one.settle("cancel", "inky", at(0), delay_ms=10_000 if state == "delayed" else 0)
    if state == "expired":
        one.advance(100)
    elif state == "late":
        one.now_ms += 100
    return one


def expected_result(action: str, state: str, stale: bool, strict: bool) -> str:
    fixed = {
        "settled": "already_settled",
        "expired": "time_limit",
        "late": "time_limit",
        "scheduled": "settled" if action == "cancel" else "scheduled",
        "unknown": "unknown",
    }
    if state in fixed:
        return fixed[state]
    if state in ("available", "delayed"):
        if strict or action in ("cancel", "renew"):
            return "not_leased"
        return "stale" if stale and action == "expire" else "settled"
    if state == "another's" and (strict or action == "renew"):
        return "not_holder"
    return "stale" if stale and (strict or action != "acknowledge") else "settled"


@pytest.mark.feature("Q8", "C13", "C14", "C15", "C16", "C17")
@pytest.mark.parametrize("leasing", Leasing)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("token", [None, 1, 2])
def test_every_verb_on_every_state(action: str, state: str, token: int | None, leasing: Leasing) -> None:
    one = standing(state, leasing)
    assert one.settle(action, "inky", at(0, token=token)) == [
        expected_result(action, state, token == 1, leasing is Leasing.STRICT)
    ]


@pytest.mark.feature("Q8")
def test_under_strict_a_lease_that_is_over_and_held_by_another_is_refused_and_says_so() -> None:
    one = with_messages(leasing=Leasing.STRICT)
    one.subscribe("inky")
    one.deliver()
    one.subscribe("inky", 0)
    one.subscribe("blinky")
    one.advance(100)
    one.deliver()
    assert one.settle("acknowledge", "inky", at(0, token=1)) == ["not_holder"]
    assert one.settle("acknowledge", "blinky", at(0, token=1)) == ["stale"]
    assert one.settle("acknowledge", "blinky", at(0, token=2)) == ["settled"]


@pytest.mark.feature("C16")
def test_of_a_bookmark_that_is_named_twice_the_first_counts() -> None:
    one = with_messages(2)
    one.subscribe("inky", 2)
    one.deliver()
    assert one.settle("acknowledge", "inky", at(0), at(0, 1)) == ["settled", "already_settled", "settled"]
    one.publish("orders")
    one.read("orders")
    one.deliver()
    assert one.settle("cancel", "inky", at(2), at(2)) == ["settled", "not_leased"]
    assert one.oracle.messages["orders", 0, 2].cancels == 1


@pytest.mark.feature("C16", "C13")
@pytest.mark.parametrize("action", ["cancel", "expire", "renew"])
def test_it_counts_too_if_it_is_stale_and_the_second_one_is_not(action: str) -> None:
    one = with_messages(4)
    one.subscribe("inky", 4)
    one.deliver()
    answers = one.settle(action, "inky", at(1, 2, token=9), at(0, 3, token=1), at(2))
    assert answers == ["stale", "stale", "settled", "stale", "stale", "settled", "stale"]


@pytest.mark.feature("C16", "C13")
def test_of_several_that_were_stale_each_counts_for_its_own_bookmark() -> None:
    one = with_messages(2)
    one.subscribe("inky", 2)
    one.deliver()
    claims = at(0, token=9), at(1, token=9), at(1, token=1)
    assert one.settle("cancel", "inky", *claims) == ["stale"] * 3


@pytest.mark.feature("Q8", "D4")
def test_acknowledgments_that_follow_one_another_are_told_in_one_event() -> None:
    one, step = with_messages(3), Step()
    one.subscribe("inky", 3)
    one.deliver()
    one.shard.settle(SettleAction.ACKNOWLEDGE, "inky", [at(0), at(1), at(2)], one.now_ms, step)
    assert [(told.kind, told.messages.offsets.tolist()) for told in step.events] == [("acknowledged", [0, 1, 2])]


@pytest.mark.feature("Q8", "Q3")
def test_under_sublet_a_range_frees_the_places_of_each_holder() -> None:
    one = with_messages(3, leasing=Leasing.SUBLET, fairness=Fairness.ROUND_ROBIN)
    one.subscribe("inky", 2)
    one.subscribe("blinky", 1)
    assert got(one.deliver(), "inky") == [0, 2]
    assert one.settle("acknowledge", "clyde", at(0, 2)) == ["settled"] * 3
    assert [known.outstanding for known in one.shard.state.subscriptions.values()] == [0, 0]


@pytest.mark.slow
@pytest.mark.feature("C16", "Q8")
def test_one_claim_over_segments_that_it_empties_on_the_way() -> None:
    one = world(dead_letter_topic="")
    for _ in range(10_000):
        one.publish("orders")
    one.shard.arrive("orders", 0, one.topics["orders", 0], one._open())
    one.shard.subscribing.subscribe("inky", "", 20_000, 1 << 40, "", 1_000, one.step)
    while one.shard.deliver(1_000, one.step):
        pass
    outcomes = one.shard.settle(SettleAction.ACKNOWLEDGE, "inky", [at(0, 10_001)], 1_000, one.step)
    assert sum(o.last - o.first + 1 for o in outcomes if o.result == "settled") == 10_000
    assert [(o.first, o.last) for o in outcomes if o.result == "unknown"] == [(10_000, 10_001)]
    assert one.shard.state.subscriptions["inky"].outstanding == 0
    assert list(one.shard.state.segments) == [2]


@pytest.mark.feature("C17")
def test_renewing_counts_from_now_is_capped_and_may_outlast_the_lifetime() -> None:
    one = with_messages(said={"ttl_ms": 150}, expiration=ON)
    one.subscribe("inky")
    one.deliver()
    one.advance(90)
    for lease_ms, until_ms in ((None, 1_190), (500, 1_590), (5_000, 2_090)):
        assert one.settle("renew", "inky", at(0, token=1), lease_ms=lease_ms) == ["settled"]
        assert one.oracle.messages["orders", 0, 0].until_ms == until_ms
    assert one.advance(999) == []
    assert [out.reasons for out in one.advance(1)] == [("time_limit",)]


@pytest.mark.feature("C37")
def test_purge_leaves_leased_messages_unless_asked() -> None:
    one = with_messages(3)
    one.publish("orders", enqueue_at_ms=5_000)
    one.read("orders")
    one.subscribe("inky")
    one.deliver()
    assert one.purge() == (3, 1)
    assert one.purge(leased=True) == (1, 0)
    assert one.settle("acknowledge", "inky", at(0, 3)) == ["already_settled"] * 4


@pytest.mark.feature("C21", "Q21")
def test_pause_is_durable_and_holds_back_deliveries_only() -> None:
    one = with_messages(2, said={"ttl_ms": 250}, expiration=ON)
    one.subscribe("inky")
    one.deliver()
    one.pause(True)
    one.commit()
    one.crash()
    one.advance(100)
    assert one.deliver() == {}
    assert len(one.advance(150)) == 2
    one.pause(False)
    one.publish("orders")
    one.read("orders")
    assert got(one.deliver(), "inky") == [2]


@pytest.mark.feature("C21", "D4")
def test_a_pause_of_a_paused_queue_changes_nothing_and_is_no_second_event() -> None:
    shard = QueueShard(QueueSettings(name="orders"))
    kinds = []
    for now_ms, act in enumerate((shard.resume, shard.pause, shard.pause, shard.resume, shard.resume)):
        step = Step()
        act(now_ms, step)
        assert len(step.changes) == len(step.events)
        kinds.append([event.kind for event in step.events])
    assert kinds == [[], [EventKind.PAUSED], [], [EventKind.RESUMED], []]


# At most once: Q6 and C18


@pytest.mark.feature("Q6", "C18")
@pytest.mark.parametrize("action", ["acknowledge", "cancel", "expire"])
def test_at_most_once_any_settlement_frees_the_place_only(action: str) -> None:
    one = with_messages(2, semantics=Semantics.AT_MOST_ONCE, fairness=Fairness.ROUND_ROBIN, max_cancels=1)
    one.subscribe("inky")
    assert got(one.deliver(), "inky") == [0]
    assert one.deliver() == {}
    assert one.settle(action, "inky", at(0)) == ["settled"]
    assert one._last_gone == []
    assert got(one.deliver(), "inky") == [1]
    assert one.settle(action, "inky", at(0)) == ["already_settled"]


@pytest.mark.feature("Q6")
def test_at_most_once_never_delivers_twice() -> None:
    one = with_messages(3, semantics=Semantics.AT_MOST_ONCE, fairness=Fairness.ROUND_ROBIN)
    one.subscribe("inky", 2)
    assert got(one.deliver(), "inky") == [0, 1]
    one.commit()
    one.crash()
    one.advance(10_000)
    one.unsubscribe("inky")
    one.subscribe("blinky", 5)
    assert got(one.deliver(), "blinky") == [2]


# Arrival


@pytest.mark.feature("L12")
def test_an_unreadable_lifetime_leaves_with_its_fault_and_the_rest_flows_on() -> None:
    one = world()
    one.publish("orders", broken=True)
    one.publish("orders")
    step = one._open()
    one.shard.arrive("orders", 0, one.topics["orders", 0], step)
    (removal,) = step.removals
    assert (removal.reasons, removal.letter) == ((Reason.INVALID_LIFETIME,), True)
    assert "lapse-ttl-ms" in removal.detail
    assert one.shard.depth()["available"] == 1


@pytest.mark.feature("Q2")
def test_a_queue_over_many_topics_survives_a_crash() -> None:
    one = world()
    for number in range(300):
        one.publish(f"orders-{number}")
        one.read(f"orders-{number}")
    one.commit()
    one.crash()
    one.subscribe("inky", 300)
    assert len(one.deliver()["inky"]) == 300


# Segments that go, and crashes


@pytest.mark.feature("C16")
def test_every_bookmark_is_answered_though_scheduled_messages_stand_between_older_ones() -> None:
    with small(size=3):
        one = world(expiration=ON)
        one.publish("orders", enqueue_at_ms=1_001)
        one.publish("orders", enqueue_at_ms=1_001)
        one.publish("orders", ttl_ms=1)
        one.read("orders")
        one.advance(1)
        assert one.settle("acknowledge", "inky", at(0, 2)) == ["settled", "settled", "time_limit"]
        assert one.settle("acknowledge", "inky", at(0, 2)) == ["already_settled", "already_settled", "time_limit"]


@pytest.mark.feature("Q16", "Q5")
def test_after_a_crash_the_first_message_is_still_the_first() -> None:
    with small(size=3):
        one = with_messages(10)
        one.commit()
        one.crash()
        one.subscribe("inky", 10)
        assert got(one.deliver(), "inky") == list(range(10))


@pytest.mark.feature("Q16")
def test_inherited_segments_move_out_of_the_reach_of_the_old_owner() -> None:
    with small(size=3, ring=2):
        one = with_messages(12)
        for _ in range(6):
            one.commit()
            one.heard("inky")
        one.commit()
        one.crash(stall=True)
        for _ in range(6):
            one.heard("inky")
            one.commit()
        assert {key[1:9] for key in one.journal._whole_at.values()} == {one.epoch.to_bytes(8)}
        one.zombie(0, leave_all=True)
        one.log.compact(one.log.end, tombstones_too=True)
        one.crash()
        assert one.shard.depth()["available"] == 12


@pytest.mark.feature("Q8")
def test_under_strict_a_stranger_is_nobody_and_holds_nothing() -> None:
    one = with_messages(4, leasing=Leasing.STRICT)
    for name in ("inky", "blinky", "clyde", "pinky"):
        one.subscribe(name)
    one.deliver()
    assert one.settle("acknowledge", "stranger", Claim("orders", 0, 0, 3)) == ["not_holder"] * 4
    assert one.settle("renew", "stranger", Claim("orders", 0, 0, 3)) == ["not_holder"] * 4


@pytest.mark.feature("C23", "L11")
def test_a_lowered_limit_takes_out_what_is_beyond_it_and_leaves_what_expired_to_its_timer() -> None:
    one = world(expiration=ON)
    one.publish("orders")
    one.publish("orders", ttl_ms=50)
    one.read("orders")
    one.subscribe("inky")
    one.deliver()
    one.settle("cancel", "inky", at(0))
    one.unsubscribe("inky")
    one.commit()
    one.now_ms += 50
    one.crash(QueueSettings(name="orders", lease_ms=100, expiration=ON, max_deliveries=1))
    assert [(gone.bookmark[2], gone.reasons) for gone in one._last_gone] == [(0, ("max_deliveries",))]
    assert [(gone.bookmark[2], gone.reasons) for gone in one.advance()] == [(1, ("time_limit",))]


@pytest.mark.feature("X6", "L12")
def test_a_repeat_with_a_lifetime_that_cannot_be_read_is_a_repeat() -> None:
    one = world(dedup_window_ms=MINUTE_MS)
    one.publish("orders", message_id=b"7")
    one.publish("orders", message_id=b"7", broken=True)
    one.publish("orders", message_id=b"8", broken=True)
    one.read("orders")
    assert [(gone.bookmark[2], gone.reasons) for gone in one._last_gone] == [(2, ("invalid_lifetime",))]
