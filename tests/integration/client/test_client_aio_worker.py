"""The asynchronous client against a real worker: what it does beside receiving; and whose heartbeat timeout holds."""

import asyncio
import os
import re
import subprocess
import sys

import pytest

from lapse_client import Publisher
from lapse_client.aio import DeadLetterReader, Queue, QueueSubscriber, UnknownEntity, history, replay
from support.kafka.log import until
from support.processes.deployment import Deployment

QUEUES = {
    "looked": {"max_deliveries": 1},
    "lost": {"heartbeat_timeout": "1s"},
    "kept": {"heartbeat_timeout": "1s", "lease_period": "60s"},
}


@pytest.mark.feature("X3", "Q15", "Q21", "D2", "Q19", "D6")
def test_queue_letters_replay_and_history_are_there_for_asyncio(served: Deployment) -> None:
    name, connection = served.name("looked"), served.connection
    places = [served.bookmark("looked", written) for written in served.write("looked", *(f"{n}" for n in range(6)))]
    until(lambda: served.depth("looked")["available"] == 6, "six messages are there")

    async def main() -> None:
        async with Queue(name, connection=connection) as queue:
            assert (await queue.depth())["available"] == 6
            assert [message.bookmark for message in await queue.peek(top_n=2)] == places[:2]
            await queue.pause()
            await queue.resume()
            assert {one.result for one in await queue.acknowledge(places[:1])} == {"settled"}
            assert {one.result for one in await queue.expire(places[1:3])} == {"settled"}
            assert {one.result for one in await queue.cancel(places[3:4])} == {"not_leased"}
            assert (await queue.purge())["removed"] == 3
            with pytest.raises(ValueError, match="either bookmarks or a filter"):
                await queue.acknowledge()
        letters = [letter async for letter in DeadLetterReader(name, connection=connection)]
        assert [str(letter.origin) for letter in letters] == places[1:3]
        assert {letter.reasons for letter in letters} == {("forced_expire",)}
        assert [record.value async for record in replay(places[4], connection=connection)] == [b"4", b"5"]
        life = await history(places[1], connection=connection)
        assert life.moments[0].what == "arrived"
        assert "dead_lettered" in [moment.what for moment in life.moments]
        with pytest.raises(UnknownEntity):
            async for _ in DeadLetterReader("nobody-has-this", connection=connection):
                pass

    asyncio.run(main())


@pytest.mark.feature("X3", "D2")
def test_who_follows_gets_what_comes_later_and_can_be_cancelled(served: Deployment) -> None:
    """A reader that waits in a thread does not keep the program from ending."""
    (first,) = served.write("looked", "followed")

    async def main() -> None:
        seen: asyncio.Queue[bytes | None] = asyncio.Queue()

        async def follow() -> None:
            async for record in replay(served.bookmark("looked", first), connection=served.connection, follow=True):
                seen.put_nowait(record.value)

        task = asyncio.create_task(follow())
        assert await seen.get() == b"followed"
        served.write("looked", "later")
        assert await seen.get() == b"later"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


@pytest.mark.feature("X3")
def test_who_waits_for_a_submitted_record_gets_its_bookmark(served: Deployment) -> None:
    """Nothing else has to be called: a future that waits for a later `flush` would wait for ever here."""
    with Publisher(served.connection) as publisher:
        first = publisher.submit(served.name("looked"), "first").result(30)
        second = publisher.submit(served.name("looked"), "second").result()
        assert (second.topic, second.offset) == (first.topic, first.offset + 1)


KILLED = """
import sys
from lapse_client import QueueSubscriber
with QueueSubscriber(sys.argv[1]) as subscriber:
    print(subscriber.receive(60).value, flush=True)
    sys.stdin.read()
"""


@pytest.mark.feature("Q5", "X3")
def test_a_client_that_asks_for_no_timeout_has_the_queues(served: Deployment) -> None:
    served.write("lost", "x")
    command = [sys.executable, "-c", KILLED, served.name("lost")]
    environment = os.environ | served.environment()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"b'x'\n"
        client.kill()
    until(lambda: any(event.event == "unsubscribed" for event in served.events("lost")), "the client is missed")
    (emitted,) = [event.detail for event in served.events("lost") if event.event == "unsubscribed"]
    silence_ms = int(re.search(r"not heard of for (\d+) ms", emitted)[1])
    assert 1_000 <= silence_ms < 10_000, emitted


@pytest.mark.feature("Q5", "X3")
def test_and_heartbeats_often_enough_for_it(served: Deployment) -> None:
    served.write("kept", "x")

    async def main() -> int:
        async with QueueSubscriber(served.name("kept"), connection=served.connection) as subscriber:
            delivery = await subscriber.receive(60)
            assert delivery is not None
            await asyncio.sleep(3)
            (result,) = await subscriber.settle("acknowledge", [delivery], wait=True)
            assert result.settled
            return delivery.delivery_count

    assert asyncio.run(main()) == 1
    assert not [event for event in served.events("kept") if event.event == "lease_returned"]
