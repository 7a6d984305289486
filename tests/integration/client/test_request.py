"""Requests and replies over real workers: crashes, deadlines, rights, a lost queue of replies (Q27, C75)."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lapse.core.error_code import ErrorCode
from lapse_client import (
    CommandFailed,
    Delivery,
    EntityDeleted,
    InvalidPublication,
    NoReply,
    Publisher,
    Queue,
    QueueSubscriber,
    UnknownEntity,
    aio,
)
from support.kafka.log import until
from support.processes.entitled import Entitled

pytestmark = pytest.mark.feature("Q27", "C75")


@pytest.fixture
def office(kafka: str, tmp_path: Path) -> Iterator[Entitled]:
    """Alice asks and bob answers; carol may publish, and create nothing; oscar is the operator."""
    deployment = Entitled(kafka, tmp_path, {})
    deployment.users = {
        "alice": {
            "entitlements": {
                "quotes{}": {"publish": True},
                "slow{}": {"publish": True},
                "replies[.]alice[.].*": {"create": True, "read": True},
            }
        },
        "bob": {"entitlements": {"quotes{}": {"read": True}, "replies[.].*": {"publish": True}}},
        "carol": {"entitlements": {"quotes{}": {"publish": True}, "other{}": {"create": True}}},
        "oscar": {"entitlements": {".*": {"admin": True}}},
    }
    queues = {"quotes": {"expiration": "enabled", "lease_period": "20s"}, "slow": {}}
    deployment.configure(queues, definitions="topic")
    deployment.apply().worker().wait_for_shards(2)
    yield deployment
    deployment.close()


def test_requests_are_answered_over_crashes_deadlines_and_a_lost_queue_of_replies(office: Entitled) -> None:
    publisher = Publisher(office.as_user("alice"), deployment=office.app_id).start()
    with pytest.raises(InvalidPublication, match="ignores lifetimes"):
        publisher.request(office.name("slow"), b"A", timeout=10)
    replies = _replies_of_a_program(office, publisher)
    with office.subscriber_of("bob", "quotes") as consumer:
        _reply_over_a_crash(office, publisher, consumer)
        _reply_too_late(office, publisher, consumer)
        _reply_through_a_new_queue(office, publisher, consumer, replies)
    publisher.close()


def _replies_of_a_program(office: Entitled, publisher: Publisher) -> str:
    """Ask a program, many times and asynchronously; return the name of the queue of replies."""
    name, seen = office.name("quotes"), list[Delivery]()

    def answer(request: Delivery) -> None:
        seen.append(request)
        request.reply(b"first " + (request.value or b""))
        request.reply(b"second")

    with office.subscriber_of("bob", "quotes") as consumer:
        # Nobody else may make a queue of replies.
        with Publisher(office.as_user("carol"), deployment=office.app_id) as other:
            with pytest.raises(CommandFailed) as refused:
                other.request(name, b"A", timeout=10)
            assert refused.value.code == ErrorCode.FORBIDDEN
        thread = threading.Thread(target=consumer.run, args=[answer])
        thread.start()
        reply = publisher.request(name, b"A", timeout=20)
        assert (reply.value, reply.expires_at_ms) == (b"first A", seen[0].expires_at_ms)
        replies = reply.bookmark.topic
        pending = [publisher.submit_request(name, b"%d" % number, timeout=20) for number in range(50)]
        assert [one.result().value for one in pending] == [b"first %d" % number for number in range(50)]

        async def asynchronous() -> bytes | None:
            alice, reply_queue = office.as_user("alice"), f"{replies}x"
            async with aio.Publisher(alice, deployment=office.app_id, reply_queue=reply_queue) as asking:
                return (await asking.request(name, b"B", timeout=20)).value

        assert asyncio.run(asynchronous()) == b"first B"
        consumer.stop()
    thread.join()
    return replies


def _reply_over_a_crash(office: Entitled, publisher: Publisher, consumer: QueueSubscriber) -> None:
    """The worker is killed between the request and its reply."""
    name = office.name("quotes")
    killed = publisher.submit_request(name, b"K", timeout=60)
    request = consumer.receive(20)
    assert request is not None
    late = publisher.submit_request(name, b"too late", timeout=0.2)
    office.workers[0].kill()
    request.reply(b"over a crash")
    request.acknowledge()
    with pytest.raises(NoReply):
        late.result()
    office.worker().wait_for_shards(4)
    assert killed.result().value == b"over a crash"


def _reply_too_late(office: Entitled, publisher: Publisher, consumer: QueueSubscriber) -> None:
    """A reply after the deadline reaches nobody."""
    late = publisher.submit_request(office.name("quotes"), b"L", timeout=4)
    request = next(one for one in consumer.messages(20) if one.value == b"L")
    with pytest.raises(NoReply):
        late.result()
    request.reply(b"late")
    request.acknowledge()


def _reply_through_a_new_queue(office: Entitled, publisher: Publisher, consumer: QueueSubscriber, replies: str) -> None:
    """The queue of replies is deleted while somebody waits."""
    waiting = publisher.submit_request(office.name("quotes"), b"G", timeout=60)
    request = consumer.receive(20)
    assert request is not None
    with Queue(replies, connection=office.as_user("oscar")) as operator:
        until(lambda: operator.depth()["depth"] == 0, "the late reply has gone, too", 20)
        operator.delete(force=True)

    def replied() -> bool:
        try:
            return bool(request.reply(b"again"))
        except UnknownEntity:  # as a consumer's retries would find it
            return False

    def is_back() -> bool:
        try:
            with Queue(replies, connection=office.as_user("oscar"), timeout_s=5) as again:
                return again.depth()["subscriptions"] == 1
        except (CommandFailed, EntityDeleted, UnknownEntity, TimeoutError):
            return False

    until(is_back, "the queue of replies is made again", 40)
    until(replied, "the reply can be sent", 20)
    assert waiting.result().value == b"again"
    request.acknowledge()
