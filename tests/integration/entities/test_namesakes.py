"""A queue that has the name of a deleted one is another queue, although both have messages of one topic (C13, C4)."""

import pytest

from lapse.protocol import topic
from lapse_client import Admin, DeadLetterReader
from support.consumers.kcat import Kcat
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment


def subscribed(one: Deployment, subscription: str, queue: str = "orders") -> list[str]:
    """Subscribe, and return what names the deliveries of all three messages in settlements."""
    kcat = Kcat(one, queue)
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
    until(
        lambda: topic.changelog(one.app_id, one.name("orders")) not in one.connection.partitions(),
        "its topics are removed",
        40,
    )
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
    epochs = [one_event.epoch for one_event in one.events("orders")]
    assert epochs == sorted(epochs)
    assert len(set(epochs)) > 1


@pytest.mark.feature("C13", "Q18", "C64", "C65")
@pytest.mark.parametrize("again", [{"auto_delete_on_idle": "5m"}, {}], ids=["temporary", "permanent"])
def test_what_names_a_delivery_of_a_temporary_queue_settles_nothing_of_its_namesake(
    deploy: Deploy, again: dict[str, str]
) -> None:
    """Its events go with it, so nothing is left that has the last epoch."""
    one = deploy({}, definitions="topic").apply()
    one.worker()
    name, named = one.name("brief"), list[list[str]]()
    with Admin(one.app_id, connection=one.connection) as admin:
        for idle in ({"auto_delete_on_idle": "5m"}, again):
            admin.create_queue(name, **idle, lease_period="10m", leasing="strict")
            one.write("brief", "a", "b", "c")
            named.append(subscribed(one, "me", "brief"))
            if len(named) == 1:
                admin.delete_queue(name, force=True)
                until(lambda: not {name, topic.events(name)} & {*one.connection.partitions()}, "all is removed", 40)
    old, new = named
    assert not set(old) & set(new)
    kcat = Kcat(one, "brief")
    for bookmarks, result in ((old, "stale"), (new, "settled")):
        answer = kcat.ask("acknowledge", subscription="me", bookmarks=bookmarks[:1])
        assert [settled["result"] for settled in answer["settlements"]] == [result]
    first, then = (int(bookmarks[0].rpartition("@")[2]) for bookmarks in named)
    assert first < then, "clients leave out what a lower epoch has written"
