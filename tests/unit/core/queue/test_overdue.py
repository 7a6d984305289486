"""What has expired is told no more, though it leaves bit by bit: a crowd takes its time (L11, C60)."""

from __future__ import annotations

import pytest

from lapse.core.lifetime import Expiration
from lapse.core.queue.segments.segment import SIZE
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement.settlement import Claim, SettleAction
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.core.queue.timer import LOOK
from unit.core.queue.compared.written import published

T0 = 1_000_000
DUE = T0 + 1_000
CROWD = 10_000


def crowded() -> QueueShard:
    """A leased message that is overdue, a crowd that is, and two that are not."""
    shard, step = QueueShard(QueueSettings(name="orders", expiration=Expiration(enabled=True))), Step()
    shard.arrive("orders", 0, [published(0, timestamp=T0, expires_at_ms=DUE)], step)
    shard.subscribing.subscribe("s", "", 1, 60_000, "", T0, step)
    shard.deliver(T0, step)
    shard.arrive("orders", 0, [published(at, timestamp=T0, expires_at_ms=DUE) for at in range(1, CROWD)], step)
    shard.arrive("orders", 0, [published(CROWD, timestamp=T0), published(CROWD + 1, timestamp=T0)], step)
    return shard


@pytest.mark.slow
@pytest.mark.feature("L11", "C60", "Q15")
@pytest.mark.parametrize("left", [0, 1, 5_000, CROWD - 2, CROWD])
def test_an_expired_crowd_is_not_reported_however_little_of_it_has_left(left: int) -> None:
    shard = crowded()
    before = shard.depth(now_ms=DUE - 1)
    assert (before["available"], before["leased"]) == (CROWD + 1, 1)
    assert len(list(shard.peek(0, 2 * CROWD, now_ms=DUE - 1))) == CROWD + 2
    if left:
        shard.advance(DUE, Step(), left)
    counts = shard.depth(now_ms=DUE)
    assert (counts["available"], counts["leased"], counts["depth"]) == (2, 1, 3)
    assert [one.offset for one in shard.peek(0, 10, now_ms=DUE)] == [0, CROWD, CROWD + 1]
    assert [one.offset for one in shard.peek(1, 1, now_ms=DUE)] == [CROWD]
    shard.unsubscribe("s", DUE, Step())
    place = shard.oldest(DUE)
    assert place is not None
    assert shard.bookmark_of(place) == ("orders", 0, CROWD)


@pytest.mark.feature("L11", "Q17", "Q15")
def test_what_is_handed_over_expires_as_what_waits_does() -> None:
    shard = crowded()
    shard.unsubscribe("s", T0, Step())
    shard.transfer_source.hold("t-1", "there", [Claim("orders", 0, 0, 0)], 1, T0, Step())
    assert shard.depth(now_ms=DUE - 1)["transferring"] == 1
    counts = shard.depth(now_ms=DUE)
    assert (counts["transferring"], counts["available"], counts["depth"]) == (0, 2, 2)
    assert [one.offset for one in shard.peek(0, 10, now_ms=DUE)] == [CROWD, CROWD + 1]
    place = shard.oldest(DUE)
    assert place is not None
    assert shard.bookmark_of(place) == ("orders", 0, CROWD)


@pytest.mark.feature("L11", "L9")
def test_while_expiration_is_off_all_are_reported() -> None:
    shard = QueueShard(QueueSettings(name="orders"))
    shard.arrive("orders", 0, [published(0, timestamp=T0, expires_at_ms=DUE)], Step())
    assert shard.depth(now_ms=DUE)["available"] == 1
    assert shard.oldest(DUE) == 0


@pytest.mark.slow
@pytest.mark.feature("C60")
def test_of_few_messages_that_stand_far_apart_as_many_leave_at_once_as_can_be_read() -> None:
    """Each of them has its record read, and much of the log with it: in one go that would hold the queue up."""
    shard, segments = QueueShard(QueueSettings(name="orders", expiration=Expiration(enabled=True))), 20
    records = [published(at, timestamp=T0, expires_at_ms=DUE + at % SIZE) for at in range(segments * SIZE)]
    shard.arrive("orders", 0, records, Step())
    left = []
    while shard.is_due(DUE + 2):
        step = Step()
        shard.advance(DUE + 2, step, 4 * LOOK)
        left.append(sum(len(removal.messages) for removal in step.removals))
    assert left == [4 * 3] * (segments // 4)


@pytest.mark.feature("C60")
def test_no_more_leave_or_come_back_at_once_than_there_is_room_for() -> None:
    shard = crowded()
    step = Step()
    shard.advance(DUE, step, 5)
    assert sum(len(removal.messages) for removal in step.removals) == 5
    shard, most = QueueShard(QueueSettings(name="orders", lease_ms=1_000)), SIZE + 10
    shard.arrive("orders", 0, [published(at, timestamp=T0) for at in range(3 * SIZE)], Step())
    shard.subscribing.subscribe("s", "", 3 * SIZE, 60_000, "", T0, Step())
    while shard.deliver(T0, Step()):
        pass
    assert shard.depth()["leased"] == 3 * SIZE
    shard.advance(DUE, Step(), most)
    assert shard.depth()["available"] == most


@pytest.mark.feature("L11", "C60", "X10")
def test_instants_of_what_has_left_are_found_before_anybody_acts_for_them() -> None:
    shard = QueueShard(QueueSettings(name="orders", expiration=Expiration(enabled=True), lease_ms=3_000))
    arriving = [published(at, timestamp=T0, expires_at_ms=DUE + 500 * at) for at in range(3)]
    shard.arrive("orders", 0, arriving, Step())
    shard.subscribing.subscribe("s", "", 2, 60_000, "", T0, Step())
    shard.deliver(T0, Step())
    shard.settle(SettleAction.ACKNOWLEDGE, "s", [Claim("orders", 0, 0, 1)], T0, Step())
    assert shard.next_due_ms() == DUE  # of a message that was leased and has left since
    shard.forget_gone(DUE - 1)
    assert shard.next_due_ms() == DUE
    shard.forget_gone(DUE)
    assert shard.next_due_ms() == DUE + 1_000
    shard.forget_gone(DUE + 1_000)
    assert shard.next_due_ms() == DUE + 1_000
    shard.advance(DUE + 1_000, Step())
    assert shard.depth()["depth"] == 0
    assert shard.next_due_ms() == T0 + 3_000  # the end of a lease that was settled
    shard.forget_gone(T0 + 3_000)
    assert shard.next_due_ms() == T0 + 60_000  # the subscriber falls silent
