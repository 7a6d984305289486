"""Consumers that are lost while their worker crashes, and that come back: each message has one fate (C5, D3)."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from lapse.core.error_code import ErrorCode, Refusal
from lapse.protocol import topic as names
from lapse.protocol.event import TERMINAL, decode
from lapse.runtime.shard.standing_filter import StandingFilters
from lapse.testing import CrashPoint, Lapse
from support.suite.at_length import alike

pytestmark = pytest.mark.feature("C5", "D3", "X8")

LIMITS: dict[str, dict[str, Any]] = {
    "deliveries": {"max_deliveries": 1},
    "deadline": {"expiration": "enabled"},
    "deadline, behind a delay": {"expiration": "enabled", "retry": {"delay": "1ms"}},
}


def fates(lapse: Lapse) -> dict[str, set[str]]:
    """How each message left, by its events and letters, which may come repeatedly."""
    found = defaultdict[str, set[str]](set)
    for letter in lapse.dead_letters("orders"):
        found[str(letter.origin)].add("dead_lettered")
    for record in lapse.records(names.events("orders")):
        event = decode(record.value or b"")
        for some in event.messages if event.event in TERMINAL else ():
            for offset in range(some.first, some.last + 1):
                found[f"{some.topic}:{some.partition}:{offset}"].add(event.event)
    return found


@pytest.mark.parametrize("limit", alike(*LIMITS))
@pytest.mark.parametrize("times", alike(2, 1))
@pytest.mark.parametrize("point", [*CrashPoint, None])
def test_what_a_lost_consumer_held_has_one_fate_though_it_comes_back(
    point: CrashPoint | None, times: int, limit: str, lapse: Lapse
) -> None:
    lapse.queue("orders", lease_period="60s", **LIMITS[limit])
    lost = lapse.subscriber("orders", 3, heartbeat_timeout_ms=3_000)
    with lapse.publisher() as publisher, lost as subscriber:
        publisher.publish("orders", b"1", ttl_ms=2_000)
        delivery = subscriber.receive(timeout=1)
        assert delivery is not None
        lapse.lose(subscriber)
        lapse.crash(before=point)
        lapse.clock.advance(3.1)
        for _ in range(times - 1):
            lapse.crash(before=point)
            publisher.publish("orders", b"2", ttl_ms=0)
            lapse.settle()
        lapse.find(subscriber)
        delivery.acknowledge()
        lapse.settle()
        lapse.clock.advance(120)
    found = fates(lapse)["orders:0:0"]
    assert found == {"dead_lettered"}


@pytest.mark.feature("X7")
def test_a_subscription_that_ended_because_of_its_costs_has_ended_after_a_crash_that_costs_less(
    lapse: Lapse, monkeypatch: pytest.MonkeyPatch
) -> None:
    lapse.queue("orders", lease_period="60s", max_deliveries=1)
    with lapse.publisher() as publisher, lapse.subscriber("orders", 3, filter="/n > 0") as subscriber:
        publisher.publish("orders", b'{"n": 1}')
        delivery = subscriber.receive(timeout=1)
        assert delivery is not None
        costs = [{"/n > 0": Refusal(ErrorCode.TOO_COSTLY, "it takes too much work")}]
        monkeypatch.setattr(StandingFilters, "too_costly", lambda *_: costs.pop() if costs else {})
        lapse.crash(before=CrashPoint.JOURNAL)
        publisher.publish("orders", b'{"n": 2}')
        lapse.settle()
        lapse.clock.advance(0.01)
        delivery.acknowledge()
        lapse.settle()
        assert not costs
        assert fates(lapse) == {"orders:0:0": {"dead_lettered"}}, "the second was not handed out as well"
        lapse.clock.advance(20)
        second = subscriber.receive(timeout=1)
        assert second is not None
        assert second.delivery_count == 1


def test_a_consumer_is_lost_at_its_instant_though_the_worker_is_away_for_longer(lapse: Lapse) -> None:
    lapse.queue("orders", lease_period="60s", max_deliveries=1)
    with lapse.publisher() as publisher, lapse.subscriber("orders", 3, heartbeat_timeout_ms=3_000) as subscriber:
        publisher.publish("orders", b"1")
        assert subscriber.receive(timeout=1) is not None
        lapse.lose(subscriber)
        lapse.crash(before=CrashPoint.JOURNAL)
        lapse.clock.advance(3.1)
        lapse.stop_worker()
        publisher.publish("orders", b"2")
        lapse.clock.advance(60)
        lapse.start_worker()
        lapse.find(subscriber)
        lapse.settle()
        second = subscriber.receive(timeout=10)
        assert second is not None
        assert second.delivery_count == 1
        second.acknowledge()
    assert fates(lapse) == {"orders:0:0": {"dead_lettered"}, "orders:0:1": {"acknowledged"}}
