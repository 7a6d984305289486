"""Requests and their replies: who is answered, until when, and what becomes of the rest (Q27, C75)."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lapse.protocol import topic as names
from lapse.testing import Lapse
from lapse_client import (
    Admin,
    Closed,
    CommandFailed,
    Delivery,
    EntityDeleted,
    InvalidPayload,
    InvalidPublication,
    JsonSerde,
    NoReply,
    Publisher,
    UnknownEntity,
    aio,
)
from lapse_client.kafka.transport import Transport
from lapse_client.request.reply import PendingReply

pytestmark = pytest.mark.feature("Q27", "C75", "X8")


@contextmanager
def answering(lapse: Lapse, handler: Callable[[Delivery], object], queue: str = "quotes") -> Iterator[None]:
    """A consumer in a thread of its own."""
    subscriber = lapse.subscriber(queue, 10).start()
    thread = threading.Thread(target=subscriber.run, args=[handler])
    thread.start()
    try:
        yield
    finally:
        subscriber.close()
        thread.join()


def replies(lapse: Lapse) -> str:
    (name,) = [name for name in lapse.connection.queues() if name.startswith("replies.")]
    return name


def test_a_request_is_answered_and_its_reply_has_its_deadline(lapse: Lapse) -> None:
    lapse.queue("quotes", expiration="enabled")
    asked: list[tuple[int | None, dict[str, Any]]] = []

    def answer(request: Delivery) -> None:
        asked.append((request.expires_at_ms, dict(request.headers)))
        request.reply(b"7 " + (request.value or b""), "key", headers={"currency": "EUR"})

    with lapse.publisher() as publisher, answering(lapse, answer):
        reply = publisher.request("quotes", b"A", key="A", timeout=30, headers={"from": "me"})
        (deadline_ms, headers), name = asked[0], replies(lapse)
        assert (reply.value, reply.key) == (b"7 A", b"key")
        assert reply.headers == [("currency", b"EUR"), ("correlation_id", headers["correlation_id"])]
        assert headers["reply_to"].decode() == name
        assert headers["from"] == b"me"
        assert reply.expires_at_ms == deadline_ms == lapse.clock.now_ms + 30_000
        assert publisher.request("quotes", b"B", timeout=30).value == b"7 B"
        assert replies(lapse) == name, "one queue for all replies"
        lapse.until(lambda: lapse.depth("quotes") == lapse.depth(name) == 0)
    assert names.dead_letters(name) not in lapse.connection.partitions(), "it has no letters"


def test_requests_and_replies_have_types(lapse: Lapse) -> None:
    lapse.queue("quotes", expiration="enabled")
    serde = JsonSerde(dict[str, int])

    def answer(request: Delivery) -> None:
        request.reply({"twice": 2 * request.payload["n"]} if request.payload["n"] else {"twice": "none"})

    subscriber = lapse.subscriber("quotes", 10, deserializer=serde, serializer=lambda value: json.dumps(value).encode())
    with subscriber, Publisher(lapse.connection, serializer=serde, deserializer=serde) as publisher:
        thread = threading.Thread(target=subscriber.run, args=[answer])
        thread.start()
        assert publisher.request("quotes", {"n": 4}, timeout=30).payload == {"twice": 8}
        reply = publisher.request("quotes", {"n": 0}, timeout=30)
        with pytest.raises(InvalidPayload, match=f"the reply {reply.bookmark}: the payload is no .*twice"):
            _ = reply.payload
        subscriber.close()
        thread.join()


def test_many_requests_wait_side_by_side_and_the_first_reply_counts(lapse: Lapse) -> None:
    lapse.queue("quotes", expiration="enabled")

    def answer(request: Delivery) -> None:
        request.reply(b"first " + (request.value or b""))
        request.reply(b"second")

    with lapse.publisher() as publisher, answering(lapse, answer):
        pending = [publisher.submit_request("quotes", b"%d" % number, timeout=30) for number in range(20)]
        assert [one.result().value for one in pending] == [b"first %d" % number for number in range(20)]
        lapse.until(lambda: lapse.depth(replies(lapse)) == 0)


def test_a_reply_after_the_deadline_is_no_reply(lapse: Lapse) -> None:
    lapse.queue("quotes", expiration="enabled", lease_period="60s")
    with lapse.publisher() as publisher, lapse.subscriber("quotes") as subscriber:
        pending = publisher.submit_request("quotes", b"A", timeout=5)
        request = subscriber.receive(timeout=5)
        assert request is not None
        lapse.clock.advance(5)
        request.reply(b"too late")
        request.acknowledge()
        with pytest.raises(NoReply, match="quotes: no reply within 5 s"):
            pending.result()
        assert lapse.depth(replies(lapse)) == lapse.depth("quotes") == 0
        assert lapse.dead_letters("quotes") == [], "the lease protected it"
        publisher.submit_request("quotes", b"B", timeout=5)
        lapse.clock.advance(5)
        assert [letter.reasons for letter in lapse.dead_letters("quotes")] == []
        lapse.clock.advance(60)
        assert [letter.value for letter in lapse.dead_letters("quotes")] == [b"B"], "what nobody worked on expires"


def test_a_worker_that_crashes_between_request_and_reply_loses_neither(lapse: Lapse) -> None:
    lapse.queue("quotes", expiration="enabled")
    with lapse.publisher() as publisher, lapse.subscriber("quotes") as subscriber:
        pending = publisher.submit_request("quotes", b"A", timeout=30)
        lapse.crash()
        request = subscriber.receive(timeout=5)
        assert request is not None
        lapse.crash()
        request.reply(b"7")
        lapse.crash()
        request.acknowledge()
        assert pending.result().value == b"7"


def test_a_queue_that_ignores_lifetimes_takes_no_requests(lapse: Lapse) -> None:
    lapse.queue("slow")
    lapse.sow("prices")
    with lapse.publisher() as publisher:
        with pytest.raises(InvalidPublication, match="slow ignores lifetimes"):
            publisher.request("slow", b"A", timeout=1)
        with pytest.raises(InvalidPublication, match="prices is a SOW topic"):
            publisher.request("prices", b"A", timeout=1)
        with pytest.raises(UnknownEntity):
            publisher.request("nowhere", b"A", timeout=1)
        for timeout in (0, -1, True, "5", float("nan"), float("inf")):
            with pytest.raises(InvalidPublication, match="expected seconds, more than 0"):
                publisher.request("slow", b"A", timeout=timeout)  # type: ignore[arg-type]
        with pytest.raises(InvalidPublication, match="header reply_to: a request sets it"):
            publisher.request("slow", b"A", timeout=1, headers={"reply_to": "me"})
    assert lapse.depth("slow") == 0


def test_a_reply_queue_that_is_gone_is_made_again(lapse: Lapse) -> None:
    lapse.queue("quotes", expiration="enabled", lease_period="1h")
    with lapse.publisher() as publisher, lapse.subscriber("quotes") as subscriber:
        waiting = publisher.submit_request("quotes", b"A", timeout=3_000)
        first = subscriber.receive(timeout=5)
        assert first is not None
        name = replies(lapse)
        with lapse.queue_client(name) as client:
            client.delete(force=True)

        def is_back() -> bool:
            lapse.clock.advance(1)
            try:
                with lapse.queue_client(name) as again:
                    return again.depth()["subscriptions"] == 1
            except (EntityDeleted, UnknownEntity):
                return False

        lapse.until(is_back)
        first.reply(b"7")
        assert waiting.result().value == b"7"
        first.acknowledge()


def test_what_is_no_request_is_not_answered(lapse: Lapse) -> None:
    lapse.queue("quotes", expiration="enabled")
    lapse.topic("plain")
    with lapse.publisher() as publisher, lapse.subscriber("quotes", 10) as subscriber:
        publisher.publish("quotes", b"none")
        for bad in ("lapse.quotes.commands", "a b", "lapse-quotes-changelog", b"\xff", ""):
            publisher.publish("quotes", b"bad", headers={"reply_to": bad})
        publisher.publish("quotes", b"gone", headers={"reply_to": "nobody"})
        publisher.publish("quotes", b"topic", headers={"reply_to": "plain"}, ttl_ms=5_000)
        refused: list[str] = []
        for delivery in subscriber.messages(timeout=5):
            try:
                delivery.reply(b"7")
            except (InvalidPublication, UnknownEntity) as error:
                refused.append(str(error))
            else:
                assert delivery.value == b"topic"
                with pytest.raises(InvalidPublication, match="the reply has the request's"):
                    delivery.reply(b"7", headers={"lapse-ttl-ms": "5"})
            delivery.acknowledge()
        assert len(refused) == 7
        assert refused[0].endswith("has no header reply_to: nobody waits for a reply to it")
        assert [text for text in refused[1:6] if "no queue or topic that replies may go to" in text] == refused[1:6]
        (record,) = lapse.records("plain")
        assert [name for name, _ in record.headers] == ["lapse-expires-at-ms"], "it had no correlation_id"


def test_a_publisher_that_is_closed_waits_no_longer(lapse: Lapse) -> None:
    lapse.queue("quotes", expiration="enabled")
    with lapse.publisher() as publisher:
        pending = publisher.submit_request("quotes", b"A", timeout=30)
    with pytest.raises(Closed):
        pending.result()
    with pytest.raises(Closed):
        publisher.request("quotes", b"A", timeout=30)
    name = replies(lapse)
    lapse.clock.advance(301)
    lapse.clock.advance(60)
    assert not [topic for topic in lapse.connection.partitions() if name in topic and "events" not in topic]


def test_the_asynchronous_client_asks_and_replies(lapse: Lapse) -> None:
    lapse.queue("quotes", expiration="enabled")

    async def answer(request: aio.Delivery) -> None:
        bookmark = await request.reply(f"7 {request.payload}")
        assert bookmark.topic.startswith("replies.")

    async def main() -> list[bytes | None]:
        subscribing = aio.QueueSubscriber("quotes", 10, deserializer=json.loads)
        async with aio.Publisher(serializer=json.dumps) as publisher, subscribing as subscriber:
            consumer = asyncio.create_task(subscriber.run(answer, tasks=4))
            asked = (publisher.request("quotes", number, timeout=30) for number in range(10))
            answered = [reply.value for reply in await asyncio.gather(*asked)]
            await subscriber.close()
            await consumer
            with pytest.raises(NoReply):
                await publisher.request("quotes", "nobody", timeout=0.05)
        return answered

    assert asyncio.run(main()) == [b"7 %d" % number for number in range(10)]


def test_programs_create_what_they_need(lapse: Lapse) -> None:
    with Admin() as admin, Publisher(reply_queue="mine") as publisher:
        assert admin.create_queue("quotes", expiration="enabled").changed
        assert not admin.create_queue("quotes", expiration="enabled").changed
        for code, name, settings in (("exists", "quotes", {}), ("invalid_argument", "other", {"lease": "1s"})):
            with pytest.raises(CommandFailed) as refused:
                admin.create_queue(name, **settings)
            assert refused.value.code == code
        assert admin.create_sow_topic("prices").shards == 1
        with answering(lapse, lambda request: request.reply(b"7")):
            assert publisher.request("quotes", b"A", timeout=30).bookmark.topic == "mine"


def test_nobody_waits_for_the_reply_to_a_request_that_is_cancelled_while_it_is_sent(
    lapse: Lapse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place would be kept until the publisher is closed."""
    lapse.queue("quotes", expiration="enabled")
    begun, go_on = threading.Event(), threading.Event()
    send = Publisher.submit_request

    def slow(publisher: Publisher, *arguments: Any, **options: Any) -> Any:
        begun.set()
        go_on.wait(20)
        return send(publisher, *arguments, **options)

    monkeypatch.setattr(Publisher, "submit_request", slow)

    async def main() -> None:
        async with aio.Publisher(lapse.connection) as publisher:
            requesting = asyncio.create_task(publisher.request("quotes", b"1", timeout=1_000))
            await asyncio.to_thread(begun.wait, 20)
            requesting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await requesting
            go_on.set()
            async with asyncio.timeout(20):
                while not lapse.records("quotes") or publisher._twin._replies._pending:  # noqa: ASYNC110  # threads end it
                    await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_timeout_longer_than_a_lock_can_wait_is_waited_for() -> None:
    """A request may live for so long, so its message would be there, and nobody would wait."""
    pending = PendingReply("quotes", 1e10, Transport(), lambda: 0.0, lambda: None)
    answering = threading.Timer(0.05, pending.future.set_exception, [NoReply("quotes", 0)])
    answering.start()
    with pytest.raises(NoReply):
        pending.result()
