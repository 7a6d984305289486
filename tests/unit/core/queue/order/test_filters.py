"""What a subscription's filter takes, by name (Q14).

Each also runs beside the oracle, which `World` compares.
"""

import pytest

from lapse.core.queue.settings import Fairness
from lapse.core.queue.step import Step
from unit.core.queue.compared.small_shard import small
from unit.core.queue.order.bodies import STOP, at, depth, got, publish, world

pytestmark = pytest.mark.usefixtures("each_room")


@pytest.mark.feature("Q14")
def test_a_subscription_gets_the_oldest_that_matches_and_others_the_rest() -> None:
    one = world({"f": 0}, {"f": 1}, {}, {"f": 2})
    one.subscribe("inky", 1, text="/f > 0")
    one.subscribe("blinky", 4)
    assert got(one.deliver(), "inky") == [1]


@pytest.mark.feature("Q14")
def test_what_nobody_takes_stays_and_holds_nobody_up() -> None:
    one = world({"f": 0}, {"f": 0}, {"f": 1})
    one.subscribe("inky", 5, text="/f = 1")
    assert got(one.deliver(), "inky") == [2]
    assert depth(one) == 3
    one.subscribe("inky", 5)
    assert got(one.deliver(), "inky") == [0, 1]


@pytest.mark.feature("Q14")
def test_a_message_for_a_subscription_that_is_full_now_does_not_hold_up_the_others() -> None:
    one = world({"f": 1}, {"f": 1}, STOP)
    one.subscribe("inky", 1, text="/f = 1")
    one.subscribe("blinky", 1, text="/b = 'yes'")
    assert got(one.deliver(), "blinky") == [2]


@pytest.mark.feature("Q14", "Q7")
def test_with_filters_too_the_least_used_subscription_comes_first_whatever_it_had_before() -> None:
    one = world({"f": 1}, fairness=Fairness.PROPORTIONAL)
    one.subscribe("inky", 2, text="/f = 1")
    one.deliver()
    one.subscribe("blinky", 4, text="/f = 1")
    publish(one, *({"f": 1} for _ in range(4)))
    deliveries = one.deliver()
    assert (got(deliveries, "inky"), got(deliveries, "blinky")) == ([3], [1, 2, 4])


@pytest.mark.feature("Q14", "Q15")
def test_a_filter_is_forgotten_with_its_last_use() -> None:
    one = world({"f": 1}, {"f": 0})
    one.subscribe("inky", 1, text="/f = 1")
    for text in ("/f > 0", "/f = 1"):
        assert len(one.peek(text)) == 1
        assert one.shard.matching.active
    one.unsubscribe("inky")
    assert not one.shard.matching.active


@pytest.mark.feature("Q14", "Q16")
def test_after_a_crash_payloads_are_judged_before_anything_is_delivered() -> None:
    with small(size=3):
        one = world(*({"f": number % 2} for number in range(10)))
        one.subscribe("inky", 10, text="/f = 1")
        one.commit()
        one.crash()
        step = one._open()
        assert one.shard.deliver(one.now_ms, step)
        assert one.shard.unjudged
        assert step.deliveries == []
        assert got(one.deliver(), "inky") == [1, 3, 5, 7, 9]


@pytest.mark.feature("Q14", "C40")
def test_a_message_whose_record_is_gone_matches_nothing_and_does_not_hold_up_the_others() -> None:
    one = world({"f": 1}, {"f": 1})
    one.commit()
    one.crash()
    one.shard.subscribing.subscribe("inky", "", 5, 1 << 40, "/f = 1", one.now_ms, one._open())
    while one.shard.deliver(one.now_ms, one.step) and one.shard.unjudged:
        one.shard.judge([(p, "orders", 0, None if p == 0 else one.topics["orders", 0][p]) for p in one.shard.unjudged])
    assert [d.messages.offsets.tolist() for d in one.step.deliveries] == [[1]]


@pytest.mark.feature("Q14")
def test_what_arrives_under_a_filter_is_judged_from_the_payload_that_came_with_it() -> None:
    one = world()
    one.subscribe("inky", 4, text="/f = 1")
    publish(one, {"f": 1}, {"f": 0}, {"f": 1})
    step = Step()
    one.shard.deliver(one.now_ms, step)
    assert not one.shard.unjudged, "a payload is read back that was there a moment ago"
    assert [offset for sent in step.deliveries for offset in sent.messages.offsets] == [0, 2]


@pytest.mark.feature("Q14", "X1")
@pytest.mark.parametrize(
    "text",
    [
        "TOPIC() = 'orders'",
        "PARTITION() = 0",
        "OFFSET() = 1",
        "KEY() = 'k'",
        "HEADER('trace') = '2'",
        "TIMESTAMP_MS() > 0",
    ],
)
def test_a_filter_may_ask_for_all_that_a_record_says(text: str) -> None:
    one = world()
    one.publish("direct")
    one.publish("orders")
    one.publish("orders", key=b"k")
    one.topics["orders", 0][1].headers = [("trace", b"1"), ("trace", b"2")]
    for topic in ("orders", "direct"):
        one.read(topic)
    one.shard.subscribing.subscribe("inky", "", 3, 100_000, text, one.now_ms, one.step)
    while one.shard.deliver(one.now_ms, one.step):
        one.judge(one.shard.unjudged)
    sent = [(s.messages.topic, offset) for s in one.step.deliveries for offset in s.messages.offsets.tolist()]
    everywhere = [("orders", 0), ("orders", 1), ("direct", 0)]
    assert sent == {"TOPIC": everywhere[:2], "PARTI": everywhere, "TIMES": everywhere}.get(text[:5], [("orders", 1)])


@pytest.mark.feature("Q14", "X7")
def test_a_subscription_whose_filter_cannot_be_compiled_leaves_no_trace() -> None:
    one = world({"f": 1})
    one.subscribe("inky", 1, text="/f = 1")
    step = Step()
    for name in ("inky", "blinky"):
        with pytest.raises(ValueError, match="column"):
            one.shard.subscribing.subscribe(name, "", 1, 1_000, "/f = = 1", one.now_ms, step)
    assert step == Step()
    one.check()
    assert got(one.deliver(), "inky") == [0]


@pytest.mark.feature("Q14")
def test_what_is_known_of_a_segment_goes_with_it() -> None:
    with small(size=3):
        one = world()
        one.subscribe("inky", 3, text="/f = 1")
        for _ in range(5):
            publish(one, {"f": 1}, {"f": 1}, {"f": 1})
            one.deliver()
            one.settle("acknowledge", "inky", at(0, 100))
            one.commit()
        (columns,) = [columns for _, columns in one.shard.matching._filters.values()]
        assert columns == {}
