"""Priority by name (Q11).

Each also runs beside the oracle, which `World` compares.
"""

import pytest

from lapse.core.queue.arrival.trait import TraitReader
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement.settlement import SettleAction
from lapse.core.queue.step import Step
from unit.core.queue.compared.small_shard import small
from unit.core.queue.order.bodies import BARRIER, GROUP, ON, PRIORITY, STOP, at, got, publish, world

pytestmark = pytest.mark.usefixtures("each_room")


@pytest.mark.feature("Q11", "C31")
def test_priority_is_unsigned_64_bits_and_everything_else_is_lowest_and_oldest_first() -> None:
    ranks = [None, "9", 5, 5.9, 2**64 - 1, 2**64 - 2, 2**63, 0, -1, 2**64, True, float("nan"), 5]
    one = world(*({"p": rank} for rank in ranks), {}, traits=PRIORITY)
    one.subscribe("inky", 20)
    assert got(one.deliver(), "inky") == [4, 5, 6, 2, 3, 12, 7, 0, 1, 8, 9, 10, 11, 13]


@pytest.mark.feature("Q11")
def test_priority_holds_over_segments_returns_and_crashes() -> None:
    with small(size=3):
        one = world(*({"p": number * 7 % 10} for number in range(10)), traits=PRIORITY)
        one.subscribe("inky", 2)
        assert [n * 7 % 10 for n in got(one.deliver(), "inky")] == [9, 8]
        one.settle("cancel", "inky", at(7))
        assert [n * 7 % 10 for n in got(one.deliver(), "inky")] == [9]
        one.commit()
        for _ in range(10):
            one.heard("inky")
            one.commit()
        one.crash()
        one.subscribe("blinky", 10)
        assert [n * 7 % 10 for n in got(one.deliver(), "blinky")] == [7, 6, 5, 4, 3, 2, 1, 0]


@pytest.mark.feature("Q11", "L10")
def test_an_expired_message_of_high_priority_is_not_delivered() -> None:
    with small(size=2):
        one = world({"p": 9}, {"p": 8}, said={"ttl_ms": 50}, traits=PRIORITY, expiration=ON)
        publish(one, {"p": 1}, {"p": 2}, {"p": 3})
        one.now_ms += 50
        one.subscribe("inky", 2)
        assert got(one.deliver(), "inky") == [4, 3]


@pytest.mark.feature("Q11", "L10")
def test_what_stands_behind_an_expired_message_of_high_priority_comes_in_its_turn() -> None:
    with small(size=2):
        one = world({"p": 9}, traits=PRIORITY, expiration=ON, said={"ttl_ms": 50})
        publish(one, {"p": 1}, {"p": 5}, {"p": 4})
        one.subscribe("inky", 1)
        one.now_ms += 50
        assert got(one.deliver(), "inky") == [2]


@pytest.mark.feature("L10", "C2", "C15")
@pytest.mark.parametrize("traits", [TraitReader(), PRIORITY])
def test_the_first_instant_of_all_counts_like_any_other(traits: TraitReader) -> None:
    one = world({}, traits=traits, expiration=ON, said={"timestamp": -1, "expires_at_ms": 0})
    one.now_ms = 0
    one.subscribe("inky", 1)
    assert one.deliver() == {}
    assert one.settle("acknowledge", "inky", at(0)) == ["time_limit"]


@pytest.mark.feature("Q11", "C37")
def test_a_segment_that_leaves_at_once_is_forgotten_by_priority() -> None:
    with small(size=2):
        one = world({"p": 9}, {"p": 8}, traits=PRIORITY)
        one.subscribe("inky", 0)
        one.deliver()
        one.subscribe("inky", 1, text="/f = 1")
        one.deliver()
        one.purge()
        publish(one, {"p": 1, "f": 1})
        assert got(one.deliver(), "inky") == [2]


@pytest.mark.feature("Q11", "Q14")
def test_a_filter_gets_the_highest_that_matches() -> None:
    one = world({"p": 9, "f": 0}, {"p": 1, "f": 1}, {"p": 5, "f": 1}, traits=PRIORITY)
    one.subscribe("inky", 1, text="/f = 1")
    assert got(one.deliver(), "inky") == [2]


@pytest.mark.slow
@pytest.mark.feature("Q11")
def test_tops_do_not_pile_up() -> None:
    with small(size=500):
        one = world({"p": 1}, traits=PRIORITY)
        one.subscribe("inky", 1)
        step = Step()
        for number in range(1, 400):
            record = one.topics["orders", 0][0]
            records = [type(record)(offset=number, timestamp=1_000, value=b'{"p": 9}')]
            one.shard.arrive("orders", 0, records, step)
            one.shard.deliver(1_000, step)
            claims = [at(int(d.messages.offsets[0])) for d in step.deliveries]
            one.shard.settle(SettleAction.ACKNOWLEDGE, "inky", claims, 1_000, step)
            step.deliveries.clear()
        assert len(one.shard.state.index.tops._heap) < 100
        assert list(one.shard.state.index.tops.by_key()) == [0]
        assert not one.shard.state.index.tops.stale


@pytest.mark.feature("Q11", "Q14")
def test_a_filter_gets_the_best_of_all_segments_in_order() -> None:
    with small(size=2):
        one = world(traits=PRIORITY)
        one.subscribe("inky", 8, text="/f = 1")
        publish(one, *({"p": rank, "f": 1} for rank in (9, 1, 5, 2, 3, 3, 0, 0)))
        assert got(one.deliver(), "inky") == [0, 2, 4, 5, 3, 1, 6, 7]


@pytest.mark.feature("Q11", "L9")
def test_by_priority_too_each_delivery_says_its_own_deadline() -> None:
    with small(size=2):
        one = world(traits=PRIORITY, expiration=ON)
        for rank in range(4):
            publish(one, {"p": rank}, **({} if rank == 2 else {"ttl_ms": 1_000 + rank}))
        one.subscribe("inky", 4)
        sent = one.deliver()["inky"]
        assert [(m.bookmark[2], m.deadline_ms) for m in sent] == [(3, 2_003), (2, None), (1, 2_001), (0, 2_000)]


@pytest.mark.feature("Q11", "Q12", "Q20")
def test_a_trait_counts_while_the_queue_asks_for_it() -> None:
    body = [{"p": 1, **STOP, "g": "x"}, {"p": 2, "g": "x"}, {"p": 3, "g": "x"}]
    everything = TraitReader(PRIORITY.priority, BARRIER.barrier, GROUP.group)
    one = world(*body, traits=everything)
    one.commit()
    one.crash(QueueSettings(name="orders", lease_ms=100))
    one.subscribe("inky", 2)
    assert got(one.deliver(), "inky") == [0, 1]
    one.settle("cancel", "inky", at(0, 1))
    one.commit()
    one.crash(QueueSettings(name="orders", lease_ms=100, traits=everything))
    assert [(sent.bookmark[2], sent.barrier) for sent in one.deliver()["inky"]] == [(0, True), (2, False)]


@pytest.mark.feature("Q12", "L5")
def test_a_scheduled_message_has_the_traits_that_the_queue_asks_for_when_it_enters() -> None:
    both = TraitReader(PRIORITY.priority, BARRIER.barrier, None)
    one = world({"p": 1, **STOP}, said={"enqueue_at_ms": 1_500}, traits=both)
    one.commit()
    one.crash(QueueSettings(name="orders", lease_ms=100, traits=PRIORITY))
    one.advance(500)
    one.commit()
    one.crash(QueueSettings(name="orders", lease_ms=100, traits=both))
    one.subscribe("inky")
    assert [(sent.bookmark[2], sent.barrier) for sent in one.deliver()["inky"]] == [(0, False)]
