"""Temporary queues and SOW topics: they delete themselves when nobody uses them, and not before (Q18, Q23, C39)."""

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import support.impatient_worker
from lapse.config import load
from lapse.protocol import topic
from lapse.protocol.command import Command
from lapse.runtime.topics.definitions import DefinitionsTopic
from lapse.transfer.side import Side
from lapse_client import Admin, Publisher, SowClient
from lapse_client.error import CommandFailed
from support.deployment import Deploy, Deployment, WorkerProcess, broker_now_ms
from support.log import until

IDLE_MS = 2_500
QUEUES = {
    "left": {"auto_delete_on_idle": "5m", "partitions": 2, "dead_letter_reasons": ["auto_deleted"]},
    "listened": {"auto_delete_on_idle": "5m"},
    "watched": {"auto_delete_on_idle": "5m", "partitions": 2},
    "onward": {"auto_delete_on_idle": "5m", "forward_to": "kept{}"},
    "kept": {},
}
SHARDS = 7
LATER = {"later": {"auto_delete_on_idle": "5m", "dead_letter_reasons": ["auto_deleted"]}}


def worker(one: Deployment) -> WorkerProcess:
    """The worker as it is, with idle times of seconds."""
    data = one.directory / f"data-{len(one.workers)}"
    return one.run([str(Path(support.impatient_worker.__file__)), str(one.config), str(data), str(IDLE_MS)])


def own(one: Deployment, stem: str) -> set[str]:
    there = one.connection.partitions()
    return set(topic.own(one.app_id, one.name(stem))) & set(there)


@pytest.mark.feature("Q18", "C39", "C25", "L14", "D4")
def test_a_queue_that_nobody_uses_deletes_itself_and_the_others_stay(deploy: Deploy) -> None:
    """With letters where they are asked for, over a crash, and each shard's use counts for all."""
    one = deploy(QUEUES).apply()
    first = worker(one).wait_for_shards(SHARDS)
    one.write("left", "nobody", "came", partition=1)
    with one.subscriber("listened", 1), one.queue("watched") as watched:
        first.kill()
        second = worker(one).wait_for_shards(SHARDS)

        def looks() -> bool:
            watched.peek(top_n=1)
            time.sleep(0.2)
            return not own(one, "left")

        until(looks, "the queue that nobody uses is gone", 60)
        letters = one.letters("left", 2)
        reasons = {dict(letter.headers() or [])["lapse-reasons"] for letter in letters}
        assert reasons == {b"auto_deleted"}
        told = [event for event in one.events("left") if event.event == "deleted"]
        assert {event.detail for event in told} == {f"idle for {IDLE_MS // 1000} s"}
        assert sorted(event.partition for event in told) == [0, 1]
        # An open subscription, a look now and then, and forwarding: in use, for longer than the idle time.
        for stem in ("listened", "watched", "onward", "kept"):
            assert len(own(one, stem)) == 3
    one.write("onward", "goes on")
    until(lambda: one.depth("kept")["depth"] == 1, "forwarding goes on")
    # Now nobody listens or looks any more.
    until(lambda: not own(one, "listened") and not own(one, "watched"), "these are gone as well", 60)
    assert len(own(one, "onward")) == 3
    assert second.running
    assert one.depth("kept")["depth"] == 1


@pytest.mark.feature("C50", "C77", "Q18")
def test_a_message_that_comes_due_is_still_there_and_a_transfer_keeps_its_queue(deploy: Deploy) -> None:
    """Scheduled further ahead than the idle time; then held for a transfer that nobody finishes for a while."""
    one = deploy(LATER).apply()
    worker(one).wait_for_shards(1)
    at_ms = broker_now_ms() + 2 * IDLE_MS
    one.write("later", "end of day", headers=[("lapse-enqueue-at-ms", b"%d" % at_ms)])
    until(lambda: broker_now_ms() > at_ms + IDLE_MS // 4, "its instant has come", 30)
    assert one.depth("later")["available"] == 1
    assert own(one, "later"), "the queue is there"
    transfer, bookmarks = "t-kept", (f"{one.name('later')}:0:0",)
    with one.queue("later") as later, Side(one.connection, one.name("later"), 20) as side:
        side.ask(Command(command="transfer", transfer=transfer, bookmarks=bookmarks, to="elsewhere"))
        time.sleep(2 * IDLE_MS / 1000)
        assert own(one, "later"), "what is handed over keeps it"
        with pytest.raises(CommandFailed, match=f"1 transferring. Unfinished is transfer {transfer}"):
            later.delete(force=True)
        side.ask(Command(command="transfer_cancel", transfer=transfer))
        later.delete(force=True)


@pytest.mark.feature("Q18", "Q23", "C39", "C50", "C65", "Q16", "L14")
def test_a_sow_topic_that_a_client_created_deletes_itself_and_its_topic_over_a_crash_at_the_instant(
    deploy: Deploy,
) -> None:
    """The worker is killed when the topic has been idle for long enough; the next one carries the end out."""
    one = deploy({}, definitions="topic")
    one.configure({}, {"prices": {}}, definitions="topic")
    one.apply()
    first = worker(one).wait_for_shards(1)
    settings = {"auto_delete_on_idle": f"{IDLE_MS}ms", "dead_letter_reasons": ["auto_deleted"], "partitions": 2}
    with (
        Admin(one.app_id, connection=one.connection) as admin,
        Publisher(one.connection) as publisher,
        ExitStack() as stack,
    ):
        admin.create_sow_topic(one.name("watched"), topic=one.name("watched-updates"), **settings)
        client = stack.enter_context(SowClient(one.name("watched"), connection=one.connection))
        stack.enter_context(client.sow_and_subscribe())
        admin.create_sow_topic(one.name("book"), topic=one.name("book-updates"), **settings)
        for key in ("a", "b", "c"):
            publisher.publish(one.name("book"), b'{"n": 1}', key=key)
        publisher.flush()
        used_s = time.monotonic()
        time.sleep(IDLE_MS / 2_000)
        assert own(one, "book"), "it is not idle yet"
        time.sleep(max(0.0, used_s + IDLE_MS / 1_000 - time.monotonic()))
        first.kill()
        second = worker(one)
        gone = {*topic.own(one.app_id, one.name("book")), one.name("book-updates")}
        until(lambda: not gone & one.connection.partitions().keys(), "it is gone, and the topic made with it", 60)
        letters = one.letters("book", 3)
        assert {dict(letter.headers() or [])["lapse-reasons"] for letter in letters} == {b"auto_deleted"}
        told = [event for event in one.events("book") if event.event == "deleted"]
        assert {event.detail for event in told} == {f"the SOW topic, idle for {IDLE_MS // 1000} s"}
        assert own(one, "watched"), "somebody is subscribed"
        left = {one.name("prices"), one.name("watched")}
        until(lambda: set(DefinitionsTopic(load(one.config)).read()) == left, "its definition went, too")
    assert own(one, "prices"), "it is not temporary"
    assert second.running
