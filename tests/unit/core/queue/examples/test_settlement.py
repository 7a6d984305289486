"""Every action, state, holder, token and mode (Q8, C13 to C18).

Each also runs beside the oracle, which `World` compares.
"""

import pytest

from lapse.core.queue.settings import Fairness, Leasing, QueueSettings
from lapse.core.queue.settlement.settlement import SettleAction
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.core.shard.event import EventKind
from unit.core.queue.examples.messages import ON, at, got, with_messages, world
from unit.core.queue.world import World

pytestmark = pytest.mark.usefixtures("each_room")


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
def test_every_action_on_every_state(action: str, state: str, token: int | None, leasing: Leasing) -> None:
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
def test_acknowledgments_that_follow_one_another_are_reported_in_one_event() -> None:
    one, step = with_messages(3), Step()
    one.subscribe("inky", 3)
    one.deliver()
    one.shard.settle(SettleAction.ACKNOWLEDGE, "inky", [at(0), at(1), at(2)], one.now_ms, step)
    assert [(event.kind, event.messages.offsets.tolist()) for event in step.events] == [("acknowledged", [0, 1, 2])]


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
