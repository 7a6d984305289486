"""Temporary queues and SOW topics: they delete themselves when nobody uses them, and not before (Q18, Q23, C39)."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient

import support.workers.impatient
from lapse.config import load
from lapse.protocol import topic
from lapse.protocol.command import Command
from lapse.runtime.topics.definitions import DefinitionsTopic
from lapse.transfer.side import Side
from lapse_client import Admin, Publisher, SowClient
from lapse_client.error import CommandFailed
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment, WorkerProcess, broker_now_ms

IDLE_MS = 2_500
LONG_MS = 2 * IDLE_MS
"""An idle time in which a busy machine asks for what has just come due."""
QUEUES = {
    "left": {
        "auto_delete_on_idle": "5m", "partitions": 2, "dead_letter_reasons": ["auto_deleted"],
        "topics": ["left{}", "absent{}"],
    },
    "listened": {"auto_delete_on_idle": "5m", "topics": ["listened{}", "absent{}"]},
    "watched": {"auto_delete_on_idle": "5m", "partitions": 2},
    "onward": {"auto_delete_on_idle": "5m", "forward_to": "kept{}"},
    "kept": {},
    "full": {"auto_delete_on_idle": "5m", "target_queue_depth": 1},
}  # fmt: skip
SHARDS = 8
LATER = ("later", "delayed", "removed", "left", "put")
GOES = {"expiration": "enabled", "dead_letter_reasons": ["auto_deleted"]}


def worker(one: Deployment, idle_ms: int = IDLE_MS) -> WorkerProcess:
    """The worker as it is, with idle times of seconds."""
    data = one.directory / f"data-{len(one.workers)}"
    return one.run([str(Path(support.workers.impatient.__file__)), str(one.config), str(data), str(idle_ms)])


def own(one: Deployment, stem: str) -> set[str]:
    there = one.connection.partitions()
    return set(topic.entity_topics(one.app_id, one.name(stem))) & set(there)


def named(one: Deployment, stem: str) -> set[str]:
    """Every topic whose name has that of an entity in it, events and dead letters included."""
    return {name for name in one.connection.partitions() if one.name(stem) in name or one.name(f"{stem}-in") in name}


def remove(one: Deployment, *topics: str) -> None:
    """Remove topics, as far as they are there."""
    there = sorted(one.connection.partitions().keys() & set(topics))
    admin = AdminClient({"bootstrap.servers": one.servers})
    for removed in admin.delete_topics(there).values():
        removed.result(15)


@pytest.mark.feature("Q18", "C39", "C25", "L14", "D4", "C52")
def test_a_queue_that_nobody_uses_deletes_itself_and_the_others_stay(deploy: Deploy) -> None:
    """With letters where they are asked for, over a crash, and each shard's use counts for all.

    A publish is use, even if so many messages wait for room that it is not read. A topic that is missing is no use, and
    ends nothing.
    """
    one = deploy(QUEUES).apply()
    remove(one, one.name("absent"))
    first = worker(one).wait_for_shards(SHARDS)
    one.write("left", "nobody", "came", partition=1)
    one.write("full", *map(str, range(3_000)))
    with one.subscriber("listened", 1), one.queue("watched") as watched:
        first.kill()
        second = worker(one).wait_for_shards(SHARDS)

        def looks() -> bool:
            watched.peek(top_n=1)
            one.write("full", "one more")
            time.sleep(0.2)
            return not own(one, "left")

        until(looks, "the queue that nobody uses is gone", 60)
        letters = one.letters("left", 2)
        reasons = {dict(letter.headers() or [])["lapse-reasons"] for letter in letters}
        assert reasons == {b"auto_deleted"}
        emitted = [event for event in one.events("left") if event.event == "deleted"]
        assert {event.detail for event in emitted} == {f"idle for {IDLE_MS // 1000} s"}
        assert sorted(event.partition for event in emitted) == [0, 1]
        # An open subscription, a look now and then, and forwarding: in use, for longer than the idle time.
        for stem in ("listened", "watched", "onward", "kept", "full"):
            assert len(own(one, stem)) == 3
    one.write("onward", "goes on")
    until(lambda: one.depth("kept")["depth"] == 1, "forwarding goes on")
    # Now nobody listens, looks or publishes any more.
    until(lambda: not any(own(one, stem) for stem in ("listened", "watched", "full")), "these are gone as well", 60)
    assert len(own(one, "onward")) == 3
    assert second.running
    assert one.depth("kept")["depth"] == 1


def ask(one: Deployment, stem: str, command: str, transfer: str, *bookmarks: str, to: str = "") -> None:
    """One stage of a transfer, as `lapse transfer` asks for it."""
    with Side(one.connection, one.name(stem), 20) as side:
        side.ask(Command(command=command, transfer=transfer, bookmarks=bookmarks, to=to))


@pytest.mark.feature("C50", "C77", "Q18", "C19", "L11")
def test_a_message_that_comes_due_is_still_there_and_a_transfer_keeps_its_queue(deploy: Deploy) -> None:
    """Scheduled, or delayed, further ahead than the idle time; expired; then at each stage of a transfer."""
    one = deploy({stem: {"auto_delete_on_idle": "5m", **GOES} for stem in LATER}).apply()
    worker(one, LONG_MS).wait_for_shards(len(LATER))
    name = one.name("put")
    one.write("removed", "x", headers=[("lapse-ttl-ms", b"%d" % (LONG_MS * 4 // 5))])
    one.write("put", "not confirmed", headers=[("lapse-transfer", f"{name}/t-put".encode())])
    one.write("left", "confirmed")
    one.write("delayed", "in a while")
    at_ms = broker_now_ms() + 2 * LONG_MS
    one.write("later", "end of day", headers=[("lapse-enqueue-at-ms", b"%d" % at_ms)])
    with one.subscriber("delayed") as subscriber:
        delivery = subscriber.receive(20)
        assert delivery is not None
        subscriber.settle("cancel", [delivery], delay_ms=2 * LONG_MS, wait=True)
        delayed_ms = broker_now_ms() + 2 * LONG_MS
    ask(one, "left", "transfer", "t-left", f"{one.name('left')}:0:0", to="elsewhere")
    ask(one, "left", "transfer_confirm", "t-left", f"{one.name('left')}:0:0>elsewhere:0:5")
    until(lambda: broker_now_ms() > at_ms, "the end of the day has come", 30)
    until(lambda: one.depth("later")["available"] == 1, "the message is there")
    ask(one, "later", "transfer", "t-later", f"{one.name('later')}:0:0", to="elsewhere")
    until(lambda: broker_now_ms() > delayed_ms, "the end of the delay has come", 30)
    until(lambda: one.depth("delayed")["available"] == 1, "the message is there")
    until(lambda: not own(one, "removed"), "the queue of the message that expired is gone", 30)
    (ended,) = [event.at_ms for event in one.events("removed") if event.event == "deleted"]
    (expired,) = [event.at_ms for event in one.events("removed") if "time_limit" in event.reasons]
    assert ended >= expired + LONG_MS, "a removal begins the idle time anew"
    until(lambda: not own(one, "delayed"), "nobody wanted what had been delayed", 30)
    (letter,) = one.letters("delayed", 1)
    assert dict(letter.headers() or [])["lapse-reasons"] == b"auto_deleted"
    unfinished = {
        "later": ("1 transferring", "transfer_cancel"),
        "left": ("1 transferring", "transfer_finish"),
        "put": ("1 unconfirmed", "transfer_discard"),
    }
    for stem, (what, end) in unfinished.items():
        assert own(one, stem), "what is handed over keeps it"
        with one.queue(stem) as queue:
            with pytest.raises(CommandFailed, match=f"{what}. Unfinished is transfer t-{stem}"):
                queue.delete(force=True)
            ask(one, stem, end, f"t-{stem}")
            queue.delete(force=True)


def said(letter: Message) -> dict[str, bytes]:
    return dict(letter.headers() or [])


@pytest.mark.feature("Q18", "Q23", "C39", "C50", "C65", "Q16", "L14", "D3")
def test_what_a_client_created_deletes_itself_and_its_topics_over_crashes(deploy: Deploy) -> None:
    """The worker dies when a SOW topic has been idle for long enough, and the next one carries the end out.

    It dies between the topics and the definition of a queue, whose creation the next one carries out once more; of
    another queue it has removed the own topics, and not what goes with it; of a third one all topics, and not the
    definition.
    """
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
        silent = {"auto_delete_on_idle": settings["auto_delete_on_idle"], "dead_letter": False}
        later = {"auto_delete_on_idle": "5m"}
        admin.create_queue(one.name("halfway"), topics=[one.name("halfway-in")], **{**silent, **later})
        admin.create_queue(one.name("bare"), **{**silent, **later})
        admin.create_sow_topic(one.name("book"), topic=one.name("book-updates"), **settings)
        for key in ("a", "b", "c"):
            publisher.publish(one.name("book"), b'{"n": 1}', key=key)
        publisher.flush()
        used_s = time.monotonic()
        time.sleep(IDLE_MS / 2_000)
        assert own(one, "book"), "it is not idle yet"
        time.sleep(max(0.0, used_s + IDLE_MS / 1_000 - time.monotonic()))
        with ThreadPoolExecutor(1) as threads:
            created = threads.submit(admin.create_queue, one.name("cut"), topics=[one.name("cut-in")], **silent)
            until(lambda: not first.running, "it died between topics and definition")
            remove(one, *topic.entity_topics(one.app_id, one.name("halfway")), *named(one, "bare"))
            second = worker(one)
            assert created.result().changed
        gone = {*topic.entity_topics(one.app_id, one.name("book")), one.name("book-updates")}
        until(lambda: not gone & one.connection.partitions().keys(), "it is gone, and the topic made with it", 60)
        until(lambda: not named(one, "halfway"), "what was left of the queue that was removed halfway", 30)
        until(lambda: not named(one, "cut"), "the queue that was created twice is gone, and all of its topics", 30)
        # The first worker may die between letters and journal. The next one writes them again, with the same ids (D3).
        letters = one.tail(topic.dead_letters(one.name("book")))
        letters.wait_for(lambda records: len({said(record)["lapse-id"] for record in records}) == 3, "three letters")
        assert {said(letter)["lapse-reasons"] for letter in letters.drain()} == {b"auto_deleted"}
        assert len({said(letter)["lapse-id"] for letter in letters.records}) == 3
        emitted = [event for event in one.events("book") if event.event == "deleted"]
        assert {event.detail for event in emitted} == {f"the SOW topic, idle for {IDLE_MS // 1000} s"}
        assert own(one, "watched"), "somebody is subscribed"
        left = {one.name("prices"), one.name("watched")}
        until(lambda: set(DefinitionsTopic(load(one.config)).read()) == left, "its definition went, too")
    assert own(one, "prices"), "it is not temporary"
    assert second.running
