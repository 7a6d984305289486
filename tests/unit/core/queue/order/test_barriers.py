"""Barriers by name (Q12).

Each also runs beside the oracle, which `World` compares.
"""

import pytest

from lapse.core.queue.settings import Leasing
from lapse.core.queue.settlement.settlement import SettleAction
from lapse.core.queue.step import Step
from unit.core.queue.compared.small_shard import small
from unit.core.queue.order.bodies import BARRIER, GROUP, ON, ONCE, STOP, at, depth, publish, sent, world
from unit.core.queue.world import World

pytestmark = pytest.mark.usefixtures("each_room")


def barrier_world(before: int = 1, behind: int = 1, **settings) -> World:
    return world(*[{}] * before, STOP, *[{}] * behind, traits=BARRIER, **settings)


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


@pytest.mark.feature("C60", "Q12")
@pytest.mark.parametrize("subscribers", [1, 2, 4])
def test_a_crowd_of_barriers_leaves_in_parts_so_that_others_have_their_turn(subscribers: int) -> None:
    with small(at_once=3):
        one = world(*[STOP] * 7, {}, traits=BARRIER)
        for number in range(subscribers):
            one.subscribe(f"s{number}", 5)
        one.commit()
        first = Step()
        assert one.shard.deliver(one.now_ms, first), "more are to come"
        assert len(first.deliveries) == {1: 3, 2: 2, 4: 4}[subscribers], "as many as are allowed, but a whole barrier"
        assert all(delivery.barrier for delivery in first.deliveries)
        one.crash()
        got = one.deliver()
        assert sent(got, "s0") == [*((offset, True) for offset in range(7)), (7, False)]
        assert sum(map(len, got.values())) == 7 * subscribers + 1


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
