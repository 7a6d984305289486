"""What comes before a client's start has ended, and after its end, against real workers (X3, Q5, Q8)."""

import asyncio
import gc
import logging
import random
import subprocess
import sys
import threading
import time
import warnings

import pytest

import lapse_client
from lapse.protocol.command import Command
from lapse_client import Closed, EntityDeleted, OtherEventLoop, SettlementResult, SowSubscription
from lapse_client.aio import QueueSubscriber
from lapse_client.session.conversation import Conversation
from support.kafka.log import until
from support.processes.deployment import Deployment

QUEUES = {
    stem: {"lease_period": "60s", "heartbeat_timeout": "60s"}
    for stem in ("hasty", "stopped", "left", "loops", "after", "during", "forgotten")
} | {"gone": {"heartbeat_timeout": "2s"}}

LAPSE = {"sow": {"prices": {"partitions": 1}}}

pytestmark = pytest.mark.feature("X3", "Q5")


def free(served: Deployment, stem: str) -> bool:
    depth = served.depth(stem)
    return depth["subscriptions"] == 0 and depth.get("leased", 0) == 0


def subscribers(served: Deployment, stem: str) -> int:
    with Conversation(served.connection, served.name(stem), 1) as conversation:
        return conversation.ask([0], Command(command="depth"), 30)[0].counts["subscriptions"]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("lapse ")]


def test_a_cancelled_start_leaves_nothing_behind(served: Deployment) -> None:
    served.write("hasty", *"abcde")
    until(lambda: served.depth("hasty")["available"] == 5, "five messages are there")
    before = sorted(threads())
    cancelled = 0

    async def main() -> None:
        nonlocal cancelled
        for number in range(20):
            subscriber = QueueSubscriber(served.name("hasty"), 5, connection=served.connection)
            try:
                async with asyncio.timeout(0.01 + 0.02 * number), subscriber:
                    await asyncio.sleep(60)
            except TimeoutError:
                cancelled += subscriber._awakening is None

    asyncio.run(main())
    assert cancelled >= 3, "no start was cancelled; the timeouts are too long for this machine"
    until(lambda: free(served, "hasty"), "nobody holds leases, or subscribes")
    until(lambda: sorted(threads()) == before, "no thread is left")


@pytest.mark.parametrize("kind", ["queue", "sow"])
def test_a_start_ends_with_the_close_of_another_thread(served: Deployment, kind: str) -> None:
    """Whenever the other thread closes: before the start, during it, or just after it."""

    def client() -> lapse_client.QueueSubscriber | SowSubscription:
        if kind == "queue":
            return lapse_client.QueueSubscriber(served.name("stopped"), 5, connection=served.connection)
        return SowSubscription(served.connection, served.name("prices"), 1, "subscribe")

    with client() as one:  # how long a start takes on this machine now
        began = time.monotonic()
        with client():
            takes_s = time.monotonic() - began
        assert repr(one).endswith("running>")
    before = sorted(threads())
    given_up, moments = 0, random.Random(20)
    for number in range(20):
        one = client()
        delay_s = moments.uniform(0, 1.2 * takes_s) if number else 0.0
        closer = threading.Timer(delay_s, one.close)
        if number:
            closer.start()
        else:
            one.close()
        try:
            one.start()
        except Closed:
            given_up += 1
        else:
            takes_s *= 0.9  # other tests may have slowed down the start that was measured
        if number:
            closer.join()
        with pytest.raises(Closed):
            one.start()
        assert repr(one).endswith("closed>")
    assert given_up >= 3, "hardly any start was given up: the moments are wrong for this machine"
    until(lambda: sorted(threads()) == before, f"no thread is left: {threads()}")
    if kind == "queue":
        until(lambda: free(served, "stopped"), "nobody subscribes")
    else:
        until(lambda: subscribers(served, "prices") == 0, "nobody subscribes")


def test_run_raises_what_ended_the_subscription_as_it_is(served: Deployment) -> None:
    async def main() -> None:
        async with QueueSubscriber(served.name("gone"), 5, connection=served.connection) as subscriber:

            async def handle(_: object) -> None:
                """Nothing comes."""

            running = asyncio.create_task(subscriber.run(handle, tasks=3))
            await asyncio.sleep(0.2)
            with served.queue("gone") as queue:
                await asyncio.to_thread(queue.delete, force=True)
            async with asyncio.timeout(30):
                await running

    with pytest.raises(EntityDeleted):
        asyncio.run(main())

    async def unstarted() -> None:
        await QueueSubscriber("x", connection=served.connection).run(asyncio.sleep, tasks=2)

    with pytest.raises(Closed):
        asyncio.run(unstarted())


def test_handlers_at_work_finish_before_the_end(served: Deployment) -> None:
    served.write("during", *"abc")
    done: list[bytes] = []

    async def main() -> None:
        async with QueueSubscriber(served.name("during"), 3, connection=served.connection) as subscriber:
            began = asyncio.Event()

            async def handle(delivery: lapse_client.Delivery) -> None:
                began.set()
                await asyncio.sleep(0.5)
                done.append(delivery.value or b"")

            running = asyncio.create_task(subscriber.run(handle))
            await began.wait()
            await subscriber.close()
            assert len(done) == 1
            await running

    asyncio.run(main())
    until(lambda: served.depth("during")["available"] == 2, "one was acknowledged, two were given back")


@pytest.mark.parametrize("twin", ["sync", "async"])
def test_a_subscriber_that_nobody_closed_is_informed_and_gives_back(served: Deployment, twin: str) -> None:
    def leave() -> None:
        receiver = lapse_client.QueueSubscriber(served.name("left"), 5, connection=served.connection)
        assert receiver.start().receive(60) is not None

    async def leave_async() -> None:
        receiver = QueueSubscriber(served.name("left"), 5, connection=served.connection)
        await receiver.start()
        assert await receiver.receive(60) is not None

    served.write("left", "a", "b")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(leave_async()) if twin == "async" else leave()
        gc.collect()
    text = [
        str(one.message) for one in caught if one.category is ResourceWarning and "never closed" in str(one.message)
    ]
    assert len(text) == 1, text
    assert served.name("left") in text[0]
    until(lambda: free(served, "left"), "its leases are back")
    with served.queue("left") as queue:
        queue.purge()


def test_a_program_ends_whose_subscriber_nobody_closed(served: Deployment) -> None:
    """The subscriber is collected when the interpreter takes its modules apart: no thread begins there any more."""
    program = f"""
import builtins
from lapse_client import Connection, QueueSubscriber
builtins.kept = QueueSubscriber({served.name("left")!r}, 5, connection=Connection({served.servers!r})).start()
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_another_event_loop_gets_advice(served: Deployment) -> None:
    receiver = QueueSubscriber(served.name("loops"), 5, connection=served.connection)
    asyncio.run(receiver.start())
    with pytest.raises(OtherEventLoop, match="Open one in each loop"):
        asyncio.run(receiver.receive(0.1))
    with pytest.raises(OtherEventLoop):
        asyncio.run(receiver.start())
    asyncio.run(receiver.close())


@pytest.mark.feature("Q8")
def test_a_settlement_after_the_end_is_reported(served: Deployment, caplog: pytest.LogCaptureFixture) -> None:
    refused: list[SettlementResult] = []
    served.write("after", *"abcd")
    receiver = served.subscriber("after", 4, on_refused=refused.append).start()
    taken = [receiver.receive(60) for _ in range(4)]
    deliveries = [delivery for delivery in taken if delivery is not None]
    deliveries[0].acknowledge()
    receiver.close()
    with caplog.at_level(logging.WARNING, "lapse_client"):
        deliveries[1].acknowledge()
        deliveries[2].cancel()
        receiver.acknowledge(deliveries[3:])
    assert [one.result for one in refused] == ["not_sent"] * 3
    assert len([record for record in caplog.records if "was not sent" in record.message]) == 3
    for wait in (True, False):
        if wait:
            with pytest.raises(Closed):
                receiver.settle("acknowledge", deliveries[1:], wait=True)
        else:
            assert receiver.settle("expire", deliveries[1:]) == []
    assert len(refused) >= 4
    assert [delivery.settled_as for delivery in deliveries] == ["acknowledge", "", "", ""]
    with pytest.raises(lapse_client.AlreadySettled):
        deliveries[0].cancel()
    until(lambda: served.depth("after")["available"] == 3, "only the first is acknowledged")


@pytest.mark.feature("Q8")
def test_a_settlement_after_the_end_of_an_asynchronous_subscriber_is_reported(served: Deployment) -> None:
    refused: list[SettlementResult] = []
    served.write("forgotten", "a")

    async def main() -> None:
        options = {"connection": served.connection, "on_refused": refused.append}
        async with QueueSubscriber(served.name("forgotten"), **options) as subscriber:
            delivery = await subscriber.receive(60)
        assert delivery is not None
        async with delivery:
            pass
        assert delivery.settled_as == ""
        with pytest.raises(Closed):
            await subscriber.settle("acknowledge", [delivery], wait=True)

    asyncio.run(main())
    assert [one.result for one in refused] == ["not_sent"]
    time.sleep(0.1)
    until(lambda: served.depth("forgotten")["available"] == 1, "it is back")
