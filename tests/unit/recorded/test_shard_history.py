"""A queue at earlier instants, from its journal alone: what peeks showed then, over crashes and compaction (D7)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from lapse.core.shard.changelog import EPOCH_HEADER, PROGRESS
from lapse.protocol import topic
from lapse.protocol.answer import QueuedMessage
from lapse.recorded.shard_history import ShardHistory
from lapse.testing import CrashPoint, Lapse
from lapse.testing.memory_entity import APP_ID
from lapse.testing.record import MemoryRecord
from lapse_client.delivery.delivery import Delivery
from support.suite.at_length import QUICK, alike

pytestmark = pytest.mark.feature("D7")

Shots = list[tuple[int, list[QueuedMessage]]]
SHOTS = 40 if QUICK else 100


def a_life(lapse: Lapse, seed: int) -> Shots:
    """A hundred peeks at random instants of a queue at work, whose worker crashes now and then."""
    chance = random.Random(seed)
    lapse.queue("jobs", partitions=1, expiration="enabled", lease_period="5s", max_deliveries=3, dead_letter=True)
    shots: Shots = []
    held: list[Delivery] = []
    with (
        lapse.publisher() as publisher,
        lapse.subscriber("jobs", 50) as subscriber,
        lapse.queue_client("jobs") as queue,
    ):
        while len(shots) < SHOTS:
            match chance.randrange(8):
                case 0:
                    for _ in range(chance.randrange(1, 30)):
                        lifetime = chance.choice([None, 800, 30_000])
                        at = chance.choice([None, None, lapse.clock.now_ms + chance.randrange(1, 9_000)])
                        publisher.publish("jobs", b"x", ttl_ms=lifetime, enqueue_at_ms=at)
                case 1 | 2:
                    held += [one for _ in range(chance.randrange(8)) if (one := subscriber.receive(0)) is not None]
                case 3 if held:
                    held.pop(chance.randrange(len(held))).acknowledge()
                case 4 if held:
                    held.pop(chance.randrange(len(held))).cancel(delay_ms=chance.choice([0, 3_000]))
                case 5 if held:
                    held.pop(chance.randrange(len(held))).renew()
                case 6 if chance.random() < 0.3:
                    lapse.crash(chance.choice([None, *CrashPoint]))
                case _:
                    pass
            lapse.clock.advance(chance.choice([0.001, 0.1, 1.0]))
            shots.append((lapse.clock.now_ms, queue.peek()))
            lapse.clock.advance(0.001)
    return shots


def gone_through(records: Sequence[MemoryRecord], at_ms: int) -> ShardHistory:
    history = ShardHistory("jobs", at_ms)
    for one in records:
        history.take(one.offset, one.timestamp, one.key, one.value, dict(one.headers)[EPOCH_HEADER])
    return history


def compacted(records: Sequence[MemoryRecord], end: int) -> list[MemoryRecord]:
    """What Kafka's compaction leaves of a log that it has cleaned up to an offset: of each key the latest record."""
    latest = {one.key: one.offset for one in records[:end]}
    return [one for one in records if one.offset >= end or latest[one.key] == one.offset]


@pytest.fixture(scope="module", params=range(1 if QUICK else 3))
def lived(request: pytest.FixtureRequest) -> tuple[list[MemoryRecord], Shots]:
    with Lapse() as lapse:
        shots = a_life(lapse, request.param)
        changelog = topic.changelog(APP_ID, "jobs")
        return lapse.records(changelog), shots


@pytest.mark.slow
def test_a_hundred_random_instants_are_what_peeks_showed(lived: tuple[list[MemoryRecord], Shots]) -> None:
    records, shots = lived
    assert len({one.state for _, shown in shots for one in shown}) >= 3
    for at_ms, shown in shots:
        history = gone_through(records, at_ms)
        assert history.exact
        assert list(history.messages()) == shown, at_ms
    assert list(gone_through(records, 0).messages()) == []


@pytest.mark.parametrize("part", alike(0.1, 0.5, 0.9))
def test_what_compaction_leaves_is_reported_exactly_or_not_at_all(
    lived: tuple[list[MemoryRecord], Shots], part: float
) -> None:
    records, shots = lived
    end = int(part * len(records))
    left = compacted(records, end)
    assert len(left) < len(records)
    reported = 0
    for at_ms, shown in shots:
        history = gone_through(left, at_ms)
        if history.exact:
            assert list(history.messages()) == shown, at_ms
            reported += 1
        else:
            with pytest.raises(ValueError, match="the journal begins after"):
                list(history.messages())
    steps = [one for one in records[end:] if one.key is not None and one.key.startswith(PROGRESS)]
    whole_ms = next(then.timestamp for one, then in pairwise(steps) if one.key == then.key)
    assert reported >= sum(at_ms >= whole_ms for at_ms, _ in shots) > 0, "what follows the compacted part can be told"


def test_what_is_there_now_is_reported_however_much_was_compacted(lived: tuple[list[MemoryRecord], Shots]) -> None:
    records, _ = lived
    now_ms, left = records[-1].timestamp, compacted(records, len(records))
    history = gone_through(left, now_ms)
    assert history.exact
    assert list(history.messages()) == list(gone_through(records, now_ms).messages())
    assert not gone_through(left, now_ms - 1).exact


def test_what_had_expired_is_not_shown_although_its_worker_was_late() -> None:
    """Nothing was journaled at the ends of lease, schedule and lifetimes, because no worker ran."""
    with Lapse() as lapse:
        lapse.queue("jobs", partitions=1, expiration="enabled", lease_period="5s")
        with lapse.publisher() as publisher, lapse.subscriber("jobs", 2) as subscriber:
            begin_ms = lapse.clock.now_ms
            for lifetime_ms, at_ms in ((1_000, None), (None, None), (1_000, None), (1_000, begin_ms + 500)):
                publisher.publish("jobs", b"x", ttl_ms=lifetime_ms, enqueue_at_ms=at_ms)
            publisher.flush()
            lapse.clock.advance(0.001)
            assert [one.delivery_count for one in (subscriber.receive(0), subscriber.receive(0)) if one] == [1, 1]
            records = lapse.records(topic.changelog(APP_ID, "jobs"))
    found = {
        after_ms: [(one.bookmark[-1], one.state) for one in gone_through(records, begin_ms + after_ms).messages()]
        for after_ms in (10, 1_200, 1_600, 5_100)
    }
    leased = [("0", "leased"), ("1", "leased")]
    assert found == {
        10: [*leased, ("2", "available"), ("3", "scheduled")],
        1_200: [*leased, ("3", "scheduled")],
        1_600: leased,
        5_100: [("1", "leased")],
    }
