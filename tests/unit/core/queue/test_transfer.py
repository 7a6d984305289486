"""Messages handed over to another deployment in two stages: never delivered on both sides, whatever is begun again."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.core.expression import compile_filter, compile_value
from lapse.core.lifetime import Expiration
from lapse.core.queue.arrival.trait import TraitReader
from lapse.core.queue.command import QueueCommands
from lapse.core.queue.inquiry.matching import MOST_TRAVELLING
from lapse.core.queue.inquiry.row_filter import with_row_filter
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement.settlement import Claim
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.core.queue.transfer.transfers import HandOver
from lapse.protocol import header
from lapse.protocol.answer import FilterDemand
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.command import Command
from lapse.protocol.dead_letter import Death, headers
from unit.core.queue.compared.written import published
from unit.core.queue.world import World

ON = Expiration(enabled=True)
ALL = Claim("orders", 0, 0, 1_000)


def here(**more: object) -> World:
    return World(QueueSettings(name="here", expiration=ON, lease_ms=100, **more))


def there(**more: object) -> World:
    return World(QueueSettings(name="there", expiration=ON, lease_ms=100, **more))


def fill(world: World, count: int, **said: object) -> None:
    for _ in range(count):
        world.publish("orders", **said)
    world.read("orders")


def states(world: World) -> list[str]:
    return ["unconfirmed" if not one.confirmed else one.state_name for one in world.shard.peek(0, 1_000)]


@pytest.mark.feature("Q17")
def test_a_message_that_is_held_is_delivered_to_nobody_and_comes_back_to_its_place() -> None:
    world = here()
    fill(world, 3)
    assert not world.hold("t", Claim("orders", 0, 1, 1))
    world.subscribe("inky", 10)
    assert [one.bookmark[2] for one in world.deliver()["inky"]] == [0, 2]
    assert world.settle("acknowledge", "inky", Claim("orders", 0, 1, 1)) == ["transferring"]
    assert world.settle("cancel", "inky", Claim("orders", 0, 1, 1)) == ["transferring"]
    assert world.purge(leased=True) == (2, 1)
    fill(world, 1)
    assert world.hand_back("t") == 1
    assert [one.bookmark[2] for one in world.deliver()["inky"]] == [1, 3]


@pytest.mark.feature("Q17")
def test_what_somebody_has_is_not_handed_over() -> None:
    world = here()
    fill(world, 3)
    world.subscribe("inky", 1)
    world.deliver()
    outcomes, _ = world.shard.transfer_source.hold("t", "", [Claim("orders", 0, 0, 3)], 10, world.now_ms, Step())
    assert [(one.first, one.last, str(one.result)) for one in outcomes] == [
        (0, 0, "leased"),
        (1, 2, "settled"),
        (3, 3, "unknown"),
    ]


@pytest.mark.feature("Q17", "L11", "L15")
def test_it_expires_on_both_sides_between_put_and_confirm_and_is_then_delivered_on_neither() -> None:
    source, target = here(), there()
    fill(source, 1, ttl_ms=50)
    source.hold("t", ALL)
    target.publish("orders", expires_at_ms=1_050, transferred=("there", "t"))
    target.read("orders")
    assert states(source) == ["transferring"]
    assert states(target) == ["unconfirmed"]
    for world in (source, target):
        world.subscribe("inky")
        (gone,) = world.advance(50)
        assert (gone.reasons, gone.deadline_ms, gone.at_ms) == (("time_limit",), 1_050, 1_050)
    assert source.confirm("t", HandOver("orders", 0, 0, 1, "orders", 0, 0)) == ["time_limit"]
    assert target.accept("t", Claim("orders", 0, 0, 0)) == ["already_settled"]
    assert not target.deliver()
    assert not source.deliver()


@pytest.mark.feature("Q17")
@pytest.mark.parametrize("crash_at", range(8))
def test_a_transfer_that_is_begun_again_after_any_step_delivers_once(crash_at: int) -> None:
    """Each attempt puts the messages again; both shards crash with it, and lose what was not durable."""
    source, target = here(), there()
    fill(source, 2, ttl_ms=10_000)
    source.subscribe("inky", 10)
    target.subscribe("blinky", 10)
    delivered: list[tuple[str, int]] = []
    steps = itertools.count()

    def passed() -> bool:
        for world, name in ((source, "inky"), (target, "blinky")):
            world.commit()
            delivered.extend((name, one.bookmark[2]) for one in world.deliver().get(name, []))
            world.commit()
        if next(steps) == crash_at:
            for world in (source, target):
                world.crash()
            return True
        return False

    def attempt() -> bool:
        """One run of the transfer; False if it was killed."""
        source.hold("t", Claim("orders", 0, 0, 1))
        if passed():
            return False
        held = [one.offset for one in source.shard.transfer_source.held_messages("t")]
        puts = [(offset, target.publish("orders", transferred=("there", "t"))[2]) for offset in held]
        target.read("orders")
        if passed():
            return False
        source.confirm("t", *(HandOver("orders", 0, offset, 1, "orders", 0, put) for offset, put in puts))
        if passed():
            return False
        transfer = source.shard.state.transfers.get("t")
        for one in transfer.confirmed if transfer else []:
            target.accept("t", Claim(one.to_topic, one.to_partition, one.to_first, one.to_first + one.count - 1))
            if passed():
                return False
        source.finish_transfer("t")
        return not passed()

    while not attempt():
        pass
    target.discard("t")
    passed()
    assert sorted(name for name, _ in delivered) == ["blinky", "blinky"]
    assert not source.shard.state.transfers.get("t")
    assert target.shard.depth()["unconfirmed"] == 0


@pytest.mark.feature("Q17")
def test_what_came_back_is_not_confirmed_any_more() -> None:
    source, target = here(), there()
    fill(source, 1)
    source.hold("t", ALL)
    target.publish("orders", transferred=("there", "t"))
    target.read("orders")
    source.hand_back("t")
    assert source.confirm("t", HandOver("orders", 0, 0, 1, "orders", 0, 0)) == ["not_leased"]
    assert source.shard.state.transfers.get("t") is None
    assert target.discard("t") == 1
    assert [one.reasons for one in target._last_gone] == [("withdrawn",)]


@pytest.mark.feature("Q17")
@pytest.mark.parametrize("said", [{}, {"enqueue_at_ms": 5_000}])
def test_a_transfer_is_known_as_long_as_it_holds_anything(said: dict[str, int]) -> None:
    world = here()
    fill(world, 2, **said)
    world.hold("t", ALL)
    world.confirm("t", HandOver("orders", 0, 0, 1, "orders", 0, 0))
    world.finish_transfer("t")
    assert [one.offset for one in world.shard.transfer_source.held_messages("t")] == [1]
    assert world.hand_back("t") == 1
    assert not list(world.shard.state.transfers)


@pytest.mark.feature("Q17")
def test_what_is_not_held_is_not_said_to_be_though_more_is_held_than_is_asked_for() -> None:
    world = here()
    fill(world, 6)
    assert not world.hold("t", Claim("orders", 0, 0, 2))
    outcomes, more = world.shard.transfer_source.hold("t", "", [ALL], 1, world.now_ms, Step())
    assert [(one.first, one.last, str(one.result)) for one in outcomes] == [(0, 2, "settled")]
    assert more


@pytest.mark.feature("Q17")
def test_what_another_transfer_has_put_here_is_not_told_as_more_to_hold() -> None:
    world = here()
    fill(world, 1)
    fill(world, 1, transferred=("here", "x"))
    assert not world.hold("t", Claim("orders", 0, 0, 0), Claim("orders", 0, 1, 1), most=1)
    fill(world, 1, enqueue_at_ms=5_000)
    assert world.hold("t", Claim("orders", 0, 0, 0), Claim("orders", 0, 2, 2), most=1)


@pytest.mark.feature("Q17", "L5")
def test_a_schedule_goes_along() -> None:
    source, target = here(), there()
    fill(source, 1, enqueue_at_ms=1_500)
    source.hold("t", ALL)
    (held,) = source.shard.transfer_source.held_messages("t")
    assert held.until_ms == 1_500
    source.advance(1_000)
    assert states(source) == ["transferring"]
    target.publish("orders", enqueue_at_ms=1_500, transferred=("there", "t"))
    target.read("orders")
    target.advance(600)
    assert states(target) == ["unconfirmed"]
    assert target.accept("t", Claim("orders", 0, 0, 0)) == ["settled"]
    assert states(target) == ["available"]
    target.publish("orders", enqueue_at_ms=9_500, transferred=("there", "t"))
    target.read("orders")
    target.accept("t", Claim("orders", 0, 1, 1))
    assert states(target) == ["available", "scheduled"]
    assert source.hand_back("t") == 1
    assert states(source) == ["available"]


@pytest.mark.feature("Q17", "C29")
def test_only_the_queue_that_it_is_for_takes_it() -> None:
    other = World(QueueSettings(name="other", expiration=ON))
    other.publish("orders", transferred=("there", "t"))
    other.publish("orders")
    other.read("orders")
    assert states(other) == ["available"]


@pytest.mark.feature("Q17", "X6")
def test_a_message_that_is_put_again_is_no_repeat() -> None:
    target = there()
    for _ in range(2):
        target.publish("orders", transferred=("there", "t"), message_id=b"7")
    target.read("orders")
    assert target.accept("t", Claim("orders", 0, 1, 1)) == ["settled"]
    assert states(target) == ["available", "unconfirmed"]


@pytest.mark.feature("Q17", "Q13")
def test_beyond_the_target_depth_it_is_advanced_to_and_nothing_follows_until_the_depth_allows() -> None:
    world = here(target_depth=2)
    for _ in range(10):
        world.publish("orders")
    world.read("orders")
    wanted = Claim("orders", 0, 5, 5)
    outcomes, _ = world.shard.transfer_source.hold("t", "", [wanted], 10, world.now_ms, Step())
    assert [str(one.result) for one in outcomes] == ["unknown"]
    world.shard.note_end("orders", 0, 10)
    assert world.shard.room_for("orders", 0) == 0
    world.shard.activate_up_to([wanted], 10)
    assert world.shard.has_early_transfer
    assert [(one.first, str(one.result)) for one in world.shard.with_advancing(outcomes)] == [(5, "advancing")]
    assert world.shard.room_for("orders", 0) == 4
    world.shard.arrive("orders", 0, world.topics["orders", 0][2:6], Step())
    assert not world.shard.has_early_transfer
    outcomes, _ = world.shard.transfer_source.hold("t", "", [wanted], 10, world.now_ms, Step())
    assert [str(one.result) for one in outcomes] == ["settled"]
    assert world.shard.room_for("orders", 0) == 0
    world.shard.transfer_source.confirm("t", [HandOver("orders", 0, 5, 1, "orders", 0, 0)], world.now_ms, Step())
    assert world.shard.depth()["depth"] == 5
    world.shard.purge(world.now_ms, Step())
    assert world.shard.room_for("orders", 0) == 2
    # Behind the end of the log there is nothing to wait for.
    world.shard.activate_up_to([Claim("orders", 0, 10, 99)], 10)
    assert not world.shard.has_early_transfer


@pytest.mark.feature("C85", "C51")
def test_what_is_accepted_beyond_the_target_depth_is_held_until_there_is_room() -> None:
    target = there(target_depth=2)
    fill(target, 1, transferred=("there", "t"))
    for _ in range(4):
        fill(target, 1, transferred=("there", "t"))
    assert target.accept("t", Claim("orders", 0, 0, 4)) == ["settled"] * 5
    assert states(target) == ["available"] * 2 + ["held"] * 3
    assert target.accept("t", Claim("orders", 0, 4, 4)) == ["already_settled"]
    target.settle("expire", "", Claim("orders", 0, 0, 0))
    target.advance()
    assert states(target) == ["available"] * 2 + ["held"] * 2


@pytest.mark.feature("Q17", "Q12", "Q20")
def test_barriers_and_groups_wait_for_what_may_come_back() -> None:
    world = here(traits=TraitReader(barrier=compile_filter("/b = 'yes'")))
    world.publish("orders")
    world.publish("orders", body={"b": "yes"})
    world.read("orders")
    world.subscribe("inky", 10)
    world.hold("t", Claim("orders", 0, 0, 0))
    assert not world.deliver()
    world.confirm("t", HandOver("orders", 0, 0, 1, "orders", 0, 0))
    assert [one.barrier for one in world.deliver()["inky"]] == [True]

    world = here(traits=TraitReader(group=compile_value("/g")))
    fill(world, 2, body={"g": "x"})
    world.subscribe("inky", 10)
    world.hold("t", Claim("orders", 0, 0, 0))
    assert not world.deliver()
    world.hand_back("t")
    assert [one.bookmark[2] for one in world.deliver()["inky"]] == [0]


@pytest.mark.feature("Q17", "C19")
def test_a_delay_comes_back_with_its_message() -> None:
    world = here()
    fill(world, 1)
    world.subscribe("inky")
    world.deliver()
    world.settle("cancel", "inky", ALL._replace(last=0), delay_ms=500)
    world.hold("t", ALL)
    world.hand_back("t")
    assert states(world) == ["delayed"]
    world.hold("t", ALL)
    world.advance(500)
    assert states(world) == ["transferring"]
    world.hand_back("t")
    assert states(world) == ["available"]


KINDS = ("plain", "ours", "ours, due", "ours, later", "theirs", "scheduled")


def written(world: World, kinds: list[tuple[str, int]]) -> None:
    """Records of several kinds, with gaps between their offsets, read."""
    due_ms, later_ms = world.now_ms + 50, world.now_ms + 500
    said = {
        "plain": {},
        "ours": {"transferred": ("there", "t")},
        "ours, due": {"transferred": ("there", "t"), "expires_at_ms": due_ms},
        "ours, later": {"transferred": ("there", "t"), "enqueue_at_ms": later_ms},
        "theirs": {"transferred": ("there", "u")},
        "scheduled": {"enqueue_at_ms": later_ms},
    }
    for kind, gap in kinds:
        world.publish("orders", gap=gap, **said[kind])
    world.read("orders")


@pytest.mark.feature("Q17", "C2")
@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 2)), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 16), st.integers(0, 8)), min_size=1, max_size=3),
    st.sampled_from([0, 49, 50, 51]),
)
def test_each_offset_that_is_to_be_accepted_is_answered_once(kinds, ranges, later_ms) -> None:
    """Whatever stands there, and the deadline's own millisecond is too late; what is accepted twice is told so."""
    world = there()
    written(world, kinds)
    world.now_ms += later_ms
    for first, more in ranges:
        world.accept("t", Claim("orders", 0, first, first + more))
    world.commit()
    world.crash()
    world.accept("t", Claim("orders", 0, 0, 20))
    world.discard("t")


@pytest.mark.feature("Q17", "C16")
@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from(["plain", "scheduled"]), st.integers(0, 2)), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 8)), min_size=1, max_size=3),
    st.integers(0, 6),
    st.integers(1, 5),
)
def test_no_more_is_held_than_is_asked_for_whatever_it_is_and_all_of_it_survives(kinds, ranges, leased, most) -> None:
    world = here()
    written(world, kinds)
    world.subscribe("inky", leased)
    world.deliver()
    for name in ("t", "u", "t"):
        for first, more in ranges:
            world.hold(name, Claim("orders", 0, first, first + more), most=most)
            assert len(list(world.shard.transfer_source.held_messages(name))) <= most
    held = {name: [one.offset for one in world.shard.transfer_source.held_messages(name)] for name in ("t", "u")}
    for _ in range(3):  # what the first epoch journals is written anew by the second
        world.commit()
        world.crash()
        assert {
            name: [one.offset for one in world.shard.transfer_source.held_messages(name)] for name in ("t", "u")
        } == held
    for name, offsets in held.items():
        assert world.hand_back(name) == len(offsets)
    assert not list(world.shard.state.transfers)


@pytest.mark.feature("Q17", "C73")
@pytest.mark.parametrize("enqueue_at_ms", [None, 1_500])
@pytest.mark.parametrize("target_depth", [0, 1])
def test_counts_go_along_and_a_message_dies_of_them_there(enqueue_at_ms: int | None, target_depth: int) -> None:
    """Two deliveries and a cancel where it was, one delivery here: over crashes, a schedule and a full queue."""
    target = there(max_deliveries=3, **({"target_depth": 1} if target_depth else {}))

    def again() -> None:
        target.commit()
        target.crash()

    fill(target, 1, transferred=("there", "t"), counts=(2, 1), enqueue_at_ms=enqueue_at_ms)
    if target_depth:
        fill(target, 1)
    again()
    assert target.accept("t", Claim("orders", 0, 0, 0)) == ["settled"]
    again()
    if target_depth:
        target.advance(600)
        again()
        assert states(target) == ["available", "held"]
        target.settle("expire", "", Claim("orders", 0, 1, 1))
    target.advance(600)
    again()
    (waiting,) = target.shard.peek(0, 10)
    assert (waiting.state_name, waiting.deliveries, waiting.cancels) == ("available", 2, 1)
    target.subscribe("inky", 10)
    (delivered,) = target.deliver()["inky"]
    assert (delivered.bookmark[2], delivered.deliveries) == (0, 3)
    assert target.settle("cancel", "inky", Claim("orders", 0, 0, 0)) == ["settled"]
    assert not states(target)


@pytest.mark.feature("C73")
def test_counts_without_a_transfer_mean_nothing() -> None:
    target = there(max_deliveries=3)
    fill(target, 2, counts=(2, 9))
    assert [one.deliveries for one in target.shard.peek(0, 10)] == [0, 0]
    target.publish("orders", transferred=("there", "t"), counts=(9_999_999_999, 1))
    target.read("orders")
    *_, last = target.shard.peek(0, 10)
    assert last.deliveries == (1 << 31) - 1


@pytest.mark.feature("C73", "C23")
@pytest.mark.parametrize(("limits", "reason"), [({"max_deliveries": 2}, "max_deliveries"), ({"max_cancels": 0}, "")])
def test_a_message_that_is_beyond_the_limits_there_leaves_at_once(limits: dict[str, int], reason: str) -> None:
    target = there(**limits)
    fill(target, 1, transferred=("there", "t"), counts=(2, 1))
    assert target.accept("t", Claim("orders", 0, 0, 0)) == ["settled"]
    assert states(target) == ([] if reason else ["available"])


def spare(world: World, most: int = 100, life_ms: int = 0, handed_over: bool = False) -> list[tuple[int, int]]:
    world.spare(most, life_ms, handed_over)
    found, _ = world.shard.transfer_source.spare.claims(most, life_ms, world.now_ms, handed_over)
    return [(one.first, one.last) for one in found]


@pytest.mark.feature("Q26", "C73")
def test_spare_is_what_no_subscription_here_has_room_for() -> None:
    world = here()
    fill(world, 6)
    assert spare(world) == [(0, 5)]
    assert spare(world, 2) == [(0, 1)]
    world.subscribe("inky", 2)
    assert spare(world) == []
    world.deliver()
    assert spare(world) == [(2, 5)]
    world.pause(True)
    assert spare(world) == []


@pytest.mark.feature("Q26", "C73", "Q12")
def test_neither_a_barrier_nor_what_is_behind_it_is_spare() -> None:
    world = here(traits=TraitReader(barrier=compile_filter("/b = 'yes'")))
    for body in ({}, {"b": "yes"}, {}):
        world.publish("orders", body=body)
    world.read("orders")
    assert spare(world) == [(0, 0)]


@pytest.mark.feature("Q26", "Q11")
def test_the_highest_priority_is_spare_first() -> None:
    world = here(traits=TraitReader(priority=compile_value("/p")))
    for rank in (1, 7, 3):
        world.publish("orders", body={"p": rank})
    world.read("orders")
    assert spare(world, 1) == [(1, 1)]


@pytest.mark.feature("C74")
def test_what_has_less_life_left_than_the_skew_is_not_spare() -> None:
    world = here()
    for ttl_ms in (50, 51, None):
        fill(world, 1, ttl_ms=ttl_ms)
    assert spare(world, life_ms=50) == [(1, 2)]


@pytest.mark.feature("Q26")
def test_what_waits_and_what_is_on_its_way_count_against_the_room_here() -> None:
    target = there()
    target.subscribe("inky", 9)
    for _ in range(3):
        target.publish("orders", transferred=("there", "t"))
    target.read("orders")
    assert spare(target) == []
    assert target.shard.transfer_source.spare.unfiltered_demand() == 6
    assert target.accept("t", Claim("orders", 0, 0, 1)) == ["settled"] * 2
    assert states(target) == ["available", "available", "unconfirmed"]
    assert spare(target) == []
    assert target.shard.transfer_source.spare.unfiltered_demand() == 6


@pytest.mark.feature("Q26", "Q14")
def test_what_no_filter_was_tried_on_yet_is_not_spare() -> None:
    world = here()
    for f in (1, 0, 1):
        world.publish("orders", body={"f": f})
    world.read("orders")
    world.subscribe("inky", 1, text="/f = 1")
    assert spare(world) == []
    world.deliver()
    world.subscribe("blinky", 1, text="/f = 1")
    world.deliver()
    world.subscribe("clyde", 1, text="/f = 1")
    world.deliver()
    assert spare(world) == [(1, 1)]


@pytest.mark.feature("C73")
@pytest.mark.parametrize("later_ms", [0, 40])
def test_what_was_handed_over_is_not_handed_on(later_ms: int) -> None:
    target = there()
    target.publish("orders", transferred=("there", "t"), enqueue_at_ms=target.now_ms + later_ms)
    fill(target, 1)
    assert target.accept("t", Claim("orders", 0, 0, 0)) == ["settled"]
    target.advance(later_ms)
    target.commit()
    target.crash()
    assert spare(target) == [(1, 1)]
    assert spare(target, handed_over=True) == [(0, 0)]
    target.subscribe("inky", 0)
    assert spare(target) == [(1, 1)]
    assert spare(target, handed_over=True) == []


@pytest.mark.feature("Q26")
def test_subscriptions_want_what_they_have_room_for_beside_what_waits() -> None:
    world = there()
    wanted = world.shard.transfer_source.spare.unfiltered_demand
    assert wanted() == 0
    world.subscribe("inky", 5)
    world.subscribe("blinky", 9, text="/f = 1")
    assert wanted() == 5
    fill(world, 2)
    world.publish("orders", transferred=("there", "t"))
    world.read("orders")
    assert wanted() == 2
    world.deliver()
    assert wanted() == 2
    world.pause(True)
    assert wanted() == -1


def _looked(world: World, text: str, most: int = 100, limit: int = 1_000) -> tuple[list[tuple[int, int]], bool]:
    """What is spare under a filter, after one look at payloads."""
    source, matching = world.shard.transfer_source.spare, world.shard.matching
    matching.begin_selection(text, MOST_TRAVELLING)
    world.judge(source.places_to_judge(most, 0, world.now_ms, False, text, limit))
    claims, unseen = source.claims(most, 0, world.now_ms, text=text)
    matching.end_selection(text)
    return [(one.first, one.last) for one in claims], unseen


@pytest.mark.feature("Q26", "Q14")
def test_a_filter_elsewhere_gets_only_what_it_matches_and_nobody_here_takes() -> None:
    world = here()
    for f in (1, 0, 1, 2, 1):
        world.publish("orders", body={"f": f, "b": "yes" if f == 2 else "no"})
    world.read("orders")
    world.subscribe("inky", 1, text="/b = 'yes'")
    assert _looked(world, "/f > 0") == ([(0, 0), (2, 2), (4, 4)], False)
    assert world.spare(2, 0, False, "/f = 1") == [("orders", 0, 0), ("orders", 0, 2)]


@pytest.mark.feature("Q26", "C60")
def test_payloads_are_looked_at_some_at_a_time_in_order_and_once() -> None:
    world = here()
    for f in (0, 0, 1, 0, 0, 1):
        world.publish("orders", body={"f": f})
    world.read("orders")
    assert _looked(world, "/f = 1", limit=2) == ([], True)
    assert _looked(world, "/f = 1", limit=2) == ([(2, 2)], True)
    assert _looked(world, "/f = 1", limit=2) == ([(2, 2), (5, 5)], False)
    source = world.shard.transfer_source.spare
    world.shard.matching.begin_selection("/f = 1", MOST_TRAVELLING)
    assert source.places_to_judge(100, 0, world.now_ms, False, "/f = 1", 2) == []


@pytest.mark.feature("Q26")
def test_subscriptions_with_a_filter_want_what_they_have_room_for_beside_what_waits_for_them() -> None:
    world = there()
    demands = world.shard.transfer_source.spare.demands
    world.subscribe("inky", 5, text="/f = 1")
    world.subscribe("blinky", 2, text="/f = 1")
    world.subscribe("clyde", 3)
    assert {one.filter: one.wanted for one in demands()} == {"/f = 1": 7}
    for f in (1, 0, 0):
        world.publish("orders", body={"f": f})
    world.read("orders")
    assert {one.filter: one.wanted for one in demands()} == {"/f = 1": 6}
    world.pause(True)
    assert demands() == []


@pytest.mark.feature("Q26", "X1")
@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("KEY() = 'a' AND HEADER('source') = 'web'", True),
        ("OFFSET() > 5", False),
        ("/f = 1 AND TIMESTAMP_MS() > 5", False),
        ("TOPIC() = 'orders'", False),
        ("PARTITION() = 0", False),
        ("HEADER('lapse-ttl-ms') = '5'", False),
        ("HEADER('ce_expirytime') IS NULL", False),
    ],
)
def test_a_filter_that_may_say_something_else_of_the_message_elsewhere_asks_for_nothing(text: str, asks: bool) -> None:
    world = there()
    world.shard.subscribing.subscribe("inky", "me", 5, 1_000, text, world.now_ms, Step())
    assert [one.filter for one in world.shard.transfer_source.spare.demands()] == [text] * asks


@pytest.mark.feature("Q26", "X4")
def test_who_does_not_see_all_messages_moves_only_theirs_and_learns_nothing_of_filters() -> None:
    asked = Command(command="transfer", id="1", transfer="t", spare=True)
    assert with_row_filter(asked, "/f = 1").filter == "/f = 1"
    world = there()
    world.subscribe("inky", 5, text="/f = 1")
    commands, told = QueueCommands(world.shard, "orders"), []
    for row_filter in (None, "/f = 2"):
        step = Step()
        commands.handle(replace(asked, top_n=0), world.now_ms, step, row_filter)
        told.append(dict(step.answers[0].facts)["demands"])
    assert told == [(FilterDemand(filter="/f = 1", wanted=5),), ()]


@pytest.mark.feature("C84", "X7", "L12")
@pytest.mark.parametrize("fault", ["lifetime", "stops the worker"])
def test_the_letter_of_an_unconfirmed_record_says_so_whatever_else_is_wrong_with_it(fault: str) -> None:
    """Redrive leaves such a letter. Without the mark it could deliver the message at both deployments."""
    shard, step = QueueShard(QueueSettings(name="orders", expiration=ON, dead_letter_topic="dlq.orders")), Step()
    record = published(0, timestamp=1_000, transferred=("orders", "t1"), broken=fault == "lifetime")
    if fault == "lifetime":
        shard.arrive("orders", 0, [record], step)
    else:
        shard.set_aside("orders", 0, record, "stopped the worker", step)
    (removal,) = step.removals
    assert ("lapse-ttl-ms" if fault == "lifetime" else "stopped the worker") in removal.detail
    death = Death(
        entity="orders",
        bookmark=Bookmark("orders", 0, 0),
        reasons=removal.reasons,
        expired_at_ms=removal.at_ms,
        detail=removal.detail,
    )
    told = dict(headers(death, record.headers))
    assert told[header.UNCONFIRMED_TRANSFER] == b"orders/t1"
    assert removal.detail.encode() == told[header.DLQ_MESSAGE]


@pytest.mark.feature("C29", "X7")
def test_a_record_for_another_queue_that_stopped_the_worker_is_no_letter_of_this_one() -> None:
    shard, step = QueueShard(QueueSettings(name="orders", dead_letter_topic="dlq.orders")), Step()
    for record in (
        published(0, timestamp=1, transferred=("audit", "t1")),
        published(1, timestamp=1, redriven_for="audit"),
    ):
        shard.set_aside("orders", 0, record, "stopped the worker", step)
    assert not step.removals
    assert shard.arrive("orders", 0, [published(2, timestamp=1)], step)
    assert shard.depth()["available"] == 1
