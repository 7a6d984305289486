"""Deliveries that were journaled: which of them still hold, and how one is undone that nobody saw (C55)."""

import pytest

from lapse.core.expression import compile_filter, compile_value
from lapse.core.letter import FORWARDER
from lapse.core.lifetime import NEVER, Expiration
from lapse.core.queue.arrival.trait import TraitReader
from lapse.core.queue.change import ChangeKind
from lapse.core.queue.journal.queue_journal import QueueJournal
from lapse.core.queue.journal.restored import Restored, restore
from lapse.core.queue.settings import Fairness, QueueSettings, Semantics
from lapse.core.queue.settlement.settlement import Claim
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.core.reason import Reason
from lapse.core.shard.event import EventKind
from unit.core.queue.world import World

LEASE_MS = 100


def world(semantics: Semantics = Semantics.AT_LEAST_ONCE) -> World:
    one = World(QueueSettings(name="orders", lease_ms=LEASE_MS, max_deliveries=1, semantics=semantics))
    for _ in range(6):
        one.publish("orders")
    one.read("orders")
    one.subscribe("inky", 4)
    one.commit()
    return one


def taken_over(one: World) -> tuple[QueueShard, Restored]:
    restored = restore(one.log.latest().items())
    return QueueShard(one.shard.settings, restored.state), restored


def held(shard: QueueShard, restored: Restored, since: int = 0) -> list[tuple[str, list[int], list[int], int]]:
    changes = [change for sequence, change in restored.handed_out if sequence >= since]
    return [
        (one.subscription, one.messages.offsets.tolist(), one.messages.deliveries.tolist(), one.until_ms)
        for one, _ in shard.handed_out.deliveries(changes)
    ]


@pytest.mark.feature("C55")
def test_what_was_settled_returned_or_renewed_was_seen_and_does_not_hold_any_more() -> None:
    one = world()
    one.deliver()
    one.commit()
    until_ms = one.now_ms + LEASE_MS
    assert held(*taken_over(one)) == [("inky", [0, 1, 2, 3], [1, 1, 1, 1], until_ms)]
    one.settle("acknowledge", "inky", Claim("orders", 0, 0, 0))
    one.advance(10)
    one.deliver()
    one.commit()
    step = Step()
    one.shard.renew("inky", [Claim("orders", 0, 1, 1)], one.now_ms, step)
    one.log.append(one.epoch, one.journal.encode(step))
    assert held(*taken_over(one)) == [("inky", [2, 3], [1, 1], until_ms), ("inky", [4], [1], until_ms + 10)]
    assert held(*taken_over(one), since=one.shard.state.sequence - 2) == [("inky", [4], [1], until_ms + 10)]


@pytest.mark.feature("C55", "X10")
def test_of_what_was_not_sent_only_leased_messages_are_taken_back() -> None:
    """As in a replay with other settings, where leases have ended that had not in the recording."""
    one = world()
    one.deliver()
    one.settle("cancel", "inky", Claim("orders", 0, 1, 1))
    one.commit()
    step = Step()
    one.shard.handed_out.take_back_unsent([0, 1, 5], one.now_ms, step)
    one.log.append(one.epoch, one.journal.encode(step))
    assert [offsets for _, offsets, _, _ in held(*taken_over(one))] == [[2, 3]]


@pytest.mark.feature("C55", "Q6", "C79")
def test_what_was_sent_at_most_once_holds_until_it_is_acknowledged() -> None:
    one = world(Semantics.AT_MOST_ONCE)
    one.deliver()
    one.settle("acknowledge", "inky", Claim("orders", 0, 1, 1))
    one.commit()
    assert held(*taken_over(one)) == [("inky", [0, 2, 3], [1, 1, 1], 0)]


@pytest.mark.feature("C55", "Q9")
@pytest.mark.parametrize("torn", [False, True])
def test_a_delivery_that_is_taken_back_does_not_count_whatever_crash_comes_in_between(torn: bool) -> None:
    one = world()
    one.deliver()
    one.commit()
    log = dict(one.log.latest())
    for epoch in (50, 51) if torn else (50,):
        restored = restore(log.items())
        shard = QueueShard(one.shard.settings, restored.state)
        changes = [change for _, change in restored.handed_out]
        for _, places in shard.handed_out.deliveries(changes):
            shard.handed_out.take_back([place for place in places if place in (1, 2)])
        assert (shard.depth()["available"], shard.depth()["leased"]) == (4, 2)
        begun = QueueJournal(restored.state, epoch, restored).begin()
        for key, value in begun[:1] if torn and epoch == 50 else begun:  # the segment only
            if value is None:
                log.pop(key, None)
            else:
                log[key] = value
    again = restore(log.items())
    assert not again.handed_out
    assert [shown.deliveries for shown in QueueShard(one.shard.settings, again.state).peek(0, 6)] == [1, 0, 0, 1, 0, 0]


@pytest.mark.feature("C55", "Q9")
def test_a_delivery_that_was_never_sent_does_not_count_also_after_a_crash() -> None:
    one = world()
    one.deliver()
    one.unsent(*(("inky", ("orders", 0, offset), 1) for offset in (0, 1, 2)))
    one.commit()
    one.crash(one.settings)
    one.subscribe("inky", 6)
    sent = [(each.bookmark[2], each.deliveries) for each in one.deliver()["inky"]]
    assert sent == [(0, 1), (1, 1), (2, 1), (4, 1), (5, 1)]
    assert {gone.bookmark[2] for gone in one.advance(LEASE_MS)} == {0, 1, 2, 3, 4, 5}


@pytest.mark.feature("C55", "Q9", "C13")
def test_only_the_delivery_that_was_not_sent_is_taken_back() -> None:
    """Meanwhile the message may have been settled, or may have been delivered once more."""
    one = World(QueueSettings(name="orders", lease_ms=LEASE_MS))
    for _ in range(3):
        one.publish("orders")
    one.read("orders")
    one.subscribe("inky", 3)
    one.deliver()
    one.settle("acknowledge", "inky", Claim("orders", 0, 0, 0))
    one.settle("cancel", "inky", Claim("orders", 0, 1, 1))
    one.deliver()
    one.unsent(*(("inky", ("orders", 0, offset), 1) for offset in range(4)), ("nobody", ("none", 0, 0), 1))
    assert [(shown.state_name, shown.deliveries) for shown in one.shard.peek(0, 9)] == [("leased", 2), ("available", 0)]


@pytest.mark.feature("C55", "Q10", "C80", "L10")
def test_a_message_whose_delivery_was_not_sent_leaves_if_it_may_not_stay() -> None:
    settings = QueueSettings(name="orders", lease_ms=LEASE_MS, expiration=Expiration(enabled=True))
    one = World(settings)
    for ttl_ms in (50, None, None):
        one.publish("orders", ttl_ms=ttl_ms)
    one.publish("direct")
    for topic in ("orders", "direct"):
        one.read(topic)
    one.subscribe("inky", 4)
    one.deliver()
    one.log_begins("direct", 1)
    one.advance(60)
    every = [*(("orders", 0, offset) for offset in range(3)), ("direct", 0, 0)]
    gone = one.unsent(*(("inky", bookmark, 1) for bookmark in every))
    assert sorted((left.bookmark, left.reasons, left.deliveries) for left in gone) == [
        (("direct", 0, 0), ("log_truncated",), 0),
        (("orders", 0, 0), ("time_limit",), 0),
    ]


@pytest.mark.feature("C55", "Q15")
def test_a_consumer_that_was_sent_nothing_is_not_known_to_hang_nor_to_settle() -> None:
    one = world()
    one.deliver()
    (inky,) = one.shard.subscriptions()
    before = inky.settled
    one.unsent(("inky", ("orders", 0, 0), 1))
    assert (inky.settled, inky.ended, inky.outstanding) == (before, None, 3)


KINDS = {
    "plain": {},
    "once": {"semantics": Semantics.AT_MOST_ONCE, "fairness": Fairness.ROUND_ROBIN},
    "depth": {"target_depth": 4},
    "group": {"traits": TraitReader(group=compile_value("/g"))},
    "priority": {"traits": TraitReader(priority=compile_value("/p"))},
    "barrier": {"traits": TraitReader(barrier=compile_filter("/b = 'yes'"))},
}


@pytest.mark.feature("C81", "Q9", "Q12")
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_forwarder_could_not_hand_on_goes_on_as_if_it_had_never_been_tried(kind: str) -> None:
    one = World(QueueSettings(name="orders", max_deliveries=1, **KINDS[kind]))
    for number in range(4):
        one.publish("orders", body={"g": number % 2, "p": number, "b": "no" if number % 3 else "yes"})
    one.read("orders")
    tried: list[list[int]] = []
    for _ in range(3):
        step = Step()
        one.shard.subscribing.subscribe(FORWARDER, "forwards", 10, NEVER, "", one.now_ms, step)
        one.shard.deliver(one.now_ms, step)
        tried.append([int(offset) for delivery in step.deliveries for offset in delivery.messages.offsets])
        one.shard.handed_out.undo_deliveries(FORWARDER, step)
        one.shard.unsubscribe(FORWARDER, one.now_ms, step)
        assert {shown.deliveries for shown in one.shard.peek(0, 9)} == {0}
        assert not step.removals
        assert {event.kind for event in step.events} == {"subscribed", "unsubscribed"}
        assert one.shard.depth()["available"] == 4
    assert tried[0] == tried[1] == tried[2] != []


def with_a_forwarded_barrier() -> tuple[World, Step]:
    """A barrier that the forwarder holds, and that one more subscription is to get; and the next step."""
    is_barrier = TraitReader(barrier=compile_filter("/b = 'yes'"))
    one = World(QueueSettings(name="orders", traits=is_barrier, dead_letter_topic="dlq.orders"))
    one.publish("orders", body={"b": "yes"})
    one.read("orders")
    step = Step()
    for name in (FORWARDER, "inky"):
        one.shard.subscribing.subscribe(name, "", 10, NEVER, "", one.now_ms, step)
    one.shard.deliver(one.now_ms, step)
    assert [(delivery.subscription, delivery.barrier) for delivery in step.deliveries] == [(FORWARDER, False)]
    assert one.shard.depth()["leased"] == 1
    return one, Step()


@pytest.mark.feature("Q12", "Q21")
def test_a_barrier_goes_to_the_others_once_the_target_of_forwarding_has_it() -> None:
    one, step = with_a_forwarded_barrier()
    assert one.shard.release_forwarded(one.now_ms, step) is None
    assert [(delivery.subscription, delivery.barrier) for delivery in step.deliveries] == [("inky", True)]
    (emitted,) = [event for event in step.events if event.kind is EventKind.BARRIER_RELEASED]
    assert emitted.detail == f"{FORWARDER}, inky"
    assert one.shard.depth()["depth"] == 0
    assert one.shard.release_forwarded(one.now_ms, step) is None
    assert len(step.deliveries) == 1


@pytest.mark.feature("Q12", "Q21", "D3")
def test_a_barrier_that_the_target_of_forwarding_refuses_is_a_letter_and_goes_to_the_others() -> None:
    """It has one fate, which the ledger counts."""
    one, step = with_a_forwarded_barrier()
    assert one.shard.release_forwarded(one.now_ms, step) is None
    one.shard.remove_undecodable("orders", 0, 0, "too large", one.now_ms, step, handed_out=True)
    (removal,) = step.removals
    assert (removal.letter, removal.reasons) == (True, (Reason.UNDECODABLE,))
    assert removal.detail == "too large; the barrier was released to inky"
    assert EventKind.BARRIER_RELEASED not in {event.kind for event in step.events}
    (released,) = [change for change in step.changes if change.kind is ChangeKind.RELEASED]
    assert released.facts["receivers"] == ["inky"]
    assert one.shard.depth()["depth"] == 0
    again = Step()
    one.shard.repeat_barrier(released, again)
    assert [delivery.subscription for delivery in again.deliveries] == ["inky"]


@pytest.mark.feature("Q12", "Q21", "C81")
def test_a_barrier_that_could_not_be_forwarded_at_all_is_reported_the_others_only() -> None:
    one, step = with_a_forwarded_barrier()
    one.shard.handed_out.undo_deliveries(FORWARDER, step)
    one.shard.unsubscribe(FORWARDER, one.now_ms, step)
    one.shard.deliver(one.now_ms, step)
    (emitted,) = [event for event in step.events if event.kind is EventKind.BARRIER_RELEASED]
    assert emitted.detail == "inky"
    assert not step.removals
