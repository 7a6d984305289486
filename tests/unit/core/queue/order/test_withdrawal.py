"""Scheduled messages that are withdrawn, by name (L5, L14).

Each also runs beside the oracle, which `World` compares.
"""

import pytest

from unit.core.queue.order.bodies import ON, at, world

pytestmark = pytest.mark.usefixtures("each_room")


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
