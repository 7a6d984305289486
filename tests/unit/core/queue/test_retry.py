"""How long messages wait before their next delivery (Q24, C68, C69)."""

import numpy as np
import pytest

from lapse.core.lifetime import NEVER, Expiration
from lapse.core.queue.change import ChangeKind
from lapse.core.queue.delivery.retry import Cause, RetryRule, delay_text, wait_ends_ms
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement.settlement import Claim
from lapse.core.queue.step import Step
from lapse.core.retry_delay import UNREADABLE, UNSTATED, stated_ms
from unit.core.queue.world import World

DAY_MS = 86_400_000


def waits_ms(rule: RetryRule, counts: list[int], stated: list[int] | None = None) -> list[int]:
    column = None if stated is None else np.array(stated, np.int64)
    offsets = np.arange(len(counts), dtype=np.int64)
    return rule.waits_ms("orders", 0, offsets, np.array(counts, np.uint32), column).tolist()


@pytest.mark.feature("C68")
@pytest.mark.parametrize(
    ("rule", "expected_ms"),
    [
        (RetryRule(), [0, 0, 0, 0]),
        (RetryRule(10_000), [10_000, 10_000, 10_000, 10_000]),
        (RetryRule(10_000, 6.0, 600_000), [10_000, 60_000, 360_000, 600_000]),
        (RetryRule(1_000, 1.1), [1_000, 1_100, 1_210, 1_331]),
        (RetryRule(3, 1.5, 7), [3, 4, 7, 7]),
        (RetryRule(1_000, 1_000.0), [1_000, 1_000_000, DAY_MS, DAY_MS]),
    ],
)
def test_the_wait_grows_to_its_limit(rule: RetryRule, expected_ms: list[int]) -> None:
    assert waits_ms(rule, [1, 2, 3, 4]) == expected_ms


@pytest.mark.feature("C68")
def test_a_message_that_was_delivered_very_often_waits_as_long_as_may_be() -> None:
    assert waits_ms(RetryRule(1_000, 2.0), [60, 1_100, 4_000_000_000]) == [DAY_MS] * 3
    assert waits_ms(RetryRule(0, 2.0), [4_000_000_000]) == [0]


@pytest.mark.feature("C68")
def test_the_spread_is_even_within_its_bounds_and_no_chance() -> None:
    rule, counts = RetryRule(10_000, 1.0, 11_000, 0.2), [1] * 10_000
    found = np.array(waits_ms(rule, counts))
    assert found.tolist() == waits_ms(rule, counts)
    assert found.min() >= 8_000
    assert found.max() == 11_000  # cut again
    for low in range(8_000, 11_000, 500):
        assert 1_100 < np.count_nonzero((found >= low) & (found < low + 500)) < 1_400
    assert waits_ms(rule, [2]) != waits_ms(rule, [1])


@pytest.mark.feature("C69")
def test_the_header_stands_for_the_delay() -> None:
    rule = RetryRule(1_000, 2.0, 5_000)
    assert waits_ms(rule, [3] * 4, [UNSTATED, 0, 700, UNREADABLE]) == [4_000, 0, 2_800, 4_000]
    assert waits_ms(RetryRule(), [3, 1], [700, 10**15 - 1]) == [700, DAY_MS]


@pytest.mark.feature("C69", "C54")
@pytest.mark.parametrize(
    ("values", "stated"),
    [
        ([], UNSTATED),
        ([b"0"], 0),
        ([b"1500"], 1_500),
        ([b"5", b"5"], 5),
        ([b"9" * 15], 10**15 - 1),
        ([b"5", b"6"], UNREADABLE),
        ([b"9" * 16], UNREADABLE),
        ([None], UNREADABLE),
        ([b""], UNREADABLE),
        ([b"5\n"], UNREADABLE),
        (["٥".encode()], UNREADABLE),
    ],
)
def test_what_the_header_says(values: list[bytes | None], stated: int) -> None:
    headers: list[tuple[str, bytes | None]] = [("lapse-retry-delay-ms", value) for value in values]
    assert stated_ms(headers) == stated
    assert stated_ms([*headers, ("__dlq.errors.topic", b"orders")]) == UNSTATED


def test_an_instant_is_within_64_bits_and_reported_as_a_date() -> None:
    assert wait_ends_ms(np.array([5, NEVER - 1]), np.array([7, 7])).tolist() == [12, NEVER]
    assert delay_text(1_700_000_000_123, 1_700_000_000_123) == "delayed until 2023-11-14T22:13:20.123Z"
    assert delay_text(0, NEVER).endswith(f"the last until {NEVER} ms since the epoch")


@pytest.mark.feature("Q24", "C69", "Q9")
def test_lost_and_lapsed_messages_wait_over_a_crash_and_leave_at_their_limit() -> None:
    retry = RetryRule(60, 2.0, 1_000, 0.5, frozenset({Cause.LEASE, Cause.LOST}))
    world = World(
        QueueSettings(name="orders", expiration=Expiration(True), lease_ms=100, retry=retry, max_deliveries=3)
    )
    world.publish("orders")
    world.publish("orders", retry=b"400", enqueue_at_ms=1_020)
    world.read("orders")
    world.commit()
    world.crash()  # what a scheduled message states is in the journal as well
    world.advance(20)
    world.subscribe("inky", 2, 70)
    world.deliver()
    world.advance(70)  # not heard of for too long
    (one, two) = world.oracle.in_state("delayed")
    assert 1_090 + 30 <= one.until_ms <= 1_090 + 90
    assert 1_090 + 200 <= two.until_ms <= 1_090 + 600
    world.commit()
    world.crash()
    world.subscribe("blinky", 2)
    world.advance(one.until_ms - 1 - world.now_ms)
    assert not world.deliver()
    world.advance(1)
    assert [sent.bookmark for sent in world.deliver()["blinky"]] == [one.bookmark]
    world.settle("cancel", "blinky", Claim("orders", 0, 0, 0))  # not one of the causes
    assert [sent.deliveries for sent in world.deliver()["blinky"]] == [3]
    assert [gone.reasons for gone in world.advance(100)] == [("max_deliveries",)]  # and does not wait first


@pytest.mark.feature("Q24", "C60")
def test_a_crowd_that_comes_back_together_is_one_change_however_its_waits_are_spread() -> None:
    one = World(QueueSettings(name="orders", lease_ms=100, retry=RetryRule(10_000, jitter=0.2)))
    for number in range(3_000):
        one.publish("orders", retry=b"%d" % (5_000 + number) if number % 2 else None)
    step = Step()
    one.shard.arrive("orders", 0, one.topics["orders", 0], step, one.now_ms)
    one.shard.subscribing.subscribe("inky", "", 3_000, 1_000_000, "", one.now_ms, step)
    one.shard.deliver(one.now_ms, step)
    step = Step()
    one.shard.advance(one.now_ms + 100, step)
    assert [change.kind for change in step.changes] == [ChangeKind.RETURNED]
    assert len(set(step.changes[0].untils_ms.tolist())) > 1_000
    assert one.shard.depth()["delayed"] == 3_000
    assert one.shard.next_due_ms() == step.changes[0].untils_ms.min()


@pytest.mark.feature("C69")
def test_what_came_back_so_long_ago_that_its_wait_is_over_does_not_wait() -> None:
    world = World(QueueSettings(name="orders", lease_ms=100, retry=RetryRule(50)))
    world.publish("orders")
    world.read("orders")
    world.subscribe("inky", 1)
    world.deliver()
    world.advance(150)  # nobody looked when the lease ended
    assert not world.oracle.in_state("delayed")
    assert world.deliver()["inky"][0].deliveries == 2
