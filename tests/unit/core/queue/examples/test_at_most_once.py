"""At-most-once by name (Q6, C18).

Each also runs beside the oracle, which `World` compares.
"""

import pytest

from lapse.core.queue.settings import Fairness, Semantics
from unit.core.queue.examples.messages import at, got, with_messages

pytestmark = pytest.mark.usefixtures("each_room")


@pytest.mark.feature("Q6", "C18")
@pytest.mark.parametrize("action", ["acknowledge", "cancel", "expire"])
def test_at_most_once_any_settlement_frees_the_place_only(action: str) -> None:
    one = with_messages(2, semantics=Semantics.AT_MOST_ONCE, fairness=Fairness.ROUND_ROBIN, max_cancels=1)
    one.subscribe("inky")
    assert got(one.deliver(), "inky") == [0]
    assert one.deliver() == {}
    assert one.settle(action, "inky", at(0)) == ["settled"]
    assert one._last_gone == []
    assert got(one.deliver(), "inky") == [1]
    assert one.settle(action, "inky", at(0)) == ["already_settled"]


@pytest.mark.feature("Q6")
def test_at_most_once_never_delivers_twice() -> None:
    one = with_messages(3, semantics=Semantics.AT_MOST_ONCE, fairness=Fairness.ROUND_ROBIN)
    one.subscribe("inky", 2)
    assert got(one.deliver(), "inky") == [0, 1]
    one.commit()
    one.crash()
    one.advance(10_000)
    one.unsubscribe("inky")
    one.subscribe("blinky", 5)
    assert got(one.deliver(), "blinky") == [2]


@pytest.mark.feature("C79", "Q15")
def test_what_was_sent_at_most_once_is_not_the_oldest_message_of_the_queue() -> None:
    one = with_messages(3, semantics=Semantics.AT_MOST_ONCE, fairness=Fairness.ROUND_ROBIN)
    one.subscribe("inky", 2)
    assert got(one.deliver(), "inky") == [0, 1]
    assert one.shard.oldest(one.now_ms) == 2
    one.settle("acknowledge", "inky", at(0))
    assert got(one.deliver(), "inky") == [2]
    assert one.shard.oldest(one.now_ms) is None, "the depth is 0, too"
