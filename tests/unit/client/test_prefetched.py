"""What was handed out together is taken in order, once, and only while its lease holds."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from queue import Queue
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.lifetime import NEVER
from lapse.protocol import packed_delivery
from lapse.protocol.packed_delivery import column, decode
from lapse_client.delivery.delivery import Delivery
from lapse_client.delivery.lot import PackedLot, SingleLot
from lapse_client.delivery.prefetched import Prefetched
from lapse_client.delivery.typed_delivery import typed
from lapse_client.error import AlreadySettled, LapseError
from lapse_client.kafka.connection import Connection
from lapse_client.session.shard import Shard
from lapse_client.subscriber.acknowledgments import Acknowledgments
from lapse_client.subscriber.settler import Settler
from lapse_client.subscriber.subscription_settler import SubscriptionSettler
from lapse_client.transaction.in_doubt import InDoubt

SHARD = Shard(0, "q", 0)


def lot(
    first: int,
    count: int,
    lease_ms: int | None = None,
    shard: Shard = SHARD,
    counts: list[int] | None = None,
    deadlines_ms: Sequence[int] = (),
    landed: float = 0,
):
    body = packed_delivery.encode(
        "t",
        0,
        column("q", range(first, first + count)),
        column("q", [17] * count),
        column("I", counts or [1] * count),
        [b"%d" % offset for offset in range(first, first + count)],
        deadlines_ms=column("q", deadlines_ms),
    )
    fields = {"lapse-epoch": b"5"}
    if lease_ms is not None:
        fields["lapse-lease-until-ms"] = b"%d" % lease_ms
    return PackedLot(None, shard, decode(body), fields, landed)


def values(some: list[Delivery]) -> list[int]:
    return [int(one.value or b"") for one in some]


def prefetched(now_ms: float = 0.0) -> tuple[Prefetched, list[int]]:
    forgotten: list[int] = []
    return Prefetched(lambda: now_ms, lambda _, count: forgotten.append(count)), forgotten


PARTS = st.lists(st.none() | st.binary(max_size=5), min_size=4, max_size=4)


@pytest.mark.feature("D4")
@given(PARTS | st.just([]), PARTS)
def test_a_packed_delivery_has_its_key_and_value_and_null_stays_null(
    keys: list[bytes | None], parts: list[bytes | None]
) -> None:
    count = len(parts)
    columns = (column("q", range(count)), column("q", [17] * count), column("I", [1] * count))
    packed = decode(packed_delivery.encode("t", 0, *columns, parts, keys=keys))
    made = PackedLot(cast("Settler", None), SHARD, packed, {"lapse-epoch": b"5"})
    some = [Delivery(made, at) for at in range(count)]
    assert [one.key for one in some] == [made.key(at) for at in range(count)] == (keys or [None] * count)
    assert [one.value for one in some] == [made.value(at) for at in range(count)] == parts


@pytest.mark.feature("X3", "D4")
def test_takers_share_what_arrives_without_loss_or_repeat() -> None:
    arrivals, _ = prefetched()
    taken: list[list[int]] = [[] for _ in range(4)]

    def work(number: int) -> None:
        while True:
            one = arrivals.pop() if number % 2 else None
            some = [one] if one is not None else arrivals.take(3, None)
            if not some:
                return
            taken[number] += values(some)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for start in range(0, 20_000, 10):
        arrivals.put([lot(start, 3), lot(start + 3, 7)])
    while len(arrivals):
        time.sleep(0.001)
    arrivals.end()
    for thread in threads:
        thread.join(10)
    assert sorted(item for some in taken for item in some) == list(range(20_000))
    assert all(some == sorted(some) for some in taken)


@pytest.mark.feature("X3", "L10")
def test_what_is_left_of_a_lot_is_dropped_when_its_lease_is_over() -> None:
    now_ms = 0.0
    forgotten: list[tuple[Shard, int]] = []
    arrivals = Prefetched(lambda: now_ms, lambda *of: forgotten.append(of))
    arrivals.put([lot(0, 4, 100), lot(4, 2, 200), lot(6, 1)])
    assert values(arrivals.take(1)) == [0]
    now_ms = 100.0
    assert values(arrivals.take(9)) == [4, 5, 6]
    assert forgotten == [(SHARD, 3)]
    arrivals.put([lot(7, 2, 100)])
    assert arrivals.pop() is None
    assert forgotten[1:] == [(SHARD, 2)]
    assert arrivals.take(1, 0.01) == []


@pytest.mark.feature("X3", "Q5")
def test_what_is_handed_out_again_and_again_while_nobody_takes_it_does_not_pile_up() -> None:
    """Each time the leases are over, the shard hands the same messages out again."""
    now_ms, forgotten, other = 0.0, Counter[Shard](), Shard(1, "q", 1)
    arrivals = Prefetched(lambda: now_ms, lambda shard, count: forgotten.update({shard: count}))
    arrivals.put([lot(0, 100, shard=other)])
    assert values(arrivals.take(1)) == [0]
    for turn in range(1, 101):
        now_ms = 100.0 * turn
        arrivals.put([lot(0, 1_000, 100 * turn + 100)])
        assert len(arrivals) <= 5_000, turn
    assert forgotten[SHARD] + len(arrivals) - 99 == 100_000
    assert values(arrivals.take(99)) == list(range(1, 100))
    assert values(arrivals.take(2_000)) == list(range(1_000))


@pytest.mark.feature("X3", "D4")
def test_there_is_room_once_few_messages_are_left_and_when_nothing_will_be_taken() -> None:
    other = Shard(1, "q", 1)
    arrivals, _ = prefetched()
    assert arrivals.await_room(0)
    arrivals.put([lot(0, 1_500, shard=other), lot(1_500, 1_000)])
    assert not arrivals.await_room(0)
    assert values(arrivals.take(499)) == list(range(499))
    assert not arrivals.await_room(0)
    arrivals.put_back(arrivals.take(1))
    assert arrivals.await_room(0), "what was put back was taken before"
    assert values(arrivals.take(1)) == [499]
    arrivals.put([lot(2_500, 700)])
    assert not arrivals.await_room(0)
    arrivals.drop(lambda some: some.shard is other)
    assert arrivals.await_room(0)
    assert len(arrivals.take(9_000)) == 1_700
    arrivals.put([lot(3_200, 8_000)])
    assert arrivals.await_room(0), "who takes many at once gets many at once"
    arrivals.put([lot(11_200, 8_000)])
    assert not arrivals.await_room(0)
    threading.Timer(0.01, arrivals.end).start()
    assert arrivals.await_room(3_600), "the end wakes who waits, long before pytest's limit"


@pytest.mark.feature("X3")
def test_lots_of_a_shard_are_dropped_and_others_stay_where_they_were() -> None:
    other = Shard(1, "q", 1)
    arrivals, _ = prefetched()
    arrivals.put([lot(0, 4), lot(10, 3, shard=other), lot(20, 2)])
    assert values(arrivals.take(2)) == [0, 1]
    assert arrivals.drop(lambda one: one.shard is other) == {float("inf"): 3}
    assert len(arrivals) == 4
    assert values(arrivals.take(1)) == [2]
    assert arrivals.drop(lambda one: one.offsets[0] == 0) == {float("inf"): 1}
    assert values(arrivals.take(9)) == [20, 21]
    assert not arrivals.drop(lambda _: True)


@pytest.mark.feature("X3", "C13", "Q8")
def test_deliveries_of_a_lot_are_settled_as_ranges_with_their_own_counts() -> None:
    sent: list[list[str]] = []
    waiting = Acknowledgments([SHARD], lambda _: 100, lambda _, ranges, count: sent.append(ranges))
    alike, mixed = lot(0, 5), lot(5, 3, counts=[1, 2, 2])
    some = [Delivery(alike, at) for at in range(5)] + [Delivery(mixed, at) for at in range(3)]
    assert waiting.add(some)
    with pytest.raises(AlreadySettled, match="t:0:3 is settled already"):
        waiting.add([Delivery(lot(8, 1), 0), some[3]])
    waiting.flush_all()
    assert [sorted(ranges) for ranges in sent] == [["t:0:0-5#1@5", "t:0:6-7#2@5", "t:0:8#1@5"]]
    one = some[6]
    assert (str(one.bookmark), one.delivery_count, one.place, one.token) == ("t:0:6", 2, b"t:0:6", b"2@5")
    assert (one.key, one.headers, one.timestamp_ms, one.expires_at_ms, one.lease_until_ms) == (None, [], 17, None, None)


@pytest.mark.feature("L10", "X3")
def test_what_had_expired_when_it_landed_is_passed_over_and_not_counted() -> None:
    now_ms = 0.0
    forgotten: list[int] = []
    arrivals = Prefetched(lambda: now_ms, lambda _, count: forgotten.append(count))
    arrivals.put([lot(0, 5, 100, deadlines_ms=[50, 51, NEVER, 49, 60], landed=50), lot(5, 2)])
    assert len(arrivals) == 5
    assert values(arrivals.take(2)) == [1, 2]
    assert len(arrivals) == 3
    now_ms = 100.0
    assert values(arrivals.take(9)) == [5, 6]
    assert forgotten == [1], "of what is left at the end of the lease only one was to be handed out"


@pytest.mark.feature("X3", "Q3", "Q12")
def test_barriers_that_are_dropped_free_no_credit() -> None:
    """Without leases, as under at-most-once, they would free that of a message which is not settled."""

    class Barrier(PackedLot):
        __slots__ = ()
        is_barrier = True

    barrier, message = lot(0, 1), lot(1, 1)
    barrier.__class__ = Barrier
    arrivals, _ = prefetched()
    arrivals.put([barrier, message])
    arrivals.put_back(arrivals.take(1))
    arrivals.put([barrier])
    assert arrivals.drop(lambda _: True) == {float("inf"): 1}


@pytest.mark.feature("X3", "X9", "Q3")
def test_a_typed_delivery_has_the_lease_that_was_renewed_meanwhile() -> None:
    delivery = Delivery(lot(7, 1, lease_ms=100), 0)
    delivery.lease_ends_ms = 200
    (found,) = typed(int, [delivery])
    assert (found.payload, found.lease_until_ms) == (7, 200)


@pytest.mark.feature("X9")
def test_a_delivery_in_doubt_is_not_taken_for_one_that_was_cleared_and_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was dropped leaves its address to a later delivery."""
    caplog.set_level(logging.ERROR, "lapse_client")  # a logged exception would keep the deliveries
    now_ms, back = 0.0, Queue[Delivery]()

    def no_broker(queue: str) -> int:
        raise LapseError(f"{queue}: no broker answers")

    in_doubt = InDoubt(
        cast("Connection", None), no_broker, cast("SubscriptionSettler", None),
        lambda cleared: [back.put(one) for one in cleared], lambda: now_ms, lambda shard, count: None,
    )  # fmt: skip
    try:
        for offset in range(50):
            now_ms = 100.0 * offset
            assert not in_doubt.hold_back_doubtful([Delivery(lot(offset, 1, int(now_ms) + 100, counts=[2]), 0)])
            assert back.get(timeout=10).delivery_count == 2  # and dropped
        one = Delivery(lot(50, 1, int(now_ms) + 100, counts=[2]), 0)
        assert not in_doubt.hold_back_doubtful([one])
        assert in_doubt.hold_back_doubtful([back.get(timeout=10)]) == [one]
    finally:
        in_doubt.close()


class Record:
    """What a channel passes on of a record."""

    def __init__(self, value: bytes) -> None:
        self._value = value

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return 2, 0

    def set_headers(self, headers: list[object]) -> None:
        assert headers == []


def barrier(offset: int, size: int, shard: Shard = SHARD) -> SingleLot:
    fields = {"lapse-kind": b"barrier", "lapse-bookmark": b"t:0:%d" % offset, "lapse-epoch": b"5"}
    return SingleLot(None, shard, Record(b"x" * size), fields)


@pytest.mark.feature("Q12", "X3")
def test_nothing_more_is_read_while_too_many_barriers_wait() -> None:
    """No backlog limits them, so a program that takes none would need more and more memory."""
    buffer = Prefetched(lambda: 0.0, lambda shard, count: None)
    buffer.put([barrier(0, 4 << 20), lot(1, 2_000, lease_ms=10)])
    assert not buffer.is_full(20_000)
    buffer.put([barrier(3_000, 5 << 20)])
    assert buffer.is_full(20_000)
    assert buffer.take(1)[0].is_barrier
    assert not buffer.is_full(20_000)

    other = Shard(1, "q", 1)
    small = [barrier(offset, 0, other) for offset in range(4_000, 14_000)]
    buffer.put(small)
    assert buffer.is_full(20_000), "objects take memory as well"
    assert set(buffer.drop(lambda one: one.shard is other).values()) == {0}
    assert not buffer.is_full(20_000)

    buffer.put(small)
    assert buffer.is_full(20_000)
    buffer.end()
    assert not buffer.is_full(20_000), "the end of the subscription must be read"

    buffer = Prefetched(lambda: 0.0, lambda shard, count: None)
    buffer.put([barrier(offset, 0) for offset in range(1_001)])
    assert buffer.is_full(0)
    assert not buffer.is_full(1)
