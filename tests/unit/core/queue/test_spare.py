"""What a deployment has to spare for another one, and what its own subscriptions want (Q26, C73, C74)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lapse.core.expression import compile_filter, compile_value
from lapse.core.queue.arrival.trait import TraitReader
from lapse.core.queue.command import QueueCommands
from lapse.core.queue.inquiry.matching import MOST_TRAVELLING
from lapse.core.queue.inquiry.row_filter import with_row_filter
from lapse.core.queue.settlement.settlement import Claim
from lapse.core.queue.step import Step
from lapse.protocol.answer import FilterDemand
from lapse.protocol.command import Command
from unit.core.queue.two_queues import fill, here, states, there
from unit.core.queue.world import World


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
    commands, answered = QueueCommands(world.shard, "orders"), []
    for row_filter in (None, "/f = 2"):
        step = Step()
        commands.handle(replace(asked, top_n=0), world.now_ms, step, row_filter)
        answered.append(dict(step.answers[0].facts)["demands"])
    assert answered == [(FilterDemand(filter="/f = 1", wanted=5),), ()]
