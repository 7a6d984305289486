"""Groups by name (Q20, Q25).

Each also runs beside the oracle, which `World` compares.
"""

import json
from dataclasses import replace
from hashlib import blake2b
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.queue.arrival.trait import TraitReader, group_hash
from lapse.core.queue.groups.waiting_groups import WaitingGroups
from unit.core.queue.compared.small_shard import small
from unit.core.queue.order.bodies import GROUP, ONCE, PRIORITY, at, got, publish, world
from unit.core.queue.world import World

pytestmark = pytest.mark.usefixtures("each_room")


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


@pytest.mark.feature("Q20")
@given(st.text())
def test_the_hash_of_a_text_is_that_of_its_json(text: str) -> None:
    """Journals hold it, so it stays the same."""
    digest = blake2b(json.dumps(text).encode(), digest_size=8).digest()
    assert group_hash(text) == int.from_bytes(digest, "big", signed=True)
