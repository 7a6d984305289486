"""The sources' examples of limits and dead letters, by name (Q9).

Each also runs beside the oracle, which `World` compares.
"""

import pytest

from lapse.core.queue.settings import QueueSettings
from unit.core.queue.examples.messages import ON, at, got, with_messages

pytestmark = pytest.mark.usefixtures("each_room")


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
