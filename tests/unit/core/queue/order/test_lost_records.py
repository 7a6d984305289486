"""Records that Kafka lost, references, caps and long ranges, by name.

Each also runs beside the oracle, which `World` compares.
"""

import pytest

from lapse.core.queue.arrival.trait import TraitReader
from lapse.core.queue.schedule.scheduled import Scheduled
from lapse.core.queue.settings import Leasing, QueueSettings
from lapse.core.queue.settlement.settlement import Claim, SettleAction
from lapse.core.queue.step import Step
from unit.core.queue.order.bodies import BARRIER, GROUP, ONCE, STOP, at, got, sent, world
from unit.core.queue.world import World

pytestmark = pytest.mark.usefixtures("each_room")


@pytest.mark.feature("C40", "L14", "C79", "C80")
@pytest.mark.parametrize("once", [False, True])
def test_a_lost_record_leaves_and_frees_place_group_barrier_and_depth(once: bool) -> None:
    traits = TraitReader(barrier=BARRIER.barrier, group=GROUP.group)
    one = world({"g": "x"}, STOP, {"g": "x"}, traits=traits, **(ONCE if once else {}))
    one.subscribe("inky")
    one.deliver()
    one.truncate(("orders", 0, 0), handed_out=True)
    assert [(out.reasons, out.letter) for out in one._last_gone] == [(("log_truncated",), True)]
    assert one._last_gone[0].deliveries == 0  # nobody saw it
    assert sent(one.deliver(), "inky") == [(1, True), (2, False)]


@pytest.mark.feature("X2")
def test_a_delivery_goes_by_reference_where_the_subscription_asks_for_it_but_a_barrier_never() -> None:
    one = world({}, traits=BARRIER)
    step = one._open()
    one.shard.subscribing.subscribe("inky", "", 5, 1 << 40, "", 1_000, step, payload="reference")
    one.shard.deliver(1_000, step)
    one.shard.settle(SettleAction.ACKNOWLEDGE, "inky", [at(0)], 1_000, step)
    one.shard.arrive("orders", 0, [*one.topics["orders", 0], publish_only(one, STOP)], step)
    one.shard.deliver(1_000, step)
    assert [(d.payload, d.barrier) for d in step.deliveries] == [("reference", False), ("inline", True)]


def publish_only(one: World, body: dict):
    one.publish("orders", body=body)
    return one.topics["orders", 0][-1]


@pytest.mark.feature("Q3")
def test_a_changed_cap_reaches_the_subscriptions_that_are_there() -> None:
    one = world(*[{}] * 9)
    one.subscribe("inky", 5)
    one.commit()
    one.crash(QueueSettings(name="orders", max_backlog=2))
    assert got(one.deliver(), "inky") == [0, 1]
    one.commit()
    one.crash(QueueSettings(name="orders", max_backlog=3))
    assert got(one.deliver(), "inky") == [2]
    one.commit()
    one.crash(QueueSettings(name="orders"))
    assert got(one.deliver(), "inky") == [3, 4]


@pytest.mark.feature("Q6", "Q8")
def test_at_most_once_under_strict_only_the_holder_frees_its_place() -> None:
    one = world({}, {}, leasing=Leasing.STRICT, **ONCE)
    one.subscribe("inky")
    one.deliver()
    for action in ("acknowledge", "cancel", "expire"):
        assert one.settle(action, "blinky", at(0)) == ["not_holder"]
    assert one.deliver() == {}
    assert one.settle("acknowledge", "inky", at(0, token=7)) == ["settled"]
    assert got(one.deliver(), "inky") == [1]


@pytest.mark.feature("C16")
def test_many_scheduled_messages_cost_a_settlement_nothing() -> None:
    one = world()
    scheduled = one.shard.state.scheduled
    source = one.shard.state.sources.number("orders", 0)
    for offset in range(200):
        scheduled.add(source, offset, Scheduled(5_000, 1 << 62))
    for offset in range(0, 200, 2):
        scheduled.discard(source, offset)
    assert list(scheduled.between(source, 10, 15)) == [11, 13, 15]
    for offset in range(1, 190, 2):
        scheduled.discard(source, offset)
    assert sum(len(block.offsets) for block in scheduled._blocks[source].values()) < 80
    assert list(scheduled.between(source, 0, 500)) == [191, 193, 195, 197, 199]


@pytest.mark.feature("Q13", "X7")
def test_one_range_acknowledges_a_bounded_number_of_messages_beyond_the_target_depth() -> None:
    one = world({}, target_depth=1)
    shard, step = one.shard, Step()
    shard.note_end("orders", 0, 1 << 40)
    outcomes = shard.settle(SettleAction.ACKNOWLEDGE, "inky", [Claim("orders", 0, 1, (1 << 40) - 1)], 1_000, step)
    assert [(one.first, one.last, str(one.result)) for one in outcomes] == [
        (1, 10_000, "settled"),
        (10_001, (1 << 40) - 1, "unknown"),
    ]
    assert len(shard.state.remembered) == 10_000


@pytest.mark.feature("Q13", "C16")
def test_a_range_ahead_of_the_depth_says_of_each_offset_once_whether_it_was_remembered_before() -> None:
    one = world(*[{} for _ in range(8)], target_depth=1)
    assert one.settle("acknowledge", "inky", at(3, 4)) == ["settled"] * 2
    results = ["settled", "settled", "already_settled", "already_settled", "settled"]
    assert one.settle("acknowledge", "inky", at(1, 5)) == results
    assert one.settle("acknowledge", "inky", at(4, 6)) == ["already_settled", "already_settled", "settled"]
