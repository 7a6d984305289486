"""Groups that no subscription with room takes are not looked at with each delivery (Q14, Q25, C60)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

from lapse.core.expression import compile_filter, compile_value
from lapse.core.lifetime import Expiration
from lapse.core.queue.arrival.trait import TraitReader
from lapse.core.queue.groups import group_choice, turn_columns, waiting_groups
from lapse.core.queue.groups.available_messages import AvailableMessages
from lapse.core.queue.groups.group_choice import GroupChooser
from lapse.core.queue.groups.turn_columns import TurnColumns
from lapse.core.queue.groups.waiting_groups import WaitingGroups
from lapse.core.queue.rates.rate import Rate
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement.settlement import Claim
from support.suite.at_length import alike
from unit.core.queue.compared.small_shard import small
from unit.core.queue.world import World

GROUP = TraitReader(group=compile_value("/g"))
RANKED = TraitReader(group=compile_value("/g"), priority=compile_value("/p"))
ONE, YES = "/f = 1", "/b = 'yes'"
BARRED = TraitReader(group=compile_value("/g"), barrier=compile_filter(YES))


def world(*bodies: dict, **settings) -> World:
    one = World(QueueSettings(name="orders", dead_letter_topic="dlq.orders", lease_ms=100, **settings))
    publish(one, *bodies)
    return one


def publish(one: World, *bodies: dict, **said) -> None:
    for body in bodies:
        one.publish("orders", body=body, **said)
    one.read("orders")


def at(first: int, last: int | None = None) -> Claim:
    return Claim("orders", 0, first, first if last is None else last)


def got(deliveries, subscription: str) -> list[int]:
    return [one.bookmark[2] for one in deliveries.get(subscription, [])]


@contextmanager
def candidates() -> Iterator[list[int]]:
    """The groups of which a line is examined meanwhile."""
    seen: list[int] = []
    candidate = GroupChooser._candidate

    def noted(self: GroupChooser, entry, open_ones, now_ms: int):
        seen.append(entry[3])
        return candidate(self, entry, open_ones, now_ms)

    with mock.patch.object(GroupChooser, "_candidate", noted):
        yield seen


@contextmanager
def looks() -> Iterator[list[int]]:
    """The places of messages that are tried for a subscription meanwhile."""
    seen: list[int] = []
    fitting = GroupChooser._fitting

    def noted(self: GroupChooser, segment, slot: int, open_ones):
        seen.append(segment.base + slot)
        return fitting(self, segment, slot, open_ones)

    with mock.patch.object(GroupChooser, "_fitting", noted):
        yield seen


@pytest.mark.feature("Q14", "Q25", "C60")
@pytest.mark.parametrize("traits", [GROUP, RANKED])
@pytest.mark.parametrize("limit", alike(2, 1))
def test_groups_that_match_no_filter_are_looked_at_once(limit: int, traits: TraitReader) -> None:
    """With 100,000 groups each delivery took 3 to 4 s if the filter matched a few of them."""
    bodies = [{"g": n, "f": 0, "p": n % 3} for n in range(40)]
    one = world(*bodies, {"g": "x", "f": 1}, traits=traits, group_limit=limit)
    one.subscribe("inky", 20, text=ONE)
    assert got(one.deliver(), "inky") == [40]
    publish(one, {"g": "y", "f": 1})
    with looks() as seen:
        assert got(one.deliver(), "inky") == [41]
    assert len(seen) <= 4


@pytest.mark.feature("Q11", "Q14", "Q20", "C60")
def test_a_group_at_rest_stays_in_the_order_of_priority() -> None:
    one = world({"g": "x", "f": 0, "p": 5}, {"g": "x", "f": 1, "p": 3}, traits=RANKED)
    one.subscribe("inky", 20, text=ONE)
    assert got(one.deliver(), "inky") == []
    publish(one, {"g": "x", "f": 1, "p": 4}, {"g": "x", "f": 1, "p": 6})
    assert got(one.deliver(), "inky") == [3]
    one.settle("acknowledge", "inky", at(3))
    assert got(one.deliver(), "inky") == []
    with candidates() as seen:
        assert got(one.deliver(), "inky") == []
    assert not seen
    publish(one, {"g": "x", "f": 0, "b": "yes", "p": 7})
    assert got(one.deliver(), "inky") == []
    one.settle("expire", "inky", at(0))
    assert got(one.deliver(), "inky") == []
    one.subscribe("blinky", 1, text=YES)
    assert got(one.deliver(), "blinky") == [4]
    one.settle("acknowledge", "blinky", at(4))
    assert got(one.deliver(), "inky") == [2]
    one.settle("acknowledge", "inky", at(2))
    assert got(one.deliver(), "inky") == [1]


@pytest.mark.feature("Q12", "Q20", "Q25", "C60")
@pytest.mark.parametrize("limit", alike(2, 1))
@pytest.mark.parametrize("filtered", [False, True])
def test_groups_behind_a_barrier_are_looked_at_once(limit: int, filtered: bool) -> None:
    bodies = [{"g": "x", "f": 1}, {"g": 1, "f": 0}, {"b": "yes", "f": 1}, *[{"g": n, "f": 1} for n in range(40)]]
    one = world(*bodies, traits=BARRED, group_limit=limit)
    one.subscribe("inky", 100, text=ONE if filtered else "")
    assert got(one.deliver(), "inky") == ([0] if filtered else [0, 1])
    with candidates() as seen:
        assert one.deliver() == {}
    assert len(seen) <= 2
    if filtered:
        one.subscribe("blinky", 100)
        assert got(one.deliver(), "blinky") == [1]
    one.settle("acknowledge", "inky", at(0))
    assert one.deliver() == {}
    one.settle("acknowledge", "blinky" if filtered else "inky", at(1))
    sent = one.deliver()
    assert sorted(offset for name in sent for offset in got(sent, name) if offset > 2) == list(range(3, 43))


@pytest.mark.feature("Q14", "Q25", "C60")
@pytest.mark.parametrize("limit", alike(2, 1))
def test_groups_for_a_full_subscription_are_not_looked_at_for_another_one(limit: int) -> None:
    bodies = [{"g": n, "b": "yes"} for n in range(40)]
    one = world(*bodies, traits=GROUP, group_limit=limit)
    one.subscribe("blinky", 1, text=YES)
    one.subscribe("inky", 20, text=ONE)
    assert got(one.deliver(), "blinky") == [0]
    publish(one, {"g": "x", "f": 1})
    with looks() as seen:
        assert got(one.deliver(), "inky") == [40]
    assert len(seen) <= 4
    one.settle("acknowledge", "blinky", at(0))
    with looks() as seen:
        assert got(one.deliver(), "blinky") == [1]
    assert len(seen) <= 4


@pytest.mark.feature("Q20", "Q14")
@pytest.mark.parametrize("how", ["settled", "expired", "expired and still there", "another filter", "earlier"])
def test_a_group_goes_on_as_soon_as_the_message_that_held_it_back_does_not(how: str) -> None:
    one = world(traits=GROUP, expiration=Expiration(True))
    publish(
        one, {"g": "x", "f": 1 if how == "earlier" else 0, "b": "yes"}, **({"ttl_ms": 50} if "expired" in how else {})
    )
    publish(one, {"g": "x", "f": 1})
    publish(one, {"g": "y", "f": 1})
    one.subscribe("inky", 20, text=ONE)
    assert got(one.deliver(), "inky") == ([0, 2] if how == "earlier" else [2])
    if how == "settled":
        one.settle("expire", "inky", at(0))
    elif how == "expired":
        one.advance(50)
    elif how == "expired and still there":
        one.now_ms += 50
    elif how == "another filter":
        one.subscribe("blinky", 20, text=YES)
        assert got(one.deliver(), "blinky") == [0]
        one.settle("acknowledge", "blinky", at(0))
    else:
        one.settle("cancel", "inky", at(0))
        assert got(one.deliver(), "inky") == [0]
        one.settle("acknowledge", "inky", at(0))
    assert got(one.deliver(), "inky") == [1]


@pytest.mark.feature("Q14", "Q25", "C60")
@pytest.mark.parametrize("limit", alike(2, 1))
def test_a_search_through_many_groups_takes_several_turns(limit: int) -> None:
    one = world(*[{"g": n, "f": 0} for n in range(40)], {"g": "x", "f": 1}, traits=GROUP, group_limit=limit)
    one.subscribe("inky", 20, text=ONE)
    with mock.patch.object(group_choice, "LOOKED_AT_ONCE", 6):
        turns = 0
        while True:
            with looks() as seen:
                more = one.shard.deliver(one.now_ms, one.step)
            one.judge(one.shard.unjudged)
            assert len(seen) <= 7
            turns += 1
            if not more:
                break
    assert turns >= 6
    assert [offset for sent in one.step.deliveries for offset in sent.messages.offsets.tolist()] == [40]


@pytest.mark.feature("Q25", "C60")
@pytest.mark.parametrize(
    ("traits", "module", "waiting"), [(GROUP, turn_columns, TurnColumns), (RANKED, waiting_groups, WaitingGroups)]
)
def test_the_groups_are_sorted_in_several_turns(traits: TraitReader, module, waiting: type[AvailableMessages]) -> None:
    """The first delivery sorted 100,000 groups in one turn, which took 0.7 s."""
    with small(5, at_once=1_000), mock.patch.object(module, "_LOADED_AT_ONCE", 1):
        one = world(*[{"g": n} for n in range(20)], traits=traits)
        one.subscribe("inky", 100)
        entered: list[int] = []
        enter = waiting._enter_available

        def counted(self: AvailableMessages, segment, slots) -> int:
            entered.append(len(slots))
            return enter(self, segment, slots)

        with mock.patch.object(waiting, "_enter_available", counted):
            assert one.shard.deliver(one.now_ms, one.step)
        assert entered == [5]
        publish(one, {"g": "x"}, {"g": 3})
        assert got(one.deliver(), "inky") == list(range(21))


@pytest.mark.feature("Q14", "Q25")
@pytest.mark.parametrize("seed", alike(*range(12)))
def test_rests_change_no_delivery(seed: int) -> None:
    """Beside the oracle: filters, subscriptions and messages come and go, over small segments and short turns."""
    chance = random.Random(seed)
    with small(5, at_once=chance.choice((2, 1_000))):
        traits = TraitReader(
            group=compile_value("/g"),
            priority=compile_value("/p") if seed % 2 else None,
            barrier=compile_filter(YES) if seed % 3 == 0 else None,
        )
        yes = 0.05 if seed % 3 == 0 else 0.5
        rates = {"group_rate": Rate(2, 50)} if seed % 4 < 2 else {}
        limit = chance.choice((1, 1, 2))
        one = world(traits=traits, group_limit=limit, expiration=Expiration(True), **rates)
        there: dict[str, int] = {}
        held: list[int] = []
        for _ in range(60):
            name = chance.choice(("inky", "blinky", "clyde"))
            match chance.randrange(6):
                case 0 | 1:
                    lifetime = {"ttl_ms": chance.choice((20, 60))} if chance.random() < 0.3 else {}
                    publish(
                        one,
                        *[
                            {
                                "g": chance.choice((*"abcdefg", None)),
                                "f": chance.randrange(3),
                                "b": "yes" if chance.random() < yes else "no",
                                "p": chance.choice((None, 1, 2, 3)),
                            }
                            for _ in range(5)
                        ],
                        **lifetime,
                    )
                case 2 if name not in there:
                    there[name] = chance.choice((1, 3, 20))
                    one.subscribe(name, there[name], text=chance.choice((ONE, "/f > 0", YES, "")))
                case 2 if chance.random() < 0.3:
                    del there[name]
                    one.unsubscribe(name)
                case 3 if held:
                    chance.shuffle(held)
                    offset = held.pop()
                    holder = one.oracle.messages.get(("orders", 0, offset))
                    if holder is not None and holder.state == "leased":
                        one.settle(chance.choice(("acknowledge", "cancel")), holder.holder, at(offset))
                case 4:
                    one.advance(chance.choice((1, 20, 120)))
                case 5:
                    one.now_ms += chance.choice((1, 10))
            held += [sent.bookmark[2] for share in one.deliver().values() for sent in share]
            counted = one.shard.held_up(one.now_ms)
            with mock.patch.object(WaitingGroups, "all_lines", return_value=None):
                assert one.shard.held_up(one.now_ms) == counted, "the same as from all messages"
