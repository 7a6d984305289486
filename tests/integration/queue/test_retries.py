"""Messages that come back wait before their next delivery, by the rule of their queue (Q24, C68, C69)."""

import asyncio
import time
from datetime import timedelta

import pytest

from lapse.protocol import header
from lapse.protocol.topic import commands, deliveries
from lapse_client import Delivery, Retry, aio
from support.kafka.log import until, write
from support.processes.deployment import Deploy, Deployment, WorkerProcess, broker_now_ms
from support.suite.at_length import AT_LENGTH

QUEUES = {
    "failing": {"retry": {"delay": "2s", "factor": 6, "jitter": 0.1}, "max_deliveries": 3},
    "hanging": {"retry": {"delay": "2s", "on": ["lease"]}, "lease_period": "500ms"},
    "raising": {"retry": {"delay": "1h"}},
    "losing": {"retry": {"delay": "2s", "on": ["lost"]}, "heartbeat_timeout": "500ms"},
}
LATE_MS = 3_000
"""How late a delivery may come on a machine that does much else; the instants that are decided are exact."""

LATE_IN_THE_LOG_MS = 250 if AT_LENGTH else LATE_MS
"""How late Kafka may have a delivery that somebody waits for (Q24). `make chaos` has the machine for itself."""


@pytest.fixture(scope="module")
def deployed(deploy: Deploy) -> tuple[Deployment, WorkerProcess]:
    one = deploy(QUEUES).apply()
    return one, one.worker().wait_for_shards(len(QUEUES))


def fail(one: Deployment, stem: str, after_ms: int = 0) -> Delivery:
    """Receive a message, not before an instant, and fail on it."""
    with one.subscriber(stem, payload="inline") as subscriber:
        delivery = subscriber.receive(60)
        assert delivery is not None
        assert after_ms <= broker_now_ms() < (after_ms or broker_now_ms()) + LATE_MS
        with pytest.raises(OSError, match="as ever"), delivery:
            raise OSError("as ever")
    return delivery


def waits(one: Deployment, stem: str) -> int:
    """Until when its only message is delayed, ms since the epoch."""
    found: list[int] = []
    with one.queue(stem) as queue:
        until(
            lambda: found.extend(message.until_ms for message in queue.peek() if message.state == "delayed") or found,
            f"{stem} has a delayed message",
        )
    (until_ms,) = found
    return until_ms


def delivered_ms(one: Deployment, stem: str) -> list[int]:
    """When Kafka had each delivery of the only message, ms since the epoch."""
    records = one.tail(deliveries(one.name(stem))).drain()
    return [record.timestamp()[1] for record in records if dict(record.headers() or ()).get(header.KIND) == b"delivery"]


def cancelled_ms(one: Deployment, stem: str) -> list[int]:
    return [emitted.at_ms for emitted in one.events(stem) if emitted.event in ("cancelled", "lease_returned")]


@pytest.mark.feature("Q24", "C68", "Q9", "D6")
def test_a_consumer_that_always_fails_gets_it_at_its_instants_over_a_crash(
    deployed: tuple[Deployment, WorkerProcess],
) -> None:
    one, worker = deployed
    (written,) = one.write("failing", "poison")
    fail(one, "failing")
    first_ms = waits(one, "failing")
    (cancel_ms,) = cancelled_ms(one, "failing")
    assert 1_800 <= first_ms - cancel_ms <= 2_200
    fail(one, "failing", first_ms)
    second_ms = waits(one, "failing")
    assert 10_800 <= second_ms - cancelled_ms(one, "failing")[1] <= 13_200
    worker.kill()
    worker.start().wait_for_shards(len(QUEUES))
    assert broker_now_ms() < second_ms, "the machine was too slow for this test"
    assert waits(one, "failing") == second_ms
    fail(one, "failing", second_ms)
    subscribed_ms = [emitted.at_ms for emitted in one.events("failing") if emitted.event == "subscribed"]
    came_ms = delivered_ms(one, "failing")
    for came, decided, waited in zip(came_ms[1:], (first_ms, second_ms), subscribed_ms[1:], strict=True):
        assert decided <= came <= max(decided, waited) + LATE_IN_THE_LOG_MS, "over the crash, too"
    (letter,) = one.letters("failing", 1)
    assert dict(letter.headers())["lapse-reasons"] == b"max_deliveries"
    assert one.depth("failing")["delayed"] == 0
    emitted = one.lapse("explain", one.bookmark("failing", written), "--entity", one.name("failing")).stdout
    assert emitted.count("delayed until 20") == 2


@pytest.mark.feature("Q24", "C69")
def test_a_lapsed_lease_waits_from_its_end_and_a_clean_end_or_another_cause_does_not(
    deployed: tuple[Deployment, WorkerProcess],
) -> None:
    one, _ = deployed
    one.write("hanging", "one")
    with one.subscriber("hanging") as subscriber:
        delivery = subscriber.receive(30)
        assert delivery is not None
        until_ms = waits(one, "hanging")
        assert until_ms == delivery.lease_until_ms + 2_000
        again = subscriber.receive(30)
        assert again is not None
        assert until_ms <= broker_now_ms() < until_ms + LATE_MS
        subscriber.settle("cancel", [again], wait=True)  # not one of the causes
        third = subscriber.receive(30)
        assert third is not None
        assert third.lease_until_ms < until_ms + 500 + LATE_MS
    depth = one.depth("hanging")  # the subscriber left, and gave it back
    assert (depth["available"], depth["delayed"]) == (1, 0)


@pytest.mark.feature("Q24", "C69", "Q5")
def test_what_a_lost_consumer_had_waits_from_the_end_of_its_heartbeat_timeout(
    deployed: tuple[Deployment, WorkerProcess],
) -> None:
    one, _ = deployed
    one.write("losing", "one")
    hello = b'{"command": "subscribe", "subscription": "gone", "answer": "none"}'
    (said,) = write(one.servers, commands(one.name("losing")), [hello])  # and is never heard of again
    until_ms = waits(one, "losing")
    assert until_ms == said.timestamp_ms + 500 + 2_000
    with one.subscriber("losing") as subscriber:
        delivery = subscriber.receive(30)
        assert delivery is not None
        assert until_ms <= broker_now_ms() < until_ms + LATE_MS
        assert delivery.delivery_count == 2


@pytest.mark.feature("Q24", "C69", "X3")
def test_retry_of_iterators_callbacks_and_coroutines_counts_before_header_and_queue(
    deployed: tuple[Deployment, WorkerProcess],
) -> None:
    one, _ = deployed
    headers = [("lapse-retry-delay-ms", b"0")]
    with one.subscriber("raising") as subscriber:
        one.write("raising", "iterator", headers=headers)
        counts = []
        for delivery in subscriber.messages(timeout=30):
            with delivery:
                counts.append(delivery.delivery_count)
                if delivery.delivery_count == 1:
                    delivery.cancel()  # at once, as the header says
                elif delivery.delivery_count == 2:
                    raise Retry(after=timedelta(milliseconds=300))
                else:
                    break
        assert counts == [1, 2, 3]
        subscriber.flush()
    seen: list[tuple[str, int, float]] = []
    failing = one.subscriber("raising")

    def handle(delivery: Delivery) -> None:
        seen.append(("callback", delivery.delivery_count, time.monotonic()))
        if delivery.delivery_count == 1:
            raise Retry(after=0.3)
        failing.stop()

    one.write("raising", "callback")
    with failing:
        failing.run(handle)

    async def work() -> None:
        async with aio.QueueSubscriber(one.name("raising"), connection=one.connection) as subscriber:
            async for delivery in subscriber.messages(timeout=30):
                async with delivery:
                    seen.append(("coroutine", delivery.delivery_count, time.monotonic()))
                    if delivery.delivery_count == 1:
                        raise Retry(after=0.3)
                    break

    one.write("raising", "coroutine")
    asyncio.run(work())
    assert [(how, count) for how, count, _ in seen] == [(h, n) for h in ("callback", "coroutine") for n in (1, 2)]
    assert all(later[2] - earlier[2] >= 0.3 for earlier, later in (seen[:2], seen[2:]))
    assert one.depth("raising")["depth"] == 0
