"""Workers that are killed, frozen, joined and stopped while messages flow; afterwards the account has to balance."""

import json
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import orjson
import psutil
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import AdminClient

import support.workers.fenced
from lapse.core.shard.changelog import claim_key, epoch_header
from lapse.protocol import topic
from lapse.protocol.event import Event
from lapse_client import Queue
from lapse_spark.account.journal import Journal
from support.consumers.kcat import Kcat
from support.flow.load import FLOWING, Load, account
from support.kafka.log import texts, until
from support.processes.deployment import Deploy, Deployment, broker_now_ms
from support.suite.at_length import AT_LENGTH


@pytest.mark.feature("Q16", "Q17", "C5")
def test_shards_move_between_workers_that_come_and_go(deploy: Deploy) -> None:
    """Four shards: a second worker joins and takes some; the first is killed, the second has all; a third joins."""
    here = deploy({"flow": {**FLOWING, "partitions": 4}}, session_timeout="2s").apply()
    first, some = here.worker().wait_for_shards(4), 300 if AT_LENGTH else 100
    with Load(here, "flow", 4, rate=200) as load:
        load.flow(some)
        second = here.worker().wait_for_shards(1)
        load.flow(some)
        first.kill()
        second.wait_for_shards(4)
        load.flow(some)
        third = here.worker().wait_for_shards(1)
        load.flow(some)
        assert second.stop() == 0
        third.wait_for_shards(4)
        load.flow(some)
        load.drain()
    account(here, "flow", set(load.written)).assert_balanced()


@pytest.mark.feature("Q16", "C1", "Q5")
def test_a_frozen_worker_ends_when_it_thaws_and_what_it_writes_is_void(deploy: Deploy) -> None:
    """A worker is stopped for longer than its session. Another has its shards then, so it must not act on its state."""
    here = deploy({"flow": {**FLOWING, "partitions": 2}}, session_timeout="2s").apply()
    zombie = here.worker().wait_for_shards(2)
    with Load(here, "flow", 2) as load:
        load.flow(200)
        zombie.signal(signal.SIGSTOP)
        other = here.worker().wait_for_shards(2, 60)
        load.flow(300)
        zombie.signal(signal.SIGCONT)
        assert zombie.wait(20) == 70
        assert "stood still" in zombie.text
        load.flow(300)
        assert other.running
        load.drain()
    account(here, "flow", set(load.written)).assert_balanced()


@pytest.mark.feature("Q16", "C1", "C5")
def test_a_shard_that_another_worker_has_taken_over_costs_the_others_nothing(deploy: Deploy) -> None:
    """A busy machine kept a worker from the group, which gave its shards away: it ended, and all shards with it.

    So it did where it was still taking a shard over.
    """
    here = deploy({"lost": {"partitions": 1}, "kept": {"partitions": 1}, "coming": {"partitions": 1}}).apply()
    here.write("coming", "c")
    fenced = str(Path(support.workers.fenced.__file__))
    worker = here.run([fenced, str(here.config), str(here.directory / "data"), here.name("coming")])
    worker.wait_for_shards(2)
    given_up = f"{here.name('coming')}, partition 0: another worker has taken the shard over"
    until(lambda: given_up in worker.text, "it has noticed")
    assert here.depth("lost")["depth"] == 0, "it serves"
    changelog = topic.changelog(here.app_id, here.name("lost"))
    foreign, another = _begun_transaction(here), Producer({"bootstrap.servers": here.servers})
    another.list_topics(changelog, 20)  # it is connected
    _write_garbage(foreign, changelog)  # hides what another worker writes, and stays open
    another.produce(changelog, b"another worker", claim_key(2), partition=0, headers=epoch_header(2))
    assert another.flush(10) == 0
    here.write("lost", "a")
    here.write("kept", "b")
    given_up = f"{here.name('lost')}, partition 0: another worker has taken the shard over; epoch 1 is at its end"
    until(lambda: given_up in worker.text, "it has noticed")
    with here.subscriber("kept") as kept:
        delivery = kept.receive(20)
        assert delivery is not None
        kept.settle("acknowledge", [delivery], wait=True)
    other = here.worker().wait_for_shards(1, 60)
    until(lambda: (worker.text + other.text).count("; epoch 3") == 2, "one of them has each", 40)
    for stem, value in (("lost", b"a"), ("coming", b"c")):
        with here.subscriber(stem) as lost:
            delivery = lost.receive(20)
            assert delivery is not None
            assert (delivery.value, delivery.delivery_count) == (value, 1)
    assert worker.running
    assert "never retrieved" not in worker.text
    foreign.abort_transaction(15)


def _begun_transaction(here: Deployment) -> Producer:
    producer = Producer({"bootstrap.servers": here.servers, "transactional.id": here.name("foreign")})
    producer.init_transactions(15)
    producer.begin_transaction()
    return producer


def _write_garbage(producer: Producer, changelog: str) -> None:
    producer.produce(changelog, b"garbage", key=b"foreign", partition=0)
    assert producer.flush(15) == 0


@pytest.mark.feature("Q5", "Q9", "Q16", "C4", "C5", "Q8", "L5", "C19", "C21")
def test_everything_that_a_shard_knows_is_there_after_a_crash(deploy: Deploy) -> None:
    """Leases with their holders and ends, counts, cancels, delays, the schedule, pause, order, and what is settled."""
    here = deploy({"state": {"lease_period": "5m", "max_lease_period": "10m"}}).apply()
    worker = here.worker().wait_for_shards(1)
    here.write("state", *(f"{number}" for number in range(10)))
    later_ms = broker_now_ms() + 3_600_000
    here.write("state", "scheduled", headers=[("lapse-enqueue-at-ms", str(later_ms).encode())])
    with here.subscriber("state", 6, timeout_s=60) as subscriber, here.queue("state") as queue:
        taken = [subscriber.receive(20) for _ in range(6)]
        some = [one for one in taken if one is not None]
        assert len(some) == 6
        queue.pause()
        subscriber.settle("acknowledge", some[:2], wait=True)
        subscriber.settle("cancel", some[2:3], wait=True)
        subscriber.settle("cancel", some[3:4], delay_ms=3_600_000, wait=True)
        subscriber.settle("renew", some[4:5], lease_ms=600_000, wait=True)
        before = queue.peek()
        assert [message.state for message in before] == [
            "available",
            "delayed",
            "leased",
            "leased",
            *["available"] * 4,
            "scheduled",
        ]
        for _ in range(2):
            worker.kill()
            worker.start().wait_for_shards(1)
            assert queue.peek() == before
        (held,) = subscriber.settle("acknowledge", some[5:6], wait=True)
        assert held.settled
        assert subscriber.receive(0.5) is None
        queue.resume()
        (next_one,) = [subscriber.receive(20)]
        assert next_one is not None
        assert (next_one.value, next_one.delivery_count) == (b"2", 2)


@pytest.mark.feature("Q16", "C41")
def test_a_journal_that_ends_in_a_transactions_marker_is_read_to_its_end(deploy: Deploy) -> None:
    """The last offsets of the changelog hold no record that can be read; recovery must not wait for them."""
    here = deploy({"marked": {}}).apply()
    worker = here.worker().wait_for_shards(1)
    here.write("marked", "a", "b")
    until(lambda: here.depth("marked")["depth"] == 2, "the messages")
    worker.kill()
    changelog = f"{here.app_id}-{here.name('marked')}-changelog"
    producer = _begun_transaction(here)
    _write_garbage(producer, changelog)
    producer.abort_transaction(15)
    producer.begin_transaction()  # stays open, so that readers of committed records see nothing behind it
    _write_garbage(producer, changelog)
    worker.start().wait_for_shards(1)
    assert here.depth("marked")["available"] == 2
    here.write("marked", "c")
    until(lambda: here.depth("marked")["depth"] == 3, "the third one")
    worker.kill()
    worker.start().wait_for_shards(1)
    assert here.depth("marked")["available"] == 3
    with here.queue("marked") as queue:
        assert queue.purge()["removed"] == 3
    journal = Journal(here.connection, here.name("marked"))
    assert sum(last - first + 1 for _, _, first, last, *_ in journal.read()) == 3, "ledgers see what left"
    journal.close()
    replayed = here.lapse("simulate", here.name("marked"), "--replay", "--json")
    assert json.loads(replayed.stdout.splitlines()[-1])["epochs"] >= 2, replayed.stdout + replayed.stderr
    producer.abort_transaction(15)


@pytest.mark.feature("Q16")
def test_a_clean_stop_under_load_is_quick_and_the_next_start_goes_on(deploy: Deploy) -> None:
    """SIGTERM: exit code 0 within seconds, the group is left at once, offsets are committed, steps go on."""
    here = deploy({"flow": FLOWING}, store="rocksdb").apply()
    worker = here.worker().wait_for_shards(1)
    with Load(here, "flow", 1) as load:
        load.flow(300)
        assert worker.stop(10) == 0
        worker.start().wait_for_shards(1)
        load.flow(100)
        load.drain()
    account(here, "flow", set(load.written)).assert_balanced()
    worker.stop()
    admin = AdminClient({"bootstrap.servers": here.servers})

    asked = ConsumerGroupTopicPartitions(here.app_id, [Partition(here.name("flow"), 0)])
    (offsets,) = [future.result() for future in admin.list_consumer_group_offsets([asked]).values()]
    assert offsets.topic_partitions[0].offset == max(offset for _, offset in load.written) + 1


@pytest.mark.feature("Q16")
def test_a_supervised_worker_is_started_again_and_stops_with_its_supervisor(deploy: Deploy) -> None:
    """`lapse worker`: SIGKILL to the child brings a new one; SIGTERM to the parent ends both, cleanly."""
    here = deploy({"watched": {}}, session_timeout="2s").apply()
    worker = here.worker(supervised=True).wait_for_shards(1)

    assert worker.process is not None
    parent = psutil.Process(worker.process.pid)
    (child,) = parent.children()
    child.kill()
    worker.wait_for_shards(2)
    assert "starting it again" in worker.text
    here.write("watched", "x")
    until(lambda: here.depth("watched")["depth"] == 1, "the message")
    (second,) = parent.children()
    second.kill()
    until(lambda: worker.text.count("starting it again") == 2, "the second crash")
    assert worker.stop() == 0  # in the pause before the next start
    worker.start().wait_for_shards(1)
    (third,) = psutil.Process(worker.process.pid).children()
    assert worker.stop() == 0
    assert not third.is_running()


@pytest.mark.feature("Q16")
def test_fausts_own_command_runs_the_same_worker(deploy: Deploy) -> None:
    """`faust -A lapse.app worker`, with LAPSE_CONFIG."""
    here = deploy({"fausty": {"expiration": "1s"}}).apply()
    arguments = ["-m", "faust", "-A", "lapse.app", "--datadir", str(here.directory / "data"), "worker", "-l", "info"]
    worker = here.run(arguments, {"LAPSE_CONFIG": str(here.config)}, fresh=True)
    worker.wait_for_shards(1)
    here.write("fausty", "x")
    assert texts(here.letters("fausty", 1)[0])["lapse-reasons"] == "time_limit"
    assert worker.stop() == 0


@pytest.mark.feature("C80", "C40")
def test_a_lease_protects_a_message_whose_record_kafka_deletes(deploy: Deploy) -> None:
    """One is acknowledged after the cut, and counts; the lease of the other one ends, and it leaves with its letter."""
    here = deploy({"worked": {"lease_period": "60s"}}).apply()
    here.worker().wait_for_shards(1)
    written = here.write("worked", "a", "b", "c", "d")
    with here.subscriber("worked", 2) as subscriber:
        held = [subscriber.receive(20) for _ in range(2)]
        admin = AdminClient({"bootstrap.servers": here.servers})
        for future in admin.delete_records([Partition(here.name("worked"), 0, written[3].offset)]).values():
            future.result()
        until(lambda: here.depth("worked")["available"] == 1, "the one that nobody works on out of the queue", 30)
        assert here.depth("worked")["leased"] == 2
        (result,) = subscriber.settle("acknowledge", held[:1], wait=True)
        assert result.result == "settled"
    letters = here.letters("worked", 2)
    assert {texts(letter)["__dlq.errors.offset"] for letter in letters} == {str(one.offset) for one in written[1:3]}
    assert {texts(letter)["lapse-reasons"] for letter in letters} == {"log_truncated"}


@pytest.mark.feature("C79", "C36", "Q6", "Q16", "Q20")
def test_what_was_sent_at_most_once_keeps_its_place_over_a_restart_and_gets_no_letter(deploy: Deploy) -> None:
    """The next one comes when the first is acknowledged, whatever became of the worker and the record meanwhile.

    The next one of its group, and a barrier, wait for that, too, though there is room. Its lifetime ends meanwhile.
    """
    once = {"semantics": "at-most-once", "expiration": "enabled"}
    one_order = {"ordering": "total", "barrier": "/b = 'yes'"}
    queues = {"sent": once, "group": once | {"group_by": "/g"}, "marked": once | one_order}
    here = deploy(queues, session_timeout="2s").apply()
    worker = here.worker().wait_for_shards(3)
    next_ones = {"sent": b'{"n": 2}', "group": b'{"g": 1, "n": 2}', "marked": b'{"b": "yes"}'}
    with ExitStack() as stack:
        subscribers, first = {}, {}
        for stem, following in next_ones.items():
            ahead = {"group": b'{"g": 1}'}.get(stem, b"{}")
            (gone,) = here.write(stem, ahead, headers=[("lapse-ttl-ms", b"5000")])
            here.write(stem, following)
            subscribers[stem] = stack.enter_context(here.subscriber(stem, 1 if stem == "sent" else 3))
            first[stem] = subscribers[stem].receive(20)
            assert first[stem] is not None
            admin = AdminClient({"bootstrap.servers": here.servers})
            for future in admin.delete_records([Partition(here.name(stem), 0, gone.offset + 1)]).values():
                future.result()
        worker.kill()
        worker.start().wait_for_shards(3)
        assert subscribers["sent"].receive(8) is None
        for stem, following in next_ones.items():
            assert subscribers[stem].receive(0) is None
            first[stem].acknowledge()
            second = subscribers[stem].receive(20)
            assert second is not None
            assert second.value == following
            if not second.is_barrier:
                second.acknowledge()
    for stem in next_ones:
        assert not {"dead_lettered", "expired"} & {event.event for event in here.events(stem)}


@pytest.mark.feature("C40", "L14", "D2", "Q12")
def test_messages_whose_records_kafka_has_deleted_leave_with_a_letter_of_headers(deploy: Deploy) -> None:
    """`kafka-delete-records` below live messages: noticed when they would be delivered; the rest flows on."""
    marked = {"ordering": "total", "barrier": "/b = 'yes'", "payload_window": 1}
    here = deploy({"cut": {"payload_window": 1}, "marked": marked}).apply()
    worker = here.worker().wait_for_shards(2)
    written = here.write("cut", *(f"{number}" for number in range(10)), key=b"k")
    ends = here.write("marked", '{"b": "yes"}', '{"b": "yes"}', "last")
    until(lambda: here.depth("cut")["depth"] == 10 and here.depth("marked")["depth"] == 3, "the messages")
    worker.kill()  # so that no payload is left in memory
    admin = AdminClient({"bootstrap.servers": here.servers})
    cuts = [Partition(here.name("cut"), 0, written[6].offset), Partition(here.name("marked"), 0, ends[1].offset)]
    for future in admin.delete_records(cuts).values():
        future.result()
    worker.start().wait_for_shards(2)
    assert here.depth("cut")["oldest_age_ms"] is not None, "that of the first record that is left (Q15)"
    with here.subscriber("marked", 1, timeout_s=60) as subscriber:
        barrier, last = subscriber.receive(20), subscriber.receive(20)
        assert barrier is not None
        assert last is not None
        assert (barrier.is_barrier, barrier.bookmark.offset) == (True, ends[1].offset)
        assert last.value == b"last", "the barrier that is gone holds nobody back"
        (letter,) = here.letters("marked", 1)
        assert (texts(letter)["lapse-reasons"], texts(letter)["__dlq.errors.offset"]) == ("log_truncated", "0")
        released = [event for event in here.events("marked") if event.event == "barrier_released"]
        assert [(place.first, place.last) for event in released for place in event.messages] == [(1, 1)]
    with here.subscriber("cut", 10, timeout_s=60) as subscriber:
        got = [subscriber.receive(20) for _ in range(4)]
        assert [one.value for one in got if one] == [b"6", b"7", b"8", b"9"]
        letters = here.letters("cut", 6)
    for letter, lost in zip(letters, written, strict=False):
        facts = texts(letter)
        assert (letter.key(), letter.value()) == (None, None)
        assert facts["lapse-reasons"] == "log_truncated"
        assert facts["__dlq.errors.offset"] == str(lost.offset)
        assert "no longer" in facts["__dlq.errors.message"]
    until(lambda: here.depth("cut")["depth"] == 4, "the lost ones out of the depth")


@pytest.mark.feature("C80", "Q13", "D1", "D4")
def test_what_kafka_removes_unread_beyond_the_depth_is_reported_in_one_event_with_ranges(deploy: Deploy) -> None:
    """While the worker is away, and while it runs and nothing more arrives (C80).

    There are no letters, and what was acknowledged ahead is not told again.
    """
    here = deploy({"unread": {"target_queue_depth": 2}}).apply()
    worker = here.worker().wait_for_shards(1)
    written = here.write("unread", *(f"{number}" for number in range(10)))
    until(lambda: here.depth("unread")["depth"] == 2, "the depth is reached")
    with here.queue("unread") as queue:
        queue.acknowledge([here.bookmark("unread", written[4])])
    worker.kill()
    admin = AdminClient({"bootstrap.servers": here.servers})

    def cut(offset: int) -> None:
        for future in admin.delete_records([Partition(here.name("unread"), 0, offset)]).values():
            future.result()

    cut(written[8].offset)
    worker.start().wait_for_shards(1)

    def emitted() -> list[Event]:
        return [one for one in here.events("unread") if one.event == "expired" and "log_truncated" in one.reasons]

    until(emitted, "the event")
    (event,) = emitted()
    assert [(one.first, one.last) for one in event.messages] == [(2, 3), (5, 7)]
    assert "up to offset 7, which was read up to 1 only" in worker.text
    with here.subscriber("unread", 2, timeout_s=60) as subscriber:
        got = [subscriber.receive(20) for _ in range(2)]
        assert [one.value for one in got if one] == [b"8", b"9"]
    letters = {texts(letter)["__dlq.errors.offset"] for letter in here.letters("unread", 2)}
    assert letters == {"0", "1"}, "only what was active has letters"
    here.write("unread", "10", "11", "12", "13")
    cut(13)
    until(lambda: len(emitted()) == 2, "the event, though nothing more arrives", timeout_s=30)
    assert [(one.first, one.last) for one in emitted()[1].messages] == [(10, 12)]
    assert "up to offset 12, which was read up to 9 only" in worker.text
    letters = {texts(letter)["__dlq.errors.offset"] for letter in here.letters("unread", 4)}
    assert letters == {"0", "1", "8", "9"}
    with here.subscriber("unread", 2, timeout_s=60) as subscriber:
        assert (left := subscriber.receive(20)) is not None
        assert left.value == b"13"


@pytest.mark.feature("C80", "C41")
def test_the_end_of_a_transaction_that_kafka_removes_is_no_unread_message(deploy: Deploy) -> None:
    """It takes an offset behind the last message; no event tells of it, and no warning."""
    here = deploy({"ended": {}}).apply()
    worker = here.worker().wait_for_shards(1)
    producer = Producer({"bootstrap.servers": here.servers, "transactional.id": here.name("tx")})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(here.name("ended"), b"1")
    producer.commit_transaction()
    until(lambda: here.depth("ended")["depth"] == 1, "the message")
    admin = AdminClient({"bootstrap.servers": here.servers})
    for future in admin.delete_records([Partition(here.name("ended"), 0, 2)]).values():
        future.result()
    here.letters("ended", 1)
    here.write("ended", "2")
    until(lambda: here.depth("ended")["depth"] == 1, "the next message")
    time.sleep(2)  # as long as a gap takes to be looked at
    assert [one.event for one in here.events("ended")] == ["dead_lettered"]
    assert "read up to" not in worker.text


@pytest.mark.slow
@pytest.mark.feature("X7", "Q8", "C17", "Q16")
def test_a_pile_of_commands_is_more_than_one_step(deploy: Deploy) -> None:
    """Hundreds of thousands of ranges wait at start-up: carried out in steps that fit the journal, no crash loop."""
    here = deploy({"pile": {"lease_period": "10m", "heartbeat_timeout": "10m"}}, session_timeout="2s").apply()
    worker = here.worker().wait_for_shards(1)
    here.write("pile", *("x" for _ in range(10_000)))
    kcat = Kcat(here, "pile")
    kcat.ask("subscribe", subscription="holder", max_backlog=10_000)
    until(lambda: here.depth("pile")["leased"] == 10_000, "all leased")
    worker.kill()
    ranges = [f"{here.name('pile')}:0:{offset}" for offset in range(0, 10_000, 2)]
    for number in range(20):
        kcat.send(
            orjson.dumps(
                {
                    "command": "renew",
                    "id": f"r{number}",
                    "subscription": "holder",
                    "bookmarks": ranges,
                    "answer": "errors",
                }
            )
        )
    worker.start().wait_for_shards(1)
    with Queue(here.name("pile"), connection=here.connection, timeout_s=90) as queue:
        assert queue.depth()["leased"] == 10_000
    assert worker.running


@pytest.mark.feature("C1", "C37", "Q16", "Q8")
def test_a_command_that_found_nothing_does_nothing_to_what_comes_behind_it(deploy: Deploy) -> None:
    """It was answered, and changed nothing; a crash must not carry it out on what was published since."""
    here = deploy({"purged": {}, "expired": {}}).apply()
    worker = here.worker().wait_for_shards(2)
    for stem in ("purged", "expired"):
        here.write(stem, "before")
        with here.queue(stem) as queue:
            until(lambda queue=queue: queue.depth()["depth"] == 1, "it is there")
            for removed in (1, 0):
                if stem == "purged":
                    assert queue.purge()["removed"] == removed
                else:
                    assert sum(one.settled for one in queue.settle("expire", filter="1 = 1")) == removed
    worker.kill()
    for stem in ("purged", "expired"):
        here.write(stem, "behind")
    worker.start().wait_for_shards(2)
    for stem in ("purged", "expired"):
        with here.subscriber(stem) as subscriber:
            delivery = subscriber.receive(20)
            assert delivery is not None
            assert delivery.value == b"behind"
    kcat = Kcat(here, "expired")
    worker.signal(signal.SIGSTOP)
    here.write("expired", "older")  # ends the fetch that waits: the next one brings what follows, all together
    kcat.send(b'{"command": "expire", "id": "live", "filter": "1 = 1", "answer": "all"}')
    here.write("expired", "younger")
    worker.signal(signal.SIGCONT)
    assert kcat.answer("live")["counts"] == {"settled": 2, "skipped": 0}
    with here.queue("expired") as queue:
        until(lambda: queue.depth()["available"] == 1, "what is younger is there")
