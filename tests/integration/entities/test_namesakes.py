"""A queue that has the name of a deleted one is another queue, although both have messages of one topic (C13, C4)."""

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient

from lapse.protocol import event, topic
from lapse_client import DeadLetterReader
from support.consumers.kcat import Kcat
from support.kafka.log import Tail, until
from support.processes.deployment import Deploy, Deployment


def subscribed(one: Deployment, subscription: str) -> list[str]:
    """Subscribe, and return what names the deliveries of all three messages in settlements."""
    kcat = Kcat(one, "orders")
    kcat.ask("subscribe", subscription=subscription, max_backlog=3, heartbeat_timeout_ms=600_000)
    got = [dict(message.headers() or []) for message in kcat.deliveries(3, subscription)]
    return [
        f"{one['lapse-bookmark'].decode()}#{one['lapse-delivery-count'].decode()}@{one['lapse-epoch'].decode()}"
        for one in got
    ]


@pytest.mark.feature("C13", "C4", "D3")
def test_what_names_a_delivery_of_a_deleted_queue_settles_nothing_of_its_namesake(deploy: Deploy) -> None:
    one = deploy({"orders": {"lease_period": "10m", "leasing": "strict"}}).apply()
    one.worker().wait_for_shards(1)
    one.write("orders", "a", "b", "c")
    old = subscribed(one, "me")
    assert Kcat(one, "orders").ask("expire", subscription="me", bookmarks=old[2:])["settlements"]
    one.letters("orders", 1)
    with one.queue("orders") as queue:
        queue.delete(force=True)
    until(lambda: topic.changelog(one.app_id, one.name("orders")) not in listed(one), "its topics are removed", 40)
    one.workers[0].kill()

    one.apply()
    worker = one.worker().wait_for_shards(1)
    new = subscribed(one, "me")
    assert not set(old) & set(new)
    kcat = Kcat(one, "orders")

    def results(action: str, *bookmarks: str) -> list[str]:
        answer = kcat.ask(action, subscription="me", bookmarks=bookmarks)
        return [settled["result"] for settled in answer["settlements"]]

    for _ in range(2):  # after a take-over as well
        for action in ("cancel", "renew", "expire", "acknowledge"):
            assert results(action, old[0]) == ["stale"], action
        worker.kill()
        worker = one.worker().wait_for_shards(1)
    assert results("acknowledge", new[0]) == ["settled"]
    assert results("expire", new[2]) == ["settled"]
    one.letters("orders", 2)
    letters = [*DeadLetterReader(one.name("orders"), connection=one.connection)]
    assert [letter.value for letter in letters] == [b"c", b"c"], "it has died in both"
    epochs = [event.epoch_of(message.value()) for message in events(one)]
    assert epochs == sorted(epochs)
    assert len(set(epochs)) > 1


def listed(one: Deployment) -> set[str]:
    """The names of all topics."""
    return set(AdminClient({"bootstrap.servers": one.servers}).list_topics(timeout=15).topics)


def events(one: Deployment) -> list[Message]:
    """All records of the queue's events topic."""
    tail = Tail(one.servers, topic.events(one.name("orders")))
    try:
        return tail.drain()
    finally:
        tail.close()
