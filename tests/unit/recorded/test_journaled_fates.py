"""How messages left a queue, by its journal alone: what the events say of them, over crashes and rewinds (D8)."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from lapse.core.reason import Reason
from lapse.core.shard.changelog import EPOCH_HEADER
from lapse.protocol import topic
from lapse.protocol.event import TERMINAL, EventKind, decode
from lapse.recorded.journaled_fates import JournaledFate, JournaledFates, joined
from lapse.testing import CrashPoint, Lapse
from lapse.testing.memory_entity import APP_ID
from lapse_client.delivery.delivery import Delivery

pytestmark = pytest.mark.feature("D8")


def a_life(lapse: Lapse, seed: int) -> None:
    """A queue at work, whose worker crashes now and then; one rewind brings messages back."""
    chance = random.Random(seed)
    lapse.queue(
        "jobs", partitions=1, expiration="enabled", lease_period="5s", max_deliveries=3, max_cancels=1, dead_letter=True
    )
    held: list[Delivery] = []
    with (
        lapse.publisher() as publisher,
        lapse.subscriber("jobs", 50) as subscriber,
        lapse.queue_client("jobs") as queue,
    ):
        for turn in range(200):
            match chance.randrange(8):
                case 0 | 1:
                    for _ in range(chance.randrange(1, 30)):
                        publisher.publish("jobs", b"x", ttl_ms=chance.choice([None, 800, 30_000]))
                case 2 | 3:
                    held += [one for _ in range(chance.randrange(8)) if (one := subscriber.receive(0)) is not None]
                case 4 | 5 if held:
                    held.pop(chance.randrange(len(held))).acknowledge()
                case 6 if held:
                    held.pop(chance.randrange(len(held))).cancel()
                case 7 if chance.random() < 0.3:
                    lapse.crash(chance.choice([None, *CrashPoint]))
                case _:
                    pass
            if turn == 100:
                queue.rewind("beginning")
            lapse.clock.advance(chance.choice([0.001, 0.1, 1.0]))


def fates(lapse: Lapse) -> list[JournaledFate]:
    journal, found = JournaledFates(), list[JournaledFate]()
    for one in lapse.records(topic.changelog(APP_ID, "jobs")):
        found += journal.take(one.key, one.value, dict(one.headers)[EPOCH_HEADER])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_journal_says_how_each_message_left_as_its_event_does(seed: int) -> None:
    with Lapse() as lapse:
        a_life(lapse, seed)
        by_events: dict[int, tuple[int, bool]] = {}
        kinds: Counter[EventKind] = Counter()
        for record in lapse.records(topic.events("jobs")):
            event = decode(record.value or b"")
            if event.event in TERMINAL:
                kinds[EventKind(event.event)] += 1
                late = Reason.TIME_LIMIT.value in event.reasons
                for some in event.messages:
                    for position in range(some.first, some.last + 1):
                        by_events[position] = max(by_events.get(position, (0, False)), (event.epoch, not late))
        left = {
            position: (one.epoch, one.in_time) for one in fates(lapse) for position in range(one.first, one.last + 1)
        }
    assert {EventKind.ACKNOWLEDGED, EventKind.DEAD_LETTERED} <= set(kinds)
    assert len({in_time for _, in_time in left.values()}) == 2
    assert {position: by_events[position][1] for position in left} == {at: in_time for at, (_, in_time) in left.items()}
    assert len(left) > len(by_events) * 0.9
    assert max(left) > 1 << 48, "what the rewind brought back is among them"


def test_messages_that_left_in_any_order_become_few_ranges() -> None:
    one = JournaledFate("t", 0, 0, 0, 1, True)
    some = [one._replace(first=at, last=at) for at in (4, 2, 0, 1, 3)]
    others = [one._replace(first=5, last=6, in_time=False), one._replace(first=7, last=7, epoch=2)]
    others += [one._replace(first=5, last=9, partition=1), one._replace(first=8, last=9)]
    left = joined([*some, *others])
    assert sorted(left) == sorted([one._replace(last=4), *others])
