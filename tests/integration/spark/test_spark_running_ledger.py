"""The ledger that goes on: each batch adds to the account, and what does not add up is named by bookmark."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from threading import Thread

import pytest
import tomlkit
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from lapse.core.reason import Reason
from lapse.protocol import topic
from lapse.protocol.bookmark import Bookmark, BookmarkRange
from lapse.protocol.event import EventKind
from lapse_spark import Connection, ledger
from lapse_spark.account import ledger_command
from lapse_spark.cli import spark as commands
from lapse_spark.option import Cluster
from lapse_spark.running import running_ledger
from lapse_spark.running.intake import Followed
from lapse_spark.running.memory import OPEN, Memory
from lapse_spark.running.running_ledger import Rule
from support.kafka.log import until
from support.kafka.wire import Wire
from support.programs.standalone import quick_java
from support.suite.at_length import AT_LENGTH
from support.suite.class_archives import interpreted

pytestmark = [pytest.mark.spark, pytest.mark.feature("D8")]


class Account:
    """A queue without a worker, and its ledger."""

    def __init__(self, spark, kafka, unique, create_topic, path):
        self.name, self.wire, self.kafka, self.spark, self.path = unique("q"), Wire(kafka), kafka, spark, str(path)
        self.under = create_topic(f"under-{self.name}", partitions=2)
        self.topic = f"balance-{self.name}"
        for own in (topic.events(self.name), topic.dead_letters(self.name)):
            create_topic(own)

    def publish(self, count, partition=0):
        self.wire.records(self.under, [b"x"] * count, partition=partition)

    def tell(self, kind, first, last=None, partition=0, **facts):
        where = topic.dead_letters(self.name) if kind is EventKind.DEAD_LETTERED else ""
        facts.setdefault("dead_letter_topic", where)
        whole = BookmarkRange(self.under, partition, first, first if last is None else last)
        self.wire.event(self.name, kind, whole, **facts)

    def letter(self, offset, partition=0, **facts):
        self.wire.letter(self.name, Bookmark(self.under, partition, offset), Reason.TIME_LIMIT, **facts)

    def die(self, first, last, **facts):
        self.tell(EventKind.DEAD_LETTERED, first, last, reasons=("time_limit",), **facts)
        for offset in range(first, last + 1):
            self.letter(offset, **facts)

    def run(self, *further, start=(), topics=None, **rule):
        self.wire.flush()
        rule = {"grace": timedelta(0), "ask_every": None, **rule}
        topics = [self.under, *further] if topics is None else topics
        queue = Followed(name=self.name, underlying=topics, start=[Bookmark.parse(one) for one in start])
        (found,) = running_ledger.run(
            self.spark, Connection(self.kafka), [queue], self.path, Rule(topic=self.topic, **rule), every=None
        )
        return found

    def reckoned(self):
        return ledger.run(self.spark, Connection(self.kafka), self.name, [self.under], ask=False)

    def published(self):
        """What is on the topic: the last record of each key."""
        consumer = Consumer({"bootstrap.servers": self.kafka, "group.id": self.name, "enable.auto.commit": False})
        place = TopicPartition(self.topic, 0, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=10)
        consumer.assign([place])
        found = {}
        while consumer.position([place])[0].offset < end:
            for message in consumer.consume(100, 1):
                found[message.key().decode()] = json.loads(message.value())
        consumer.close()
        return found


@pytest.fixture
def account(spark, kafka, unique, create_topic, tmp_path):
    return Account(spark, kafka, unique, create_topic, tmp_path / "ledger")


def same(balance, reckoned):
    names = ("published", "rewound", "fates", "dead_lettered", "expired", "still_queued", "contradictory", "superseded")
    ours, whole = balance.ledger, reckoned
    assert {name: getattr(ours, name) for name in names} == {name: getattr(whole, name) for name in names}


def offsets(balance):
    return [(one.partition, one.offset, one.read) for one in balance.balanced_up_to]


def findings(balance):
    return {row["bookmark"].partition(":")[2]: row["difference"] for row in balance.ledger.differences}


def test_injected_faults_are_named_by_bookmark_and_what_is_mended_is_withdrawn(account):
    account.publish(300)
    account.publish(20, partition=1)
    account.tell(EventKind.ACKNOWLEDGED, 0, 199)
    account.die(200, 209)
    account.tell(EventKind.EXPIRED, 210, 212, reasons=("purged",))
    first = account.run()
    assert first.ledger.balanced
    assert (first.ledger.published, first.ledger.still_queued) == (320, 107)
    assert offsets(first) == [(0, 300, 300), (1, 20, 20)]

    # The blocks 0 to 2 are closed by now. What comes of them is held against what is remembered.
    account.tell(EventKind.ACKNOWLEDGED, 213, 280)
    account.tell(EventKind.ACKNOWLEDGED, 0, 199)  # a copy, as a crash makes it
    account.die(200, 209)
    account.tell(EventKind.EXPIRED, 7, reasons=("purged",))  # a second fate, of a closed block
    account.tell(EventKind.ACKNOWLEDGED, 70, at_ms=2_000)  # doubled: acknowledged once more
    account.tell(EventKind.ACKNOWLEDGED, 205)  # swapped: its letter is there
    account.tell(EventKind.DEAD_LETTERED, 281, reasons=("time_limit",))  # swapped: no letter
    account.letter(3, partition=1)  # a letter, its event is gone
    account.tell(EventKind.ACKNOWLEDGED, 400, 402)  # forged
    account.tell(EventKind.ACKNOWLEDGED, 0, partition=9)
    account.wire.records(topic.events(account.name), [b"foreign"])
    second = account.run()
    assert findings(second) == {
        "0:7": "several_fates",
        "0:70": "reported_twice",
        "0:205": "several_fates",
        "0:281": "letter_missing",
        "0:400-402": "not_published",
        "1:3": "event_missing",
        "9:0": "not_published",
    }
    assert (second.ledger.published, second.ledger.contradictory) == (320, 4)
    assert not second.ledger.balanced
    assert offsets(second) == [(0, 7, 300), (1, 3, 20)]
    assert second.ledger.quarantined == 1

    account.letter(281)
    account.tell(EventKind.DEAD_LETTERED, 3, partition=1, reasons=("time_limit",))
    third = account.run()
    same(third, account.reckoned())  # as the ledger does that reads everything once more
    assert set(findings(third)) == {"0:7", "0:70", "0:205", "0:400-402", "9:0"}
    assert offsets(third)[1] == (1, 20, 20)
    verdict = account.published()
    assert verdict.pop(account.name) == json.loads(json.dumps(third.as_json()))
    states = {(one["difference"], one["bookmark"].partition(":")[2]): one["state"] for one in verdict.values()}
    assert {key for key, state in states.items() if state == "withdrawn"} == {
        ("letter_missing", "0:281"),
        ("event_missing", "1:3"),
    }
    assert len(states) == 7


@pytest.mark.feature("X7")
def test_topics_that_are_not_there_are_named(account):
    queue = Followed(name=account.name, underlying=[account.under, "nosuch"])
    with pytest.raises(ValueError, match="there is no such topic: nosuch"):
        running_ledger.run(account.spark, Connection(account.kafka), [queue], account.path, Rule(), every=None)


@pytest.mark.feature("X7")
def test_a_topic_that_is_deleted_under_a_batch_or_a_command_is_named_at_once(account, caplog, monkeypatch):
    """Spark waits minutes for its records before it says anything. What was never there is not deleted."""
    admin = AdminClient({"bootstrap.servers": account.kafka})

    def delete(name):
        admin.delete_topics([name])[name].result(30)
        until(lambda: f"deleted, or hidden from this user, while it is read: {name}." in caplog.text, "it is named")

    def hang(batch, number):
        delete(account.under)
        raise RuntimeError("named")

    monkeypatch.setattr(running_ledger.RunningLedger, "write", lambda _, *given: hang(*given))
    account.publish(10)
    with pytest.raises(RuntimeError, match="named"):
        account.run()
    monkeypatch.undo()
    with pytest.raises(ValueError, match=f"there is no such topic: {account.under}"):
        account.run()
    letters, events = topic.dead_letters(account.name), topic.events(account.name)
    reading = Cluster(Connection(account.kafka), None, {})
    with reading.reading([account.under, events]), reading.reading(pattern=f"{re.escape(letters)}|nosuch"):
        delete(events)
        delete(letters)
    assert caplog.text.count("while it is read") == 3


@pytest.mark.feature("C28")
def test_topics_that_match_are_followed_also_those_that_come_later(account, create_topic, tmp_path):
    create_topic(f"{account.name}-other")
    account.publish(10)
    account.tell(EventKind.ACKNOWLEDGED, 0, 5)
    account.wire.flush()
    settings = {"topic_pattern": f"under-{account.name}.*", "dead_letter": True}
    (tmp_path / "lapse.toml").write_text(tomlkit.dumps({"queue": {account.name: settings}}))
    (followed,) = ledger_command.all_queues(tmp_path / "lapse.toml")

    def run():
        rule = Rule(topic=account.topic, grace=timedelta(0), ask_every=None)
        (found,) = running_ledger.run(
            account.spark, Connection(account.kafka), [followed], account.path, rule, every=None
        )
        return found

    first = run()
    assert (first.ledger.published, first.ledger.still_queued, first.ledger.balanced) == (10, 4, True)
    later = create_topic(f"{account.under}-later")
    account.wire.records(later, [b"x"] * 5)
    account.wire.event(account.name, EventKind.ACKNOWLEDGED, BookmarkRange(later, 0, 0, 2))
    account.wire.flush()
    second = run()
    assert (second.ledger.published, second.ledger.still_queued, second.ledger.balanced) == (15, 6, True)
    assert {one.topic for one in second.balanced_up_to} == {account.under, later}


def test_a_ledger_goes_on_only_over_what_it_was_begun_over(account, create_topic, unique):
    """A further topic is read from its beginning. Fates of its messages may have been read before."""
    other, start = create_topic(unique("other")), f"{account.under}:0:2"
    account.publish(10)
    account.wire.records(other, [b"x"] * 5)
    account.tell(EventKind.ACKNOWLEDGED, 2, 4)
    account.wire.event(account.name, EventKind.ACKNOWLEDGED, BookmarkRange(other, 0, 0, 2))
    first = account.run(start=[start])
    assert (first.ledger.published, first.ledger.still_queued) == (8, 5)
    assert findings(first) == {"0:0-2": "not_published"}
    second = account.run(other, start=[start, f"{other}:0:1"])
    assert (second.ledger.published, second.ledger.still_queued) == (12, 7)
    both, later = [account.under, other], f"{other}:0:1"
    for topics, starts, why in (
        ([account.under], [start], f"also over {other}: .* --topics {account.under},{other}, or give a new directory"),
        ([other], [later], f"also over {account.under}: "),
        (both, [start], f"with --start {later}, and now it is to be one from the beginning of {other}"),
        (both, [f"{account.under}:0:3", later], f"with --start {start}, .* with --start {account.under}:0:3: "),
    ):
        with pytest.raises(ValueError, match=f"{account.path}/{account.name} has the ledger of {account.name} {why}"):
            account.run(topics=topics, start=starts)
    assert account.run(other, start=[start, f"{other}:0:1"]).ledger.published == 12


@pytest.mark.long
def test_what_came_behind_a_batch_that_was_cut_short_is_reported_by_the_run_that_does_it_again(account, tmp_path):
    state = tmp_path / "ledger" / account.name / "state"
    state.parent.mkdir(parents=True)
    state.write_text("no directory")
    account.publish(10)
    account.tell(EventKind.ACKNOWLEDGED, 0, 4)
    with pytest.raises(Exception, match=r"state"):
        account.run()
    state.unlink()
    account.tell(EventKind.EXPIRED, 2, reasons=("purged",))  # a second fate
    account.letter(7)
    found = account.run(grace=timedelta(milliseconds=200))
    assert findings(found) == {"0:2": "several_fates", "0:7": "event_missing"}
    assert found.in_doubt == 0


def reached(state, name, published, acknowledged):
    """Whether the last whole batch of a ledger has read so many messages."""
    notes = sorted((Path(state) / name).glob("note-*.json"), key=lambda file: int(file.stem[5:]))
    balance = json.loads(notes[-1].read_text())["account"] if notes else {"published": 0, "fates": {}}
    return (balance["published"], balance["fates"].get("acknowledged")) == (published, acknowledged)


def check_that_all_were_counted_once(account, printed):
    """Of 220 messages 160 are acknowledged, as printed and as published; there are no findings."""
    (balance,) = json.loads(printed)["balances"]
    assert (balance["published"], balance["fates"]["acknowledged"], balance["still_queued"]) == (220, 160, 60)
    assert balance["balanced"]
    assert balance["balanced_up_to"][0] == {"topic": account.under, "partition": 0, "offset": 220, "read": 220}
    published = account.published()
    assert list(published) == [account.name]
    assert published[account.name]["published"] == 220


def test_a_ledger_that_died_within_a_batch_counts_nothing_twice_and_ends_on_ctrl_c(account, tmp_path, monkeypatch):
    """It goes on from a copy of its directory that was taken within a batch: so a killed process leaves it."""
    account.publish(100)
    account.tell(EventKind.ACKNOWLEDGED, 0, 69)
    account.run()
    account.publish(100)
    account.tell(EventKind.ACKNOWLEDGED, 70, 149)
    left, write = tmp_path / "left", Memory.write

    def dying(memory, number, table, rows):
        write(memory, number, table, rows)
        if table == OPEN:
            shutil.copytree(account.path, left)
            raise RuntimeError("killed")

    with monkeypatch.context() as broken:
        broken.setattr(Memory, "write", dying)
        with pytest.raises(RuntimeError, match="killed"):
            account.run()
    assert reached(left, account.name, 100, 70)
    assert (left / account.name / "state" / "1" / OPEN).is_dir()
    account.publish(20)
    account.tell(EventKind.ACKNOWLEDGED, 150, 159)
    account.wire.flush()

    def interrupt():
        try:
            until(lambda: reached(left, account.name, 220, 160), "what came is read", 120)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    words = ["ledger", "--follow", "--queue", account.name, "--json", "--no-ask", "--topics", account.under]
    words += ["--bootstrap", account.kafka, "--every", "1s", "--grace", "500ms"]
    words += ["--state", str(left), "--publish-to", account.topic]
    interrupting = Thread(target=interrupt)
    interrupting.start()
    answer = CliRunner().invoke(commands, words)
    interrupting.join()
    assert answer.exit_code == 0, answer.output
    check_that_all_were_counted_once(account, answer.stdout)


@pytest.mark.long
@pytest.mark.slow
def test_a_ledger_that_is_killed_within_a_batch_counts_nothing_twice_and_ends_on_ctrl_c(account, tmp_path):
    path = tmp_path / "ledger" / account.name
    job = [sys.executable, "-m", "lapse", "spark", "ledger", "--follow", "--queue", account.name, "--json", "--no-ask"]
    job += ["--topics", account.under, "--bootstrap", account.kafka, "--every", "5s", "--grace", "500ms"]
    job += ["--state", account.path, "--publish-to", account.topic, "--conf", "spark.sql.shuffle.partitions=2"]
    errors = (tmp_path / "errors").open("w+")

    def start(environment):
        return subprocess.Popen(
            job, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True, start_new_session=True
        )

    def has_read(published, acknowledged):
        assert running.poll() is None, (tmp_path / "errors").read_text()
        return reached(account.path, account.name, published, acknowledged)

    def within_a_batch():
        begun = {int(one.name) for one in path.glob("state/*") if (one / "open").is_dir()}
        return any(not (path / f"note-{number}.json").is_file() for number in begun)

    account.publish(100)
    account.tell(EventKind.ACKNOWLEDGED, 0, 69)
    account.wire.flush()
    running = start(quick_java() if AT_LENGTH else interpreted(quick_java()))
    try:
        until(lambda: has_read(100, 70), "what was there is read", 120)
        account.publish(100)
        account.tell(EventKind.ACKNOWLEDGED, 70, 149)
        account.wire.flush()
        until(within_a_batch, "a batch is being written", 60)
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        account.publish(20)
        account.tell(EventKind.ACKNOWLEDGED, 150, 159)
        account.wire.flush()
        running = start(interpreted(quick_java()))
        until(lambda: has_read(220, 160), "what came is read", 120)
        os.killpg(running.pid, signal.SIGINT)
        verdict, _ = running.communicate(timeout=60)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 0, (tmp_path / "errors").read_text()
    assert not {"Traceback", "StackOverflowError"} & set(re.findall(r"\w+", (tmp_path / "errors").read_text()))
    check_that_all_were_counted_once(account, verdict)
