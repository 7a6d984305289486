"""Messages handed over to another deployment in two stages: never delivered on both sides, whatever is begun again."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.core.expression import compile_filter, compile_value
from lapse.core.queue.arrival.trait import TraitReader
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement.settlement import Claim
from lapse.core.queue.step import Step
from lapse.core.queue.transfer.transfers import HandOver
from unit.core.queue.two_queues import ALL, ON, fill, here, states, there
from unit.core.queue.world import World


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
        held = [one.offset for one in source.shard.transfer_source.messages("t")]
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
    assert [one.offset for one in world.shard.transfer_source.messages("t")] == [1]
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
def test_what_another_transfer_has_put_here_is_not_reported_as_more_to_hold() -> None:
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
    (held,) = source.shard.transfer_source.messages("t")
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
@pytest.mark.slow
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
            assert len(list(world.shard.transfer_source.messages(name))) <= most
    held = {name: [one.offset for one in world.shard.transfer_source.messages(name)] for name in ("t", "u")}
    for _ in range(3):  # what the first epoch journals is written anew by the second
        world.commit()
        world.crash()
        assert {name: [one.offset for one in world.shard.transfer_source.messages(name)] for name in ("t", "u")} == held
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


@pytest.mark.feature("Q21", "D2", "C73")
def test_what_is_purged_before_its_instant_keeps_the_counts_of_where_it_was() -> None:
    world = there(dead_letter_topic="dlq.there")
    world.publish("orders", enqueue_at_ms=50_000, transferred=("there", "t"), counts=(3, 2))
    world.publish("orders", enqueue_at_ms=50_000)
    world.read("orders")
    world.accept("t", ALL)
    step = Step()
    world.shard.purge(world.now_ms, step)
    left = [removal.messages for removal in step.removals]
    assert [int(count) for one in left for count in one.deliveries] == [3, 0]
    assert [int(count) for one in left if one.cancels is not None for count in one.cancels] == [2, 0]
